"""Preferences by hand: both orders, ties and disagreements apart, verifiers beside a judge of pairs, kills, hostile answers."""

import json
import re
import subprocess
import sys
from collections import Counter

import datasets
import pytest

from hf_factuality.cli import main
from hf_factuality.data import GivenResponses, RAGPreferenceConfig, rag_preferences_from, read_questions
from hf_factuality.errors import DataError
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import AXES, CompareVerifier, PairInput, load_verifier
from tests.data.test_build_preferences import table, write
from tests.generation.fake_server import HASTY, FakeServer


PASSAGES = ["Marie Curie was born in Warsaw.", "Marie Curie won two prizes.", "Ada Lovelace was born in London."]
ROWS = [
    {"id": "born", "question": "Where was Curie born?", "evidence": PASSAGES, "topic": "Curie"},
    {"id": "won", "question": "What did Curie win?", "evidence": PASSAGES, "topic": "Curie"},
    {"id": "who", "question": "Who is it?", "evidence": PASSAGES[:1], "topic": None},
]
GOOD, BAD = "Marie Curie was born in Warsaw [1].", "Marie Curie was born in London [3]."
ANSWERS = {"born": [GOOD, BAD], "won": [BAD, "It is unknown.", GOOD], "who": [GOOD, GOOD, " "]}


def blocks(prompt):
    return dict(re.findall(r"\[BEGIN (\w+) \w+\]\n(.*?)\n\[END", prompt, re.DOTALL))


class Compares:
    """A judge of pairs by the table (question, axis) -> better text, "first" (whatever stands there), "tie" or `None`."""

    compares, requires_evidence = True, False

    def __init__(self, prefers, axis=None):
        self.prefers, self.axis, self.asked = prefers, axis, []

    def verify(self, inputs):
        return [Verification((LabeledSpan(0, len(it.completion), self._label(it)),)) for it in inputs]

    def _label(self, item):
        self.asked.append((item.question, item.completion, item.row["other"], item.evidence))
        best = self.prefers[item.question]
        if best in (None, "tie"):
            return best and Label.UNVERIFIABLE
        return Label.SUPPORTED if best in ("first", item.completion) else Label.CONTRADICTED


def build(folder, judges, answers=ANSWERS, rows=ROWS, seed=0, **settings):
    return rag_preferences_from(
        read_questions(rows), GivenResponses(answers), judges, folder, preferences=RAGPreferenceConfig(**settings),
        progress=False, seed=seed,
    )  # fmt: skip


def said(row, side):
    return row[side][0]["content"]


def test_both_orders_decide_and_the_rest_is_kept_apart(tmp_path):
    judge = Compares({ROWS[0]["question"]: GOOD, ROWS[1]["question"]: "first"})
    other = Compares({ROWS[0]["question"]: "tie", ROWS[1]["question"]: None})
    dataset = build(tmp_path, {"hallucination": judge, "verbosity": other}, pairs_per_question=3)
    (row,) = dataset
    assert (said(row, "chosen"), said(row, "rejected")) == (GOOD, BAD)
    assert row["axis"] == "hallucination" and row["evidence"] == PASSAGES and row["topic"] == "Curie"
    assert row["prompt"][0]["content"].count("[2] Marie Curie won two prizes.") == 1
    apart = datasets.load_dataset(str(tmp_path), "undecided", split="train")
    assert Counter(apart["verdict"]) == {"disagreement": 3, "tie": 1}
    assert datasets.load_dataset(str(tmp_path), split="train")[0] == row
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["dropped"] == {"no_pair": 1, "tie": 1, "disagreement": 3, "unknown": 3}
    assert report["preferences"] == {"hallucination": 1, "verbosity": 0} and report["pairs"] == 4
    shown = Counter((asked[0], frozenset(asked[1:3])) for asked in judge.asked)
    assert set(shown.values()) == {2} and len({asked[:3] for asked in judge.asked}) == 8, "each pair in both orders"
    assert all(asked[3] == tuple(PASSAGES) for asked in judge.asked)


def test_a_verifier_decides_by_its_shares_without_a_judge_of_pairs(tmp_path):
    dataset = build(tmp_path, {"attribution": load_verifier("citations:lexical")}, pairs_per_question=3)
    assert {(said(row, "chosen"), said(row, "rejected")) for row in dataset} == {
        (GOOD, BAD)
    }  # one that declines states nothing
    assert (
        build(tmp_path, {"attribution": load_verifier("citations:lexical")}, pairs_per_question=3).to_list()
        == dataset.to_list()
    )
    two = {"born": [f"{GOOD} {BAD}", BAD]}
    with pytest.raises(DataError, match="nothing is left.*1 pairs that are equally good"):
        build(tmp_path / "near", {"attribution": load_verifier("citations:lexical")}, two, ROWS[:1], min_margin=0.5)
    assert (
        len(
            build(
                tmp_path / "near", {"attribution": load_verifier("citations:lexical")}, two, ROWS[:1], min_margin=0.4
            )
        )
        == 1
    )


