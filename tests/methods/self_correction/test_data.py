"""Data of self-correction: which trajectories and pairs come of which samples, and a run that is killed and goes on."""

import json
from dataclasses import replace

import datasets
import pytest

from hf_factuality.cli import main
from hf_factuality.data import CorrectionConfig, GivenResponses, corrections_from, read_questions
from hf_factuality.data.sampling import SamplingConfig
from hf_factuality.errors import DataError
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.methods.self_correction.formula import CHECK, REVISE
from hf_factuality.spans import Verification
from hf_factuality.verifiers import GoldVerifier
from tests.data.test_build_preferences import table, write
from tests.generation.fake_server import FakeServer


ROWS = [{"id": "a", "question": "Where?", "answer": "Ulm"}]
ANSWERS = ["It is Ulm.", "It is Bern."]


def answer(said):
    """Of a text, a text and whether it is whole, or `None`."""
    if said is None:
        return ChatAnswer(error="lost")
    text, whole = (said, True) if isinstance(said, str) else said
    return ChatAnswer(text, "stop" if whole else "length")


class Scripted:
    """Says what `script` has for (last message of the user, first answer)."""

    def __init__(self, script):
        self.script, self.config, self.asked = script, SamplingConfig(num_samples=2), []

    def describe(self):
        return {"sampler": "scripted", **self.config.describe()}

    def sample(self, prompts, seed):
        found = []
        for prompt in prompts:
            self.asked.append(prompt)
            turns = [m["content"] for m in prompt if m["role"] == "assistant"]
            texts = self.script(prompt[-1]["content"], turns[0].partition("\n")[0] if turns else "")
            found.append([answer(text) for text in texts])
        return found


def script(checks, revisions, answers=ANSWERS):
    def say(request, answer):
        return {CHECK: checks.get(answer), REVISE: revisions.get(answer)}.get(request, answers)

    return say


CHECKS = {
    "It is Ulm.": ["So.\n[VERIFY] correct", "Hm.\n[VERIFY] wrong"],
    "It is Bern.": ["No!\n[VERIFY] wrong", "Yes."],
}
REVISIONS = {"It is Ulm.": ["Ulm.", "Rome."], "It is Bern.": ["Rome.", "Ulm it is."]}


def build(folder, said, rows=ROWS, **settings):
    return corrections_from(
        read_questions(rows), Scripted(said), GoldVerifier(), folder, corrections=CorrectionConfig(**settings), progress=False
    )  # fmt: skip


def dropped(folder):
    return {k: n for k, n in json.loads((folder / "report.json").read_text())["dropped"].items() if n}


def turns(row):
    return [message["content"] for message in row["messages"]]


def test_the_three_patterns(tmp_path):
    right, wrong = build(tmp_path / "told", script(CHECKS, REVISIONS), misled=0.0)
    assert right["kind"] == "right, found right" and right["id"] == "a 0" and right["answer"] == ["Ulm"]
    assert turns(right) == ["Where?", "It is Ulm.\n\nSo.\n[VERIFY] correct"]
    assert wrong["kind"] == "wrong, found wrong, corrected" and wrong["id"] == "a 1"
    assert turns(wrong) == ["Where?", "It is Bern.\n\nNo!\n[VERIFY] wrong", REVISE, "Ulm it is."]
    assert [m["role"] for m in wrong["messages"]] == ["user", "assistant", "user", "assistant"]
    misled, _ = build(tmp_path / "misled", script(CHECKS, REVISIONS), misled=1.0)
    assert misled["kind"] == "right, found wrong, kept right"
    assert turns(misled) == ["Where?", "It is Ulm.\n\nHm.\n[VERIFY] wrong", REVISE, "Ulm."]
    loaded = datasets.load_dataset(str(tmp_path / "misled"), split="train", cache_dir=str(tmp_path / "cache"))
    assert (
        turns(loaded[0]) == turns(misled)
        and "sampled from the model itself" in (tmp_path / "misled/README.md").read_text()
    )


def test_a_misleading_verdict_is_put_where_none_was_sampled(tmp_path):
    sure = CHECKS | {"It is Ulm.": ["[VERIFY] correct"] * 2}
    misled, _ = build(tmp_path, script(sure, REVISIONS), misled=1.0)
    assert turns(misled)[1] == "It is Ulm.\n\n[VERIFY] wrong"


