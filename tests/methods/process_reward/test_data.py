"""Labels of steps by hand; that equal prefixes are continued once, unknown is not wrong, and a killed run goes on."""

import json
import math
from collections import Counter

import datasets
import pytest

from hf_factuality.cli import main
from hf_factuality.data import GivenResponses, ProcessLabelConfig, process_labels_from, read_questions
from hf_factuality.data.sampling import SamplingConfig
from hf_factuality.errors import DataError
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.spans import Verification
from hf_factuality.verifiers import GoldVerifier
from tests.data.test_build_preferences import table, write
from tests.generation.fake_server import FakeServer


# GSM8K's format: the worked solution, and the answer behind ####.
ROWS = [
    {
        "id": "clips",
        "question": "48 clips, then half as many. How many?",
        "answer": "48 + 24 = <<48+24=72>>72\n#### 72",
    },
    {"id": "pay", "question": "$12 an hour, 50 minutes. How much?", "answer": "12 * 50 / 60 = 10\n#### 10"},
]
START = "Half of 48 is 24."
SOLUTIONS = {
    "48": [f"{START}\n48 + 24 = 72.\n#### 72", f"{START}\n48 - 24 = 24.\n#### 24", "", None],
    "$12": ["#### $10.00", "12 is 50.\n#### 50", "#### 10\nThat is all.", " \n"],
}
CONTINUED = {
    START: ["\nSo 72.\n#### 72", "\n#### 72", "\n#### 24", None],
    "48 + 24 = 72.": ["\n#### 72"] * 4,
    "48 - 24 = 24.": ["\n#### 24", "\n#### 72", "\n#### 1", "\n#### 2"],
    "12 is 50.": [None] * 4,
    "#### 10": ["\nThat is all.", "", "\n#### 50", "\nSo it is."],
}


class Scripted:
    """Solves and continues; `counts` how often what was asked."""

    def __init__(self, fails_at=None):
        self.config, self.counts, self.fails_at = SamplingConfig(num_samples=4), Counter(), fails_at

    def describe(self):
        return {"sampler": "scripted", **self.config.describe()}

    def sample(self, prompts, seed):
        return [
            [ChatAnswer(text or "", error="lost" if text is None else None) for text in self._say(prompt)]
            for prompt in prompts
        ]

    def _say(self, prompt):
        last = prompt[-1]["content"]
        self.counts[last] += 1
        if self.fails_at and last.endswith(self.fails_at):
            raise KeyboardInterrupt
        if prompt[-1]["role"] == "assistant":
            return CONTINUED[last.rpartition("\n")[2]]
        return SOLUTIONS[last.split()[0]]


def build(folder, sampler=None, verifier=None, questions=ROWS, **settings):
    return process_labels_from(
        read_questions(questions), sampler or Scripted(), verifier or GoldVerifier("GSM8K"), folder,
        labels=ProcessLabelConfig(**{"rollouts": 4, **settings}), progress=False,
    )  # fmt: skip


def by_solution(dataset):
    return {row["completion"][0]["content"]: row["labels"] for row in dataset}


def test_labels_by_hand(tmp_path):
    sampler = Scripted()
    dataset = build(tmp_path, sampler)
    two_of_three = math.log((1 + 2 * math.e) / 3)
    assert by_solution(dataset) == {
        SOLUTIONS["48"][0]: [pytest.approx(two_of_three), 1.0, 1.0],
        SOLUTIONS["48"][1]: [pytest.approx(two_of_three), pytest.approx(math.log((3 + math.e) / 4)), 0.0],
        "#### $10.00": [1.0],
        "12 is 50.\n#### 50": [None, 0.0],
        # Whole solutions are judged: the answer may stand in what was continued.
        "#### 10\nThat is all.": [pytest.approx(math.log((1 + 3 * math.e) / 4)), 1.0],
    }
    assert dataset[0] | {"labels": []} == {
        "id": "clips 0", "prompt": [{"role": "user", "content": ROWS[0]["question"]}], "question": ROWS[0]["question"],
        "completion": [{"role": "assistant", "content": SOLUTIONS["48"][0]}], "steps": SOLUTIONS["48"][0].split("\n"),
        "answer": [ROWS[0]["answer"]], "topic": None, "labels": [],
    }  # fmt: skip
    assert set(sampler.counts.values()) == {1} and len(sampler.counts) == 7, "equal prefixes are continued once"
    report = json.loads((tmp_path / "report.json").read_text())
    wanted = {"questions": 2, "responses": 7, "lost_responses": 1, "rows": 5, "steps": 11, "unknown_steps": 1, "prefixes": 5,
              "rollouts": 15, "lost_rollouts": 5, "dropped": {"blank": 2, "not_judged": 0}}  # fmt: skip
    assert {name: report[name] for name in wanted} == wanted
    loaded = datasets.load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == dataset.to_list()


