"""Runs of Inspect against a scripted server: scores are those of `hf-factuality evaluate` on the same answers."""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import pytest


pytest.importorskip("inspect_ai", reason="needs hf_factuality[inspect]")

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import get_model

import hf_factuality
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.inspect_eval import tasks
from hf_factuality.inspect_eval.judging import AnswerJudging
from hf_factuality.inspect_eval.scorers import SCORERS, arguments_of
from hf_factuality.inspect_eval.tasks import TASKS
from hf_factuality.retrieval import KnowledgeBase
from hf_factuality.spans import Label, LabeledSpan, Verification
from tests.generation.fake_server import FakeServer


PEOPLE = ("Marie Curie", "Ada Lovelace", "Alan Turing", "Grace Hopper", "Emmy Noether", "Niels Bohr")
SAID = {
    "Marie Curie": "Marie Curie was born in Warsaw. She won two prizes in Paris.",
    "Ada Lovelace": "Ada Lovelace was born in Rome.",
    "Alan Turing": "I do not know who that is.",
    "Grace Hopper": "",
    "Emmy Noether": "Emmy Noether was born in Warsaw. <b>She</b> won *three* prizes. BROKEN",
    "Niels Bohr": "Niels Bohr was born in Warsaw. Niels Bohr won two prizes.",
}


class Careful:
    """Calls a sentence with "Warsaw" supported, one with "Rome" contradicted; fails on "BROKEN"."""

    requires_evidence = False

    def verify(self, inputs):
        return [self._one(it.completion) for it in inputs]

    def _one(self, text):
        if "BROKEN" in text:
            return Verification(error="the judge is broken")
        if "not know" in text:
            return Verification(abstained=True)
        spans, place = [], 0
        for sentence in text.split(". "):
            start = text.index(sentence, place)
            place = start + len(sentence)
            label = Label.SUPPORTED if "Warsaw" in sentence else Label.CONTRADICTED if "Rome" in sentence else None
            spans.append(LabeledSpan(start, place, label, evidence="a page | with *marks*"))
        return Verification(spans=tuple(spans) if text.strip() else ())


VERIFIER = f"{__name__}:Careful"


def reply(prompt, body):
    return next((text for name, text in SAID.items() if name in prompt), "What?")


@pytest.fixture(scope="module")
def model():
    with FakeServer(reply) as server:
        yield get_model("openai-api/fake/fake", base_url=server.url, api_key="none", memoize=False)


@pytest.fixture
def data(tmp_path) -> dict[str, Path]:
    def rows(name, of):
        path = tmp_path / name
        path.write_text("".join(json.dumps(of(number, person)) + "\n" for number, person in enumerate(PEOPLE)))
        return path

    (tmp_path / "people.txt").write_text("\n".join(PEOPLE))
    return {
        "biographies": tmp_path / "people.txt",
        "longfact": rows("longfact-objects_people.jsonl", lambda _, name: {"prompt": f"Tell me about {name}."}),
        "gsm8k": rows(
            "gsm8k.jsonl", lambda number, name: {"question": f"Prizes of {name}?", "answer": f"#### {number}"}
        ),
        "simpleqa": rows("simpleqa.jsonl", lambda _, name: {"problem": f"Where was {name} born?", "answer": "Warsaw"}),
        "abstentionbench": rows(
            "unknown.jsonl",
            lambda number, name: {
                "question": f"Where was {name} born?",
                "should_abstain": number % 3 == 2,
                "reference_answers": ["Warsaw"],
                "scenario": "stale",
            },
        ),
    }


def run(task, model, tmp_path, **settings):
    settings |= {"log_dir": str(tmp_path / "logs"), "display": "none", "log_level": "error"}
    (log,) = inspect_eval(task, model=model, **settings)
    assert log.status == "success", log.error
    return log