def test_a_verdict_of_its_own_is_no_part_of_the_answer(tmp_path):
    said = script({}, {"Bern": ["Rome", "Ulm"]}, ["Ulm\n\n[VERIFY] correct", "Bern\n\n[VERIFY] wrong"])
    found = corrections_from(
        read_questions(ROWS), Scripted(said), GoldVerifier("world"), tmp_path, corrections=CorrectionConfig(misled=0.0),
        progress=False,
    )  # fmt: skip
    assert sorted(found["kind"]) == ["right, found right", "wrong, found wrong, corrected"]


@pytest.mark.parametrize(
    ("checks", "revisions", "kinds", "reasons"),
    [
        ({"It is Bern.": ["[VERIFY] correct", ""]}, {}, ["right, found right"], {"not_noticed": 1, "cut_off": 1}),
        ({"It is Ulm.": ["Well.", "[VERIFY] wrong"]}, {}, ["wrong, found wrong, corrected"], {"no_verdict": 1}),
        ({}, {"It is Bern.": ["Rome.", "Bonn."]}, ["right, found right"], {"not_corrected": 1}),
        ({}, {"It is Bern.": ["Rome.", ("Ulm", False)]}, ["right, found right"], {"not_corrected": 1, "cut_off": 1}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_dropped_and_counted(tmp_path, checks, revisions, kinds, reasons):
    found = build(tmp_path, script(CHECKS | checks, REVISIONS | revisions), misled=0.0)
    assert found["kind"] == kinds and dropped(tmp_path) == reasons


def test_an_unknown_or_unfinished_answer_is_neither_right_nor_wrong(tmp_path):
    class Doubts(GoldVerifier):
        def verify(self, inputs):
            found = super().verify(inputs)
            return [
                Verification(error="no") if item.question == "Who?" else it
                for item, it in zip(inputs, found, strict=True)
            ]

    rows = [ROWS[0], {"id": "b", "question": "Who?", "answer": "Ulm"}]
    said = Scripted(script(CHECKS, REVISIONS, [("It is Bern.", False), "It is Ulm."]))
    found = corrections_from(
        read_questions(rows), said, Doubts(), tmp_path, corrections=CorrectionConfig(misled=0.0), progress=False
    )  # fmt: skip
    assert found["id"] == ["a 0"] and dropped(tmp_path) == {"cut_off": 2, "not_judged": 1}


def test_pairs_share_all_before_the_text_that_differs(tmp_path):
    found = build(tmp_path, script(CHECKS, REVISIONS), output="pairs", misled=0.0)
    verdict, revision = found
    assert verdict["kind"] == "verdict" and [m["content"] for m in verdict["prompt"]] == ["Where?"]
    said = [verdict[side][0]["content"] for side in ("chosen", "rejected")]
    assert said == ["It is Ulm.\n\nSo.\n[VERIFY] correct", "It is Ulm.\n\nHm.\n[VERIFY] wrong"]
    assert revision["kind"] == "revision"
    assert [m["content"] for m in revision["prompt"]] == ["Where?", "It is Bern.\n\nNo!\n[VERIFY] wrong", REVISE]
    assert (revision["chosen"][0]["content"], revision["rejected"][0]["content"]) == ("Ulm it is.", "Rome.")


def test_an_answer_with_a_verdict_is_not_asked_for_another(tmp_path):
    answers = ["It is Ulm.\n[VERIFY] wrong", "It is Bern.\n[VERIFY] wrong"]
    revisions = {answer.partition("\n")[0]: texts for answer, texts in zip(answers, REVISIONS.values(), strict=True)}
    right, wrong = build(tmp_path / "sft", script({}, revisions, answers), misled=1.0)
    assert [turns(row)[1] for row in (right, wrong)] == answers
    kept, pair, *revised = build(tmp_path / "dpo", script({}, revisions, answers), output="pairs", misled=0.0)
    said = [[row[side][0]["content"] for side in ("chosen", "rejected")] for row in (kept, pair)]
    assert said == [["It is Ulm.\n\n[VERIFY] correct", answers[0]], [answers[1], "It is Bern.\n\n[VERIFY] correct"]]
    assert [row["prompt"][1]["content"] for row in revised] == [answers[1]]
    assert not (tmp_path / "dpo" / "verdicts").exists()


def test_a_killed_run_samples_nothing_twice_and_gives_the_same(tmp_path):
    rows = [{"id": str(n), "question": f"Where {n}?", "answer": "Ulm"} for n in range(6)]
    whole = build(tmp_path / "whole", script(CHECKS, REVISIONS), rows).to_list()
    for stage, request in enumerate(["Where 3?", CHECK, REVISE]):
        folder, times = tmp_path / str(stage), []

        def dies(asked, answer, times=times, request=request):
            times.append(asked == request)
            if asked == request and sum(times) == (1 if request == "Where 3?" else 4):
                raise KeyboardInterrupt
            return script(CHECKS, REVISIONS)(asked, answer)

        with pytest.raises(KeyboardInterrupt):
            build(folder, dies, rows)
        assert not (folder / "corrections.parquet").exists()
        sampler = Scripted(script(CHECKS, REVISIONS))
        again = corrections_from(read_questions(rows), sampler, GoldVerifier(), folder, progress=False)
        assert again.to_list() == whole
        assert sum(p[-1]["content"].startswith("Where") for p in sampler.asked) == (3 if stage == 0 else 0)
        assert 0 < sum(p[-1]["content"] == REVISE for p in sampler.asked) < 12 + (stage < 2)


def test_other_settings_are_refused_in_a_folder_that_holds_a_run(tmp_path):
    build(tmp_path, script(CHECKS, REVISIONS))
    with pytest.raises(DataError, match="questions was"):
        corrections_from(
            read_questions(ROWS), Scripted(script(CHECKS, REVISIONS)), GoldVerifier(), tmp_path, progress=False,
            corrections=CorrectionConfig(check="Is it so?"),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"output": "sft"}, "trajectories"),
        ({"misled": 1.5}, "1.5"),
        ({"num_verdicts": 1}, "1 and 4"),
        ({"check": " "}, "blank"),
    ],
)
def test_settings_that_cannot_be(settings, match):
    with pytest.raises(ValueError, match=match):
        CorrectionConfig(**settings)