def test_other_labels_of_the_same_run(tmp_path):
    """Applied at the end: nothing is sampled again. Half of an eta is allowed."""
    build(tmp_path)
    silent = Scripted()
    silent.sample = None
    solution = SOLUTIONS["48"][1]
    for settings, labels in (
        ({"label_rule": "hard"}, [1.0, 1.0, 0.0]),
        ({"label_rule": "soft"}, [2 / 3, 0.25, 0.0]),
        ({"eta": 0.5}, [2 * math.log((1 + 2 * math.e**0.5) / 3), 2 * math.log((3 + math.e**0.5) / 4), 0.0]),
    ):
        assert by_solution(build(tmp_path, silent, **settings))[solution] == pytest.approx(labels)
    with pytest.raises(DataError, match="rollouts holds a run with other settings: questions"):
        build(tmp_path, split=".")


@pytest.mark.parametrize("at", ["How much?", "48 + 24 = 72."])
def test_a_killed_run_goes_on(tmp_path, at):
    wanted = build(tmp_path / "whole").to_list()
    first, second = Scripted(fails_at=at), Scripted()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "killed", first)
    assert build(tmp_path / "killed", second).to_list() == wanted
    assert sum((first.counts + second.counts).values()) == 8, "what was under way, alone, twice"


class Unable(GoldVerifier):
    """Knows nothing of what holds a plus."""

    def verify(self, inputs):
        found = zip(inputs, super().verify(inputs), strict=True)
        return [Verification(error="no idea") if "+" in item.completion else one for item, one in found]


def test_unknown_is_not_wrong(tmp_path):
    dataset = build(tmp_path, verifier=Unable("GSM8K"))
    assert by_solution(dataset)[SOLUTIONS["48"][0]] == [pytest.approx(math.log((1 + 2 * math.e) / 3)), None, None]
    with pytest.raises(DataError, match="1 solutions without a step; 3 solutions of which nothing"):
        build(tmp_path / "none", questions=[{"id": "x", "question": "$12 is?", "answer": "9" * 2000}])


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(TypeError, match="name the model that is to be sampled"):
        build(tmp_path, GivenResponses({"clips": ["a"], "pay": ["b"]}))
    for wrong in ({"rollouts": 1}, {"label_rule": "mean"}, {"eta": math.nan}, {"split": ""}):
        with pytest.raises(ValueError, match="at least 2|must be one of|split at"):
            ProcessLabelConfig(**wrong)
    with pytest.raises(DataError, match="no gold answer"):
        build(tmp_path, questions=[{"question": "48?"}])


def test_the_command_asks_a_server_to_continue(tmp_path, capsys):
    def reply(prompt, body):
        if prompt.endswith("?"):
            return SOLUTIONS["48"][body["seed"] % 2]
        return "\n#### 72"

    questions = write(tmp_path / "questions.jsonl", ROWS[:1])
    out = tmp_path / "out"
    with FakeServer(reply=reply) as server:
        flags = ["--model", "fake", "--base_url", server.url, "--num_samples", "2", "--rollouts", "3", "--eta", "0.5"]
        argv = ["build-process-labels", str(questions), "--verifier", "gold:GSM8K", "--out", str(out), *flags]
        assert main(argv) == 0
        continued = [body for body in server.bodies if body["messages"][-1]["role"] == "assistant"]
        asked = len(server.bodies)
        assert main(argv) == 0 and len(server.bodies) == asked, "a finished run asks nothing"
    assert continued and all(
        body["continue_final_message"] and not body["add_generation_prompt"] for body in continued
    )
    assert all(body["temperature"] == 1.0 and body["max_tokens"] == 1024 for body in continued)
    printed = table(capsys.readouterr().out)
    assert (printed["rows"], printed["rollouts"], printed["right"]) == ("2", "9", "0.5")
    argv = [*argv[:4], "--out", str(tmp_path / "given"), "--responses", str(questions)]
    assert main(argv) == 2 and "continues the model's own solutions" in capsys.readouterr().err