def test_the_served_judge_reads_both_answers_and_the_passages(tmp_path):
    axes = set()

    def reply(prompt, body):
        found = blocks(prompt)
        assert "[1] Marie Curie was born in Warsaw." in found["PASSAGES"]
        axes.add(prompt.split("compare them:\n")[1].split("\n")[0])
        return "A" if "Warsaw" in found["FIRST"] else "B" if "Warsaw" in found["SECOND"] else "tie"

    with FakeServer(reply) as server:
        judge = CompareVerifier("fake", server.url, retry=HASTY, cache=False)
        pairs = [PairInput("Where?", GOOD, BAD, tuple(PASSAGES)), PairInput("Where?", BAD, GOOD, tuple(PASSAGES))]
        assert judge.compare([*pairs, PairInput("Where?", BAD, BAD, tuple(PASSAGES))]) == ["A", "B", "tie"]
        asked = {axis: judge.on(axis) for axis in AXES}
        dataset = build(tmp_path, asked, pairs_per_question=1)
        assert {*dataset["axis"]} == {*AXES} and axes == {*AXES.values()}
        count = len(server.bodies)
        build(tmp_path, asked, pairs_per_question=1)
        assert len(server.bodies) == count, "a finished run asks nothing"


def test_an_unreadable_verdict_is_unknown(tmp_path):
    with FakeServer(lambda prompt, body: "A is better, B is worse") as server:
        judge = CompareVerifier("fake", server.url, retry=HASTY, cache=False)
        assert judge.compare([PairInput("Where?", GOOD, BAD)]) == [None]
        with pytest.raises(DataError, match="pairs on an axis without a verdict"):
            build(tmp_path, {"verbosity": judge})


def test_a_run_that_was_stopped_goes_on(tmp_path):
    prefers = {row["question"]: GOOD for row in ROWS}
    whole = build(tmp_path / "whole", {"hallucination": Compares(prefers), "verbosity": Compares(prefers)})

    class Stops(Compares):
        def verify(self, inputs):
            if len(self.asked) >= 2:
                raise KeyboardInterrupt
            return super().verify(inputs)

    Stops.__name__ = "Compares"  # which the settings of a run hold
    first = Stops(prefers)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "again", {"hallucination": Compares(prefers), "verbosity": first})
    rest = {"hallucination": Compares(prefers), "verbosity": Compares(prefers)}
    assert build(tmp_path / "again", rest).to_list() == whole.to_list()
    assert rest["hallucination"].asked == [] and len(rest["verbosity"].asked) == 2
    with pytest.raises(DataError, match="other settings"):
        build(tmp_path / "again", rest, {**ANSWERS, "born": [BAD, GOOD]})


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(DataError, match="1 of 2 questions have no passages, the first of them 'b'"):
        build(tmp_path, {"verbosity": Compares({})}, rows=[ROWS[0], {"id": "b", "question": "Who?"}])
    for judges in ({}, {"../up": Compares({})}, {"a b": Compares({})}):
        with pytest.raises(ValueError, match="names of axes"):
            build(tmp_path, judges)
    for settings in ({"pairs_per_question": 0}, {"min_margin": 1.0}):
        with pytest.raises(ValueError, match="pairs_per_question >= 1"):
            RAGPreferenceConfig(**settings)
    with pytest.raises(DataError, match="questions without two different"):
        build(tmp_path / "none", {"verbosity": Compares({})}, {key: ["a"] for key in ANSWERS})


def test_a_prompt_of_ones_own_is_kept(tmp_path):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    dataset = build(
        tmp_path, {"verbosity": Compares({"Where was Curie born?": GOOD})}, rows=[{**ROWS[0], "prompt": prompt}]
    )
    assert dataset[0]["prompt"] == prompt


def test_the_command(tmp_path, capsys):
    file, answers, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl", tmp_path / "out"
    write(file, ROWS)
    write(answers, [{"id": key, "responses": texts} for key, texts in ANSWERS.items()])

    def reply(prompt, body):
        return "A" if "Warsaw" in blocks(prompt)["FIRST"] else "B"

    with FakeServer(reply) as server:
        served = ["--verifier", "compare:fake", "--verifier_base_url", server.url]
        command = ["build-rag-preferences", str(file), "--responses", str(answers), "--out", str(out)]
        assert main([*command, *served, "--axis", "hallucination", "--axis", "attribution=citations:lexical"]) == 0
        shown = table(capsys.readouterr().out)
        assert shown["hallucination"] == shown["attribution"] and int(shown["rows"]) >= 2
        assert "RAG-Reward" in (out / "README.md").read_text()
        assert main([*command[:-1], str(tmp_path / "no"), "--verifier", "lexical"]) == 2
    assert "--verifier lexical compares no answers: take compare:MODEL" in capsys.readouterr().err
    assert main([*command, "--axis", "attribution=lexicl"]) == 2
    assert "unknown verifier 'lexicl'" in capsys.readouterr().err


def test_importing_the_command_loads_no_torch():
    code = "import sys, hf_factuality.cli.builders; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
