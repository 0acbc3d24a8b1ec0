"""`hf-factuality evaluate` from its flags to its files; what it refuses is in tests/cases/commands/evaluate.json."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from filelock import FileLock

import hf_factuality.evaluation.plan
from hf_factuality.cli import main
from hf_factuality.evaluation import load_results
from hf_factuality.evaluation.local import LocalEngine
from hf_factuality.evaluation.model import lock_path
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.verifiers.judges.lexical.judge import LexicalVerifier
from tests.evaluation.conftest import write_rows
from tests.evaluation.judges import Judge, seen
from tests.generation.fake_server import FakeServer


JUDGE = "--verifier tests.evaluation.judges:Judge"


def read(path):
    first, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert first["schema"] == "hf_factuality.answers/1"
    return rows


@pytest.fixture
def evaluate(command, tmp_path, monkeypatch):
    """Runs the command in the folder of the test, into r.json; the flags as they are typed."""
    monkeypatch.chdir(tmp_path)
    return lambda flags: command(*flags.split(), *([] if "--out" in flags else ["--out", "r.json"]))


OWN = "--dataset own.jsonl --answers answers.jsonl"
usually = pytest.mark.usefixtures("own", "own_answers")


def test_a_model_on_several_benchmarks_in_one_file(tiny_model, large_model, gsm8k, truthfulqa, tmp_path, evaluate):
    common = f"--model {large_model} --device cpu --out out/r.json"
    gsm8k_flags = "--benchmark gsm8k --dataset gsm8k.jsonl --max_new_tokens 8"
    status, printed, _ = evaluate(f"{gsm8k_flags} {common} --num_samples 2 --limit 3")
    assert status == 0
    assert evaluate(f"--benchmark truthfulqa --dataset truthfulqa.jsonl {common}")[0] == 0
    out = tmp_path / "out" / "r.json"
    found = load_results(out)
    accuracy, mc = found["results"]
    assert printed["results"] == [accuracy]
    assert (accuracy["metric"], accuracy["n"], accuracy["parts"]["samples"]) == ("accuracy", 3, 6)
    assert accuracy["generation"]["prompt_format"] == "chat" and accuracy["generation"]["top_p"] == 0.9
    assert (mc["metric"], mc["n_scored"], mc["generation"]["prompt_format"]) == ("truthfulqa", 2, "plain")
    assert mc["comparable_to_published"] is False, "a file is not the published dataset"
    assert found["model"]["name"] == "model" and found["model"]["dtype"] == "float32"
    text = out.read_text()
    assert str(tmp_path) not in text and large_model not in text
    assert "--num_samples 2" not in found["command"] and "--dataset truthfulqa.jsonl" in found["command"]
    rows = read(out.with_name("r.gsm8k.answers.jsonl"))
    assert len(rows) == 3 and all(len(row["samples"]) == 2 and row["scores"]["accuracy"] == 0.0 for row in rows)
    assert rows[0]["prompt"][0]["content"].endswith("\\boxed{}.") and rows[0]["gold"] in "1234"
    # MC2 by hand from the log-likelihoods that were kept.
    for row in read(out.with_name("r.truthfulqa.answers.jsonl")):
        weights = [math.exp(value - max(row["log_likelihoods"])) for value in row["log_likelihoods"]]
        assert row["choices"][2] == " In Paris, perhaps." and row["correct"] == [True, True, False]
        assert row["scores"]["truthfulqa"] == pytest.approx(sum(weights[:2]) / sum(weights))
    # Another model is refused, by name, and asked nothing.
    status, _, err = evaluate(f"{gsm8k_flags} --model {tiny_model} --device cpu --out out/r.json")
    assert status == 2 and "holds the results of 'model'" in err and "fingerprint" in err


def test_a_second_run_asks_nothing_and_other_settings_are_refused(large_model, gsm8k, tmp_path, evaluate, monkeypatch):
    flags = f"--benchmark gsm8k --dataset gsm8k.jsonl --model {large_model} --max_new_tokens 8 --device cpu"
    assert evaluate(f"{flags} --limit 2")[0] == 0
    before = {row["id"]: row["samples"] for row in read(tmp_path / "r.gsm8k.answers.jsonl")}
    asked = []
    generate = LocalEngine.generate

    def watched(self, requests, generation):
        asked.extend(request.item.id for request in requests)
        return generate(self, requests, generation)

    monkeypatch.setattr(LocalEngine, "generate", watched)
    assert evaluate(f"{flags} --limit 2")[0] == 0 and asked == []
    assert evaluate(flags)[0] == 0  # a larger sample has the smaller one in it
    assert len(asked) == 2 and not set(asked) & set(before)
    after = {row["id"]: row["samples"] for row in read(tmp_path / "r.gsm8k.answers.jsonl")}
    assert len(after) == 4 and before.items() <= after.items()
    assert [entry["n"] for entry in load_results("r.json")["results"]] == [2, 4]
    status, _, err = evaluate(f"{flags} --temperature 0.5")
    assert status == 2 and "generation.temperature: 1.0 there, 0.5 now" in err and "--overwrite" in err
    status, _, err = evaluate(f"{flags} --style fspo --seed 1")
    assert status == 2 and 'dataset.style: "chat" there, "fspo" now' in err
    assert "generation.seed: 0 there, 1 now" in err
    assert evaluate(f"{flags} --temperature 0.5 --overwrite")[0] == 0
    assert len(asked) == 2 + 4


def test_a_run_that_dies_keeps_what_it_had(large_model, gsm8k, tmp_path, evaluate, monkeypatch):
    flags = f"--benchmark gsm8k --dataset gsm8k.jsonl --model {large_model} --max_new_tokens 8 --device cpu"
    assert evaluate(f"{flags} --out whole.json")[0] == 0
    generate = LocalEngine.generate

    def dies(self, requests, generation):
        for number, found in enumerate(generate(self, requests, generation)):
            if number == 3:
                raise RuntimeError("power cut")
            yield found

    monkeypatch.setattr(LocalEngine, "generate", dies)
    with pytest.raises(RuntimeError, match="power cut"):
        evaluate(flags)
    assert not (tmp_path / "r.json").exists()
    path = tmp_path / "r.gsm8k.answers.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id": "3", "sample": 0, "te')  # the line that was being written
    monkeypatch.setattr(LocalEngine, "generate", generate)
    assert evaluate(flags)[0] == 0
    assert read(path) == read(tmp_path / "whole.gsm8k.answers.jsonl")


@usually
def test_ctrl_c_is_told_without_a_traceback(tmp_path, evaluate, monkeypatch):
    def stopped(self, inputs):
        raise KeyboardInterrupt

    monkeypatch.setattr(LexicalVerifier, "verify", stopped)
    status, printed, err = evaluate(f"{OWN} --metrics anah --verifier lexical")
    assert (status, printed) == (130, None) and "the same command goes on" in err and "Traceback" not in err
    assert len(read(tmp_path / "r.file.answers.jsonl")) == 3 and not (tmp_path / "r.json").exists()


@usually
def test_two_runs_do_not_share_a_file(tmp_path, evaluate):
    with FileLock(lock_path(tmp_path / "r.json")):
        status, _, err = evaluate(OWN)
    assert status == 2 and "another run writes to 'r.json'" in err
    assert evaluate(OWN)[0] == 0


@pytest.mark.slow
def test_a_killed_run_asks_no_question_twice(tmp_path, evaluate):
    questions = [{"id": str(n), "question": f"question {n}", "answer": f"answer {n}"} for n in range(24)]
    write_rows(tmp_path / "own.jsonl", questions)
    answers = tmp_path / "r.file.answers.jsonl"

    def reply(prompt, body):
        server.delay = 600.0 if not kept and sum(server.answered.values()) >= 8 else 0.0
        return prompt.replace("question", "answer")

    kept = set()
    with FakeServer(reply=reply) as server:
        flags = f"--dataset own.jsonl --model fake --base_url {server.url} --concurrency 1 --out r.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "hf_factuality", "evaluate", *flags.split()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and process.poll() is None:
            if answers.exists() and answers.read_bytes().count(b"\n") >= 6:
                break
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read().decode()
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = {json.loads(line)["id"] for line in answers.read_text().splitlines()[1:]}
        assert 4 <= len(kept) < 24 and not (tmp_path / "r.json").exists()
        server.delay = 0.0
        status, printed, _ = evaluate(flags)
        received = server.received
    assert status == 0 and printed["results"][0]["value"] == 1.0 and printed["results"][0]["n_scored"] == 24
    assert all(received[f"question {name}"] == 1 for name in kept)
    # Only what was under way when the run was killed was asked again.
    assert sum(received.values()) <= 24 + 1
    assert sorted(os.listdir(tmp_path)) == ["own.jsonl", "r.file.answers.jsonl", "r.json"], "no cache is left"


@usually
def test_own_file_with_answers(tmp_path, evaluate):
    metrics = "--metrics accuracy,factscore --metric_args factscore.gamma=0 --verifier lexical"
    status, _, err = evaluate(f"{OWN} --model_name somebody {metrics}")
    assert status == 0, err
    accuracy, factscore = load_results("r.json")["results"]
    assert accuracy["truncated"] is None, "nobody knows where the completions of a file ended"
    # "Marie" of z; "In 1867." of y; x says more than the answer.
    assert accuracy["value"] == pytest.approx(2 / 3) and accuracy["benchmark"] == "file"
    # x: one of two sentences is supported; y: its sentence is; z has no evidence.
    assert factscore["value"] == pytest.approx((1 / 2 + 1) / 2) and factscore["n_scored"] == 2
    assert factscore["left_out"]["responses"]["no_evidence"] == 1
    assert factscore["judge"]["name"] == "LexicalJudge" and factscore["extractor"]["name"] == "SentenceExtractor"
    assert factscore["comparable_to_published"] is False and factscore["settings"]["gamma"] == 0
    assert load_results("r.json")["model"]["name"] == "somebody"
    assert factscore["generation"]["answers"] == "answers.jsonl"
    rows = {row["id"]: row for row in read(tmp_path / "r.file.answers.jsonl")}
    sample = rows["x"]["samples"][0]
    assert [(sample["text"][it["start"] : it["end"]], it["label"]) for it in sample["verification"]["spans"]] == [
        ("Marie Curie was born in Warsaw.", "supported"),
        ("Marie Curie was born in Paris.", "contradicted"),
    ]
    # The file that was written can be scored again, here by another metric.
    again = "--dataset own.jsonl --answers r.file.answers.jsonl --out again.json --metrics anah --verifier lexical"
    status, printed, err = evaluate(again)
    assert status == 0, err
    assert printed["results"][0]["value"] == pytest.approx(2 / 3)  # of three judged sentences


def test_an_own_file_that_holds_a_list(tmp_path, evaluate):
    rows = [{"id": None, "question": "Who?", "answer": "Ada"}, {"id": None, "question": "Wer?", "answer": "Ünï"}]
    (tmp_path / "own.json").write_text(json.dumps(rows, indent=1))
    write_rows(tmp_path / "answers.jsonl", [{"id": 1, "text": "ünï"}, {"id": 0, "text": "Marie"}])
    status, printed, err = evaluate(OWN.replace("own.jsonl", "own.json"))
    assert status == 0, err
    assert printed["results"][0]["value"] == 0.5
    assert [row["scores"]["accuracy"] for row in read(tmp_path / "r.file.answers.jsonl")] == [0.0, 1.0]


@usually
def test_each_answer_is_verified_once_for_all_metrics(tmp_path, evaluate, monkeypatch):
    asked = []
    verify = LexicalVerifier.verify
    monkeypatch.setattr(LexicalVerifier, "verify", lambda self, inputs: asked.extend(inputs) or verify(self, inputs))
    assert evaluate(f"{OWN} --verifier lexical --metrics factscore,safe,veriscore,longwiki,anah")[0] == 0
    assert len(asked) == 2  # z has no evidence
    assert evaluate(f"{OWN} --verifier lexical --metrics safe")[0] == 0
    assert len(asked) == 2
    own = tmp_path / "own.jsonl"
    own.write_text(own.read_text().replace("in Warsaw", "in Paris"))
    status, _, err = evaluate(f"{OWN} --verifier lexical --metrics safe")
    assert status == 2 and "dataset.revision" in err


@usually
def test_a_verifier_that_fails_is_asked_again_next_time(tmp_path, evaluate, monkeypatch):
    flags = f"{OWN} --verifier lexical --metrics anah"
    verify, bad = LexicalVerifier.verify, {"1867", "Warsaw"}

    def flaky(self, inputs):
        if any(word in item.completion for item in inputs for word in bad):
            raise OSError("no route to host")
        return verify(self, inputs)

    monkeypatch.setattr(LexicalVerifier, "verify", flaky)
    status, _, err = evaluate(flags)
    assert status == 2 and "failed on every answer" in err and "no route to host" in err
    assert not (tmp_path / "r.json").exists()
    # One of two sentences; the other answer is unknown, not wrong.
    for mended, failed, value in (("Warsaw", 1, 0.5), ("1867", 0, pytest.approx(2 / 3))):
        bad.remove(mended)
        status, printed, _ = evaluate(flags)
        (entry,) = printed["results"]
        assert status == 0 and entry["left_out"]["responses"]["verifier_failed"] == failed and entry["value"] == value
    assert len(load_results("r.json")["results"]) == 1


def test_another_verifier_judges_anew_and_what_it_cannot_judge_is_forgotten(tmp_path, evaluate):
    rows = [{"id": "x", "question": "?", "evidence": "He sat."}, {"id": "y", "question": "?"}]
    write_rows(tmp_path / "own.jsonl", rows)
    said = [{"id": name, "completion": "<think>A.</think>Moon. Moon. B[c]."} for name in "xy"]
    write_rows(tmp_path / "answers.jsonl", said)
    status, printed, err = evaluate(f"{OWN} --metrics veriscore {JUDGE}")
    assert status == 0, err
    (entry,) = printed["results"]
    # Equal sentences count once; they are found by their characters of the answer.
    assert entry["n_scored"] == 2 and entry["left_out"]["claims"]["duplicate"] == 2 and len(seen()) == 2
    status, printed, err = evaluate(f"{OWN} --metrics veriscore --verifier lexical")
    assert status == 0, err
    (entry,) = printed["results"]
    assert entry["n_scored"] == 1 and entry["left_out"]["responses"]["no_evidence"] == 1
    samples = [row["samples"][0] for row in read(tmp_path / "r.file.answers.jsonl")]
    assert samples[0]["verification"]["spans"][0]["label"] == "unverifiable" and "verification" not in samples[1]


@pytest.mark.parametrize(("scope", "value"), [("answer", 2 / 3), ("think", 0.0), ("completion", 3 / 7)])
def test_both_commands_judge_the_same_part_of_a_completion(tmp_path, evaluate, scope, value):
    texts = [
        "<think>Moon[c].</think>Right. B[u].",
        "Before. <think>Two[c].</think><answer>Said.</answer>",
        "<think>Cut[c].",
    ]
    write_rows(tmp_path / "own.jsonl", [{"question": "?", "answer": "x"}] * 3)
    write_rows(tmp_path / "answers.jsonl", [{"completion": text} for text in texts])
    given = "" if scope == "answer" else f"--scope {scope}"
    assert evaluate(f"{OWN} --metrics anah {JUDGE} {given}")[0] == 0
    by_evaluate = seen()
    Judge.calls.clear()
    assert main(["verify", "answers.jsonl", *JUDGE.split(), *given.split()]) == 0
    assert by_evaluate == seen() and len(by_evaluate) == (2 if scope == "answer" else 3)
    (entry,) = load_results("r.json")["results"]
    assert entry["value"] == pytest.approx(value) and entry["verifier"].get("scope", "answer") == scope
    for text, row in zip(texts, read(tmp_path / "r.file.answers.jsonl"), strict=True):
        for span in row["samples"][0].get("verification", {"spans": []})["spans"]:
            assert text[span["start"] : span["end"]].endswith(".")


def people(tmp_path, names, said, pages):
    write_rows(tmp_path / "people.jsonl", [{"topic": name} for name in names])
    write_rows(tmp_path / "answers.jsonl", [{"output": text} for text in said])
    KnowledgeBase.build(tmp_path / "kb.sqlite", pages)
    return "--benchmark biographies --dataset people.jsonl --answers answers.jsonl --verifier lexical"


def test_knowledge(tmp_path, evaluate):
    pages = [("Marie Curie", "Marie Curie was born in Warsaw in 1867.")]
    flags = people(tmp_path, ["Marie Curie", "Nobody"], ["Marie Curie was born in Warsaw.", "He lived."], pages)
    status, _, err = evaluate(flags)
    assert status == 2 and "needs evidence and no item has any; give --knowledge FILE" in err
    status, printed, err = evaluate(f"{flags} --knowledge kb.sqlite --metric_args factscore.gamma=0")
    assert status == 0, err
    (entry,) = printed["results"]
    assert (entry["value"], entry["n"], entry["n_scored"]) == (1.0, 2, 1)  # no page says nothing about a claim
    knowledge = entry["verifier"]["knowledge"]
    assert (knowledge["file"], knowledge["retriever"]) == ("kb.sqlite", "topic")
    status, _, err = evaluate(f"{flags} --knowledge kb.sqlite --retriever corpus")
    assert status == 2 and "hf-factuality index kb.sqlite` with --bm25" in err


def test_answers_by_order_meet_their_items_in_a_sample_too(tmp_path, evaluate):
    names = [f"Person {letter}" for letter in "ABCDEFGH"]
    said = [f"{name} was born in Warsaw." for name in names]
    flags = people(tmp_path, names, said, list(zip(names, said, strict=True)))
    status, _, err = evaluate(f"{flags} --knowledge kb.sqlite --limit 3")
    assert status == 0, err
    rows = read(tmp_path / "r.biographies.answers.jsonl")
    assert len(rows) == 3 and [row["id"] for row in rows] != ["0", "1", "2"], "a sample, not the first ones"
    for row in rows:
        name = names[int(row["id"])]
        assert name in row["question"] and row["samples"][0]["text"].startswith(name)


@pytest.mark.parametrize(
    ("more", "comparable"),
    [("", True), ("--limit 1", False), ("--style chat", False), ("--prompt_format chat", False)],
)
def test_only_the_published_evaluation_is_comparable(large_model, truthfulqa, evaluate, monkeypatch, more, comparable):
    """The default dataset, read here from a file in its place."""
    module = hf_factuality.evaluation.plan
    load = module.load_items
    monkeypatch.setattr(module, "load_items", lambda name, path=None, **known: load(name, path=truthfulqa, **known))
    status, printed, err = evaluate(f"--benchmark truthfulqa --model {large_model} --device cpu {more}")
    assert status == 0, err
    assert printed["results"][0]["comparable_to_published"] is comparable


def test_halluqa_by_a_judge(tmp_path, evaluate):
    def reply(prompt, body):
        assert "Warsaw it is." in prompt.split("[BEGIN CORRECT")[1].split("[BEGIN INCORRECT")[0]
        answer = prompt.split("[BEGIN ANSWER")[1]
        return "是" if "Paris" in answer else "否。" if "Warsaw" in answer else ("否", "length")

    rows = [{"Question": f"Q{n}?", "Best Answer1": "Warsaw it is.", "Wrong Answer1": "Paris it is."} for n in range(4)]
    write_rows(tmp_path / "halluqa.jsonl", rows)
    said = ("Warsaw it is.", "Paris it is.", "", "I do not know.")
    write_rows(tmp_path / "answers.jsonl", [{"text": text} for text in said])
    with FakeServer(reply=reply) as server:
        judge = f"--judge fake --judge_base_url {server.url} --judge_votes 3"
        flags = f"--benchmark halluqa --dataset halluqa.jsonl --answers answers.jsonl {judge}"
        status, printed, err = evaluate(flags)
        asked = sum(server.received.values())
        assert status == 0, err
        assert evaluate(flags)[0] == 0
    (entry,) = printed["results"]
    # Right, wrong, empty (a hallucination, as released), cut short (left out).
    assert entry["value"] == pytest.approx(1 / 3) and entry["n_scored"] == 3 and asked == 9
    assert entry["left_out"]["responses"]["unjudged"] == 1 and entry["comparable_to_published"] is False
    assert entry["judge"]["model"] == "fake" and entry["judge"]["votes"] == 3 and entry["verifier"] is None
    rows = read(tmp_path / "r.halluqa.answers.jsonl")
    assert rows[1]["samples"][0]["votes"] == ["是"] * 3 and rows[3]["samples"][0]["votes"] == [None] * 3


@usually
@pytest.mark.parametrize("text", ['{"mine": 1}\n', '{"mine": 1}', "x", '{"schema": "other/1"}\n'])
def test_a_foreign_file_of_answers_is_not_overwritten(tmp_path, evaluate, text):
    path = tmp_path / "r.file.answers.jsonl"
    path.write_text(text)
    for more in ("", "--overwrite"):
        status, _, err = evaluate(f"{OWN} {more}")
        assert status == 2 and "is not overwritten" in err and path.read_text() == text
    status, _, err = evaluate("--dataset own.jsonl --answers r.file.answers.jsonl")
    assert status == 2 and "would be overwritten" in err


@usually
@pytest.mark.parametrize("length", [0, 5, 60])
def test_a_run_killed_at_its_first_line_begins_anew(tmp_path, evaluate, length):
    assert evaluate(OWN)[0] == 0
    path = tmp_path / "r.file.answers.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    assert evaluate(OWN)[0] == 0
    assert path.read_bytes() == whole
    path.write_bytes(whole + b"{broken\n")
    status, _, err = evaluate(OWN)
    assert status == 2 and "line 5 is no answer" in err