def completions(log, path) -> Path:
    rows = [{"id": it.id, "completion": it.output.completion} for it in log.samples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values(log, name):
    (found,) = (it for it in log.results.scores if it.name == name)
    return found, {key: it.value for key, it in found.metrics.items()}


CASES = {
    "factscore": ("biographies", {"verifier": VERIFIER}, ("factscore",)),
    "veriscore": ("longfact", {"verifier": VERIFIER}, ("veriscore",)),
    "longfact": ("longfact", {"verifier": VERIFIER}, ("safe", "veriscore")),
    "simpleqa": ("simpleqa", {"match": "contained"}, ("abstention",)),
    "abstention": ("abstentionbench", {"match": "contained"}, ("abstention",)),
    "benchmark": ("gsm8k", {}, ("accuracy",)),
}


@pytest.mark.parametrize("task", CASES)
def test_scores_are_those_of_evaluate(task, model, data, tmp_path):
    benchmark, who, metrics = CASES[task]
    named = {"benchmark": benchmark} if task == "benchmark" else {}
    log = run(TASKS[task](data_files=str(data[benchmark]), **named, **who), model, tmp_path)
    assert [it.name for it in log.results.scores] == list(metrics)
    found = hf_factuality.evaluate(
        benchmark=benchmark,
        dataset=data[benchmark],
        answers=completions(log, tmp_path / "answers.jsonl"),
        metrics=metrics,
        out=tmp_path / "results.json",
        **who,
    )
    for entry in found.results:
        score, measured = values(log, entry["metric"])
        assert measured[entry["metric"]] == pytest.approx(entry["value"], abs=1e-12)
        ends = entry["confidence_interval"]
        assert (measured["low"], measured["high"]) == pytest.approx((ends["low"], ends["high"]), abs=1e-12)
        parts = {name: it for name, it in entry["parts"].items() if type(it) in (int, float)}
        assert {name: measured[name] for name in parts} == pytest.approx(parts, abs=1e-12)
        # A failed judgement is unscored, as it is left out there; one that declines is an answer, and has no number.
        failed = sum(
            entry["left_out"]["responses"].get(name, 0) for name in ("missing", "verifier_failed", "unjudged")
        )
        assert (score.unscored_samples, score.scored_samples) == (failed, len(PEOPLE) - failed)


def test_samples_hold_what_was_found(model, data, tmp_path):
    log = run(TASKS["factscore"](data_files=str(data["biographies"]), verifier=VERIFIER), model, tmp_path)
    scores = {it.metadata["benchmark_item"]["topic"]: it.scores["factscore"] for it in log.samples}
    curie = scores["Marie Curie"]
    assert curie.value == pytest.approx(math.exp(1 - 10 / 2))  # of its two claims one was judged
    span = curie.metadata["answer"]["verification"]["spans"][0]
    assert (span["label"], span["start"], span["end"]) == ("supported", 0, 30)
    assert "- *supported*: Marie Curie was born in Warsaw" in curie.explanation
    assert "a page | with \\*marks\\*" in curie.explanation and "*not judged*" in curie.explanation
    assert (scores["Alan Turing"].value, scores["Emmy Noether"].reason) == ("N", "grader_failed")
    assert math.isnan(scores["Emmy Noether"].value) and scores["Emmy Noether"].explanation.startswith("not judged")


def test_long_form_has_the_axes_of_the_suite(model, data, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text(
        "".join(
            json.dumps({"question": f"Tell me about {name}.", "topic": name, "checklist": ["Warsaw"]}) + "\n"
            for name in PEOPLE
        )
    )
    who = {"verifier": "lexical", "data_files": str(data)}
    KnowledgeBase.build(tmp_path / "kb.sqlite", [(name, f"{name} was born in Warsaw.") for name in PEOPLE])
    log = run(TASKS["long_form"](benchmark="file", knowledge=str(tmp_path / "kb.sqlite"), **who), model, tmp_path)
    found = hf_factuality.evaluate(
        suite="long-form",
        dataset=data,
        answers=completions(log, tmp_path / "answers.jsonl"),
        knowledge=tmp_path / "kb.sqlite",
        verifier="lexical",
        out=tmp_path / "suite.json",
    )
    (row,) = found.comparison["rows"]
    _, measured = values(log, "long_form")
    wanted = {name: it for name, it in row.items() if type(it) in (int, float)}
    assert {name: measured[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
    assert row["recall"] is not None and row["correct"] > 0


def test_a_judge_on_a_server(model, data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache.sqlite"))

    def verdict(prompt, body):
        return "CORRECT" if "in Warsaw" in prompt else "hm" if "in Rome" in prompt else "NOT_ATTEMPTED"

    with FakeServer(verdict) as judge:
        who = {"judge": "fake", "judge_base_url": judge.url}
        log = run(TASKS["simpleqa"](data_files=str(data["simpleqa"]), **who), model, tmp_path)
        found = hf_factuality.evaluate(
            benchmark="simpleqa",
            dataset=data["simpleqa"],
            answers=completions(log, tmp_path / "answers.jsonl"),
            out=tmp_path / "results.json",
            **who,
        )
    score, measured = values(log, "abstention")
    (entry,) = found.results
    assert measured["abstention"] == entry["value"] is not None
    assert score.unscored_samples == entry["left_out"]["responses"]["unjudged"] > 0


def test_a_scorer_in_a_task_of_ones_own(model, tmp_path):
    facts = {"evidence": "Marie Curie was born in Warsaw. She won two prizes in Paris."}
    samples = [Sample(input=f"Where was {name} born?", target="Warsaw", metadata=facts) for name in PEOPLE[:2]]
    task = Task(dataset=samples, scorer=[SCORERS["veriscore"](verifier="lexical"), SCORERS["accuracy"]()])
    log = run(task, model, tmp_path)
    first, second = (it.scores["veriscore"] for it in log.samples)
    assert first.value == 1 and "*supported*: She won two prizes in Paris" in first.explanation
    assert second.value != 1 and values(log, "veriscore")[1]["precision"] < 1
    assert values(log, "accuracy")[1]["accuracy"] == 0  # a sentence is not the same as a word


def test_epochs_are_samples_of_accuracy(tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    said = iter("2325")
    with FakeServer(lambda prompt, body: next(said)) as server:
        model = get_model("openai-api/fake/fake", base_url=server.url, api_key="none", memoize=False)
        task = TASKS["benchmark"](benchmark="file", data_files=str(questions))
        _, measured = values(run(task, model, tmp_path, epochs=4), "accuracy")
    assert measured["accuracy"] == 0.5 and measured["samples"] == 4


class Once:
    """Fails, and counts the rows that it was shown."""

    requires_evidence, shown = False, 0

    def verify(self, inputs):
        type(self).shown += len(inputs)
        return [Verification(error="down")] * len(inputs)


def test_two_calls_for_one_answer_that_fails_and_a_third_that_is_known():
    """Epochs may ask for the same answer at once; what failed is asked again, what is known is not."""
    given = json.loads(arguments_of("factscore", {"benchmark": "file", "metrics": None, "suite": None}))
    failing, item = AnswerJudging({**given, "verifier": f"{__name__}:Once"}), BenchmarkItem("1", (), "Who?")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: failing.judge(item, "She was born."), range(4)))
    assert [it["verification"]["error"] for it in found] == ["down"] * 4 and 1 <= Once.shown <= 4
    judging = AnswerJudging({**given, "verifier": VERIFIER})
    first, again = (judging.judge(item, "Born in Warsaw.") for _ in range(2))
    assert first is again and first["verification"]["spans"][0]["label"] == "supported"


def test_sampling_is_the_benchmarks_and_has_no_seed_that_would_repeat(data):
    task = TASKS["benchmark"](benchmark="gsm8k", data_files=str(data["gsm8k"]))
    assert (task.config.temperature, task.config.top_p, task.config.max_tokens) == (1.0, 0.9, 4096)
    assert task.config.seed is None
    greedy = TASKS["simpleqa"](data_files=str(data["simpleqa"]), match="contained")
    assert (greedy.config.temperature, greedy.config.top_p) == (0.0, None)


def test_the_entry_point_is_declared():
    setup = (Path(__file__).resolve().parents[2] / "setup.py").read_text(encoding="utf-8")
    assert f'"hf_factuality = {tasks.__name__}"' in setup


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("factscore", {"data_files": "biographies"}, "needs someone who judges claims"),
        ("factscore", {"data_files": "nowhere.jsonl", "verifier": "lexical"}, "no such file"),
        ("factscore", {"data_files": "biographies", "verifier": "lexical"}, "needs evidence and no item has any"),
        ("simpleqa", {"data_files": "simpleqa", "match": "contained", "style": "fspo"}, "begins the answer"),
        ("benchmark", {"benchmark": "truthfulqa", "data_files": "simpleqa"}, "columns"),
        ("benchmark", {}, "give"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_question(task, arguments, message, data):
    given = {**arguments}
    if "data_files" in given:
        given["data_files"] = str(data.get(given["data_files"], given["data_files"]))
    with pytest.raises((DataError, ValueError), match=message):
        TASKS[task](**given)


@pytest.mark.slow
def test_the_command_on_a_model_of_this_machine(tiny_model, data, tmp_path):
    """`inspect eval` finds the task by the entry point; greedy decoding is that of `evaluate`."""
    if not any(it.value == tasks.__name__ for it in entry_points(group="inspect_ai")):
        pytest.skip("the package is not installed with its entry point")
    command = [sys.executable, "-m", "inspect_ai", "eval", "hf_factuality/simpleqa", "--model", "hf/tiny"]
    command += ["-M", f"model_path={tiny_model}", "--max-tokens", "16", "--log-dir", str(tmp_path / "logs")]
    command += ["-T", f"data_files={data['simpleqa']}", "-T", "match=contained", "--display", "plain"]
    # In a folder with `hf_factuality` in it Inspect takes the name for a path.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (path,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(path))
    found = hf_factuality.evaluate(
        model=tiny_model,
        benchmark="simpleqa",
        dataset=data["simpleqa"],
        match="contained",
        max_new_tokens=16,
        device="cpu",
        batch_size=6,
        out=tmp_path / "results.json",
    )
    _, measured = values(log, "abstention")
    assert measured["abstention"] == found.results[0]["value"]
    rows = [json.loads(line) for line in (tmp_path / "results.simpleqa.answers.jsonl").read_text().splitlines()[1:]]
    assert [it.output.completion for it in log.samples] == [row["samples"][0]["text"] for row in rows]