def test_responses_that_exist_cannot_be_asked_about(tmp_path):
    with pytest.raises(TypeError, match="name the model"):
        corrections_from(read_questions(ROWS), GivenResponses({"a": ["Ulm"]}), GoldVerifier(), tmp_path)


def test_the_command_on_a_server(tmp_path, capsys):
    def answer(prompt, body):
        last, turns = body["messages"][-1]["content"], [m for m in body["messages"] if m["role"] == "assistant"]
        if last == CHECK:
            return "[VERIFY] correct" if "18" in turns[0]["content"] else "[VERIFY] wrong"
        return "So it is #### 18" if last == REVISE or body["seed"] % 2 else "#### 17"

    questions = write(tmp_path / "q.jsonl", [{"id": "g", "question": "How many?", "answer": "9 * 2 = 18\n#### 18"}])
    with FakeServer(answer) as server:
        argv = [
            "build-corrections",
            questions,
            "--base_url",
            server.url,
            "--model",
            "fake",
            "--verifier",
            "gold:GSM8K",
        ]
        argv += ["--top_k", "0", "--misled", "0", "--out", tmp_path / "run"]
        assert main([*map(str, argv)]) == 0
        assert main([*map(str, [*argv[:-1], tmp_path / "knowledge", "--knowledge", questions])]) == 2
    shown, told = capsys.readouterr()
    assert table(shown)["right, found right"] == "2" and table(shown)["wrong, found wrong, corrected"] == "2"
    assert "leave --knowledge out" in told
    rows = datasets.Dataset.from_parquet(
        str(tmp_path / "run" / "corrections.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert turns(rows[0])[-1].startswith(("So it is #### 18", "#### 17"))


def test_samples_of_a_stage_are_those_of_its_own_number():
    from hf_factuality.data.sampling import resampled

    sampler = Scripted(None)
    other = resampled(sampler, 5)
    assert (sampler.config.num_samples, other.config.num_samples) == (2, 5)
    assert other.config == replace(sampler.config, num_samples=5)
