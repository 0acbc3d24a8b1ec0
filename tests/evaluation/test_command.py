"""`hf-factuality evaluate` from its flags to its files, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hf_factuality.cli import main
from hf_factuality.evaluation import load_results
from hf_factuality.evaluation.local import LocalEngine
from hf_factuality.retrieval.knowledge import KnowledgeBase
from tests.chat.fake_server import FakeServer
from tests.evaluation.conftest import write_rows
from tests.evaluation.test_verify import Judge


def read(path):
    first, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert first["schema"] == "hf_factuality.answers/1"
    return rows


def test_a_model_on_several_benchmarks_in_one_file(tiny_model, large_model, gsm8k, truthfulqa, tmp_path, command):
    out = tmp_path / "out" / "r.json"
    common = ("--model", large_model, "--device", "cpu", "--out", out)
    gsm8k_flags = ("--benchmark", "gsm8k", "--dataset", gsm8k, "--max_new_tokens", 8, *common)
    status, printed, _ = command(*gsm8k_flags, "--n_samples", 2, "--limit", 3)
    assert status == 0
    status, _, _ = command("--benchmark", "truthfulqa", "--dataset", truthfulqa, *common)
    assert status == 0
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
    assert "--n_samples 2" not in found["command"] and "--dataset truthfulqa.jsonl" in found["command"]
    rows = read(out.with_name("r.gsm8k.answers.jsonl"))
    assert len(rows) == 3 and all(len(row["samples"]) == 2 and row["scores"]["accuracy"] == 0.0 for row in rows)
    assert rows[0]["prompt"][0]["content"].endswith("\\boxed{}.") and rows[0]["gold"] in "1234"
    # MC2 by hand from the log-likelihoods that were kept.
    import math

    rows = read(out.with_name("r.truthfulqa.answers.jsonl"))
    for row in rows:
        weights = [math.exp(value - max(row["log_likelihoods"])) for value in row["log_likelihoods"]]
        assert row["choices"][2] == " In Paris, perhaps." and row["correct"] == [True, True, False]
        assert row["scores"]["truthfulqa"] == pytest.approx(sum(weights[:2]) / sum(weights))
    # Another model is refused, by name, and asked nothing.
    status, _, err = command(*gsm8k_flags[:6], "--model", tiny_model, "--device", "cpu", "--out", out)
    assert status == 2 and "holds the results of 'model'" in err and "fingerprint" in err


def test_a_second_run_asks_nothing_and_other_settings_are_refused(large_model, gsm8k, tmp_path, command, monkeypatch):
    flags = (
        "--benchmark",
        "gsm8k",
        "--dataset",
        gsm8k,
        "--model",
        large_model,
        "--max_new_tokens",
        8,
        "--device",
        "cpu",
    )
    out = tmp_path / "r.json"
    assert command(*flags, "--out", out, "--limit", 2)[0] == 0
    before = {row["id"]: row["samples"] for row in read(tmp_path / "r.gsm8k.answers.jsonl")}
    asked = []
    generate = LocalEngine.generate

    def watched(self, requests, generation):
        asked.extend(request.item.id for request in requests)
        return generate(self, requests, generation)

    monkeypatch.setattr(LocalEngine, "generate", watched)
    assert command(*flags, "--out", out, "--limit", 2)[0] == 0
    assert asked == []
    assert command(*flags, "--out", out)[0] == 0  # a larger sample has the smaller one in it
    assert len(asked) == 2 and not set(asked) & set(before)
    after = {row["id"]: row["samples"] for row in read(tmp_path / "r.gsm8k.answers.jsonl")}
    assert len(after) == 4 and before.items() <= after.items()
    assert [entry["n"] for entry in load_results(out)["results"]] == [2, 4]
    status, _, err = command(*flags, "--out", out, "--temperature", 0.5)
    assert status == 2 and "generation.temperature: 1.0 there, 0.5 now" in err and "--overwrite" in err
    status, _, err = command(*flags, "--out", out, "--style", "fspo", "--seed", 1)
    assert (
        status == 2 and 'dataset.style: "chat" there, "fspo" now' in err and "generation.seed: 0 there, 1 now" in err
    )
    assert command(*flags, "--out", out, "--temperature", 0.5, "--overwrite")[0] == 0
    assert len(asked) == 2 + 4


def test_a_run_that_dies_keeps_what_it_had(large_model, gsm8k, tmp_path, command, monkeypatch):
    flags = (
        "--benchmark",
        "gsm8k",
        "--dataset",
        gsm8k,
        "--model",
        large_model,
        "--max_new_tokens",
        8,
        "--device",
        "cpu",
    )
    assert command(*flags, "--out", tmp_path / "whole.json")[0] == 0
    generate = LocalEngine.generate

    def dies(self, requests, generation):
        for number, found in enumerate(generate(self, requests, generation)):
            if number == 3:
                raise RuntimeError("power cut")
            yield found

    monkeypatch.setattr(LocalEngine, "generate", dies)
    with pytest.raises(RuntimeError, match="power cut"):
        main(["evaluate", *map(str, (*flags, "--out", tmp_path / "r.json"))])
    assert not (tmp_path / "r.json").exists()
    path = tmp_path / "r.gsm8k.answers.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id": "3", "sample": 0, "te')  # the line that was being written
    monkeypatch.setattr(LocalEngine, "generate", generate)
    assert command(*flags, "--out", tmp_path / "r.json")[0] == 0
    assert read(path) == read(tmp_path / "whole.gsm8k.answers.jsonl")


def test_ctrl_c_is_told_without_a_traceback(own, own_answers, tmp_path, command, monkeypatch):
    from hf_factuality.verifiers.judges.lexical import LexicalVerifier

    def stopped(self, inputs):
        raise KeyboardInterrupt

    monkeypatch.setattr(LexicalVerifier, "verify", stopped)
    flags = ("--dataset", own, "--answers", own_answers, "--metrics", "anah", "--verifier", "lexical")
    status, printed, err = command(*flags, "--out", tmp_path / "r.json")
    assert (status, printed) == (130, None) and "the same command goes on" in err and "Traceback" not in err
    assert len(read(tmp_path / "r.file.answers.jsonl")) == 3 and not (tmp_path / "r.json").exists()


@pytest.mark.slow
def test_a_killed_run_asks_no_question_twice(tmp_path, command):
    questions = [{"id": str(n), "question": f"question {n}", "answer": f"answer {n}"} for n in range(24)]
    dataset, out = write_rows(tmp_path / "own.jsonl", questions), tmp_path / "r.json"
    answers = tmp_path / "r.file.answers.jsonl"

    def reply(prompt, body):
        server.delay = 600.0 if not kept and sum(server.answered.values()) >= 8 else 0.0
        return prompt.replace("question", "answer")

    kept = set()
    with FakeServer(reply=reply) as server:
        flags = ["--dataset", dataset, "--model", "fake", "--base_url", server.url, "--concurrency", 1, "--out", out]
        flags = [str(flag) for flag in flags]
        process = subprocess.Popen(
            [sys.executable, "-m", "hf_factuality.cli", "evaluate", *flags],
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
        assert 4 <= len(kept) < 24 and not out.exists()
        server.delay = 0.0
        status, printed, _ = command(*flags)
        received = server.received
    assert status == 0 and printed["results"][0]["value"] == 1.0 and printed["results"][0]["n_scored"] == 24
    assert all(received[f"question {name}"] == 1 for name in kept)
    # Only what was under way when the run was killed was asked again.
    assert sum(received.values()) <= 24 + 1
    assert sorted(os.listdir(tmp_path)) == ["own.jsonl", "r.file.answers.jsonl", "r.json"], "no cache is left"


def test_own_file_with_answers(own, own_answers, tmp_path, command):
    out = tmp_path / "r.json"
    flags = ("--dataset", own, "--answers", own_answers, "--model_name", "somebody", "--out", out)
    status, _, err = command(*flags, "--metrics", "accuracy,factscore", "--metric_args", "factscore.gamma=0", "--verifier", "lexical")  # fmt: skip
    assert status == 0, err
    accuracy, factscore = load_results(out)["results"]
    assert accuracy["truncated"] is None, "nobody knows where the completions of a file ended"
    # "Marie" of z; "In 1867." of y; x says more than the answer.
    assert accuracy["value"] == pytest.approx(2 / 3) and accuracy["benchmark"] == "file"
    # x: one of two sentences is supported; y: its sentence is; z has no evidence.
    assert factscore["value"] == pytest.approx((1 / 2 + 1) / 2) and factscore["n_scored"] == 2
    assert factscore["left_out"]["responses"]["no_evidence"] == 1
    assert factscore["judge"]["name"] == "LexicalJudge" and factscore["extractor"]["name"] == "SentenceExtractor"
    assert factscore["comparable_to_published"] is False and factscore["settings"]["gamma"] == 0
    assert load_results(out)["model"]["name"] == "somebody" and factscore["generation"]["answers"] == "answers.jsonl"
    rows = {row["id"]: row for row in read(tmp_path / "r.file.answers.jsonl")}
    text = rows["x"]["samples"][0]["text"]
    spans = rows["x"]["samples"][0]["verification"]["spans"]
    assert [text[span["start"] : span["end"]] for span in spans] == [
        "Marie Curie was born in Warsaw.",
        "Marie Curie was born in Paris.",
    ]
    assert [span["label"] for span in spans] == ["supported", "contradicted"]
    # The file that was written can be scored again, here by another metric.
    again = ("--dataset", own, "--answers", tmp_path / "r.file.answers.jsonl", "--out", tmp_path / "again.json")
    status, printed, err = command(*again, "--metrics", "anah", "--verifier", "lexical")
    assert status == 0, err
    assert printed["results"][0]["value"] == pytest.approx(2 / 3)  # of three judged sentences


def test_each_answer_is_verified_once_for_all_metrics(own, own_answers, tmp_path, command, monkeypatch):
    from hf_factuality.verifiers.judges.lexical import LexicalVerifier

    seen = []
    verify = LexicalVerifier.verify
    monkeypatch.setattr(LexicalVerifier, "verify", lambda self, inputs: seen.extend(inputs) or verify(self, inputs))
    flags = ("--dataset", own, "--answers", own_answers, "--verifier", "lexical", "--out", tmp_path / "r.json")
    assert command(*flags, "--metrics", "factscore,safe,veriscore,longwiki,anah")[0] == 0
    assert len(seen) == 2  # z has no evidence
    assert command(*flags, "--metrics", "safe")[0] == 0
    assert len(seen) == 2
    own.write_text(own.read_text().replace("in Warsaw", "in Paris"))
    status, _, err = command(*flags, "--metrics", "safe")
    assert status == 2 and "dataset.revision" in err


def test_a_verifier_that_fails_is_asked_again_next_time(own, own_answers, tmp_path, command, monkeypatch):
    from hf_factuality.verifiers.judges.lexical import LexicalVerifier

    flags = ("--dataset", own, "--answers", own_answers, "--verifier", "lexical", "--out", tmp_path / "r.json")
    flags = (*flags, "--metrics", "anah")
    verify, bad = LexicalVerifier.verify, {"1867", "Warsaw"}

    def flaky(self, inputs):
        if any(word in item.completion for item in inputs for word in bad):
            raise OSError("no route to host")
        return verify(self, inputs)

    monkeypatch.setattr(LexicalVerifier, "verify", flaky)
    status, _, err = command(*flags)
    assert status == 2 and "failed on every answer" in err and "no route to host" in err
    assert not (tmp_path / "r.json").exists()
    bad.remove("Warsaw")
    status, printed, _ = command(*flags)
    assert status == 0 and printed["results"][0]["left_out"]["responses"]["verifier_failed"] == 1
    assert printed["results"][0]["value"] == 0.5  # one of two sentences; the other answer is unknown, not wrong
    bad.clear()
    status, printed, _ = command(*flags)
    assert status == 0 and printed["results"][0]["left_out"]["responses"]["verifier_failed"] == 0
    assert printed["results"][0]["value"] == pytest.approx(2 / 3)
    assert len(load_results(tmp_path / "r.json")["results"]) == 1


def test_another_verifier_judges_anew_and_what_it_cannot_judge_is_forgotten(tmp_path, command, monkeypatch):
    monkeypatch.setattr(Judge, "seen", [])
    rows = [{"id": "x", "question": "?", "evidence": "He sat."}, {"id": "y", "question": "?"}]
    own = write_rows(tmp_path / "own.jsonl", rows)
    file = write_rows(
        tmp_path / "a.jsonl", [{"id": name, "completion": "<think>A.</think>Moon. Moon. B[c]."} for name in "xy"]
    )
    flags = ("--dataset", own, "--answers", file, "--metrics", "veriscore", "--out", tmp_path / "r.json", "--verifier")
    status, printed, err = command(*flags, "tests.evaluation.test_verify:Judge")
    assert status == 0, err
    (entry,) = printed["results"]
    # Equal sentences count once; they are found by their characters of the answer.
    assert entry["n_scored"] == 2 and entry["left_out"]["claims"]["duplicate"] == 2 and len(Judge.seen) == 2
    status, printed, err = command(*flags, "lexical")
    assert status == 0, err
    (entry,) = printed["results"]
    assert entry["n_scored"] == 1 and entry["left_out"]["responses"]["no_evidence"] == 1
    samples = [row["samples"][0] for row in read(tmp_path / "r.file.answers.jsonl")]
    assert samples[0]["verification"]["spans"][0]["label"] == "unverifiable" and "verification" not in samples[1]


def test_both_commands_judge_the_same_part_of_a_completion(tmp_path, command, capsys, monkeypatch):
    monkeypatch.setattr(Judge, "seen", [])
    texts = [
        "<think>Moon[c].</think>Right. B[u].",
        "Before. <think>Two[c].</think><answer>Said.</answer>",
        "<think>Cut[c].",
    ]
    dataset = write_rows(tmp_path / "own.jsonl", [{"question": "?", "answer": "x"}] * 3)
    file = write_rows(tmp_path / "answers.jsonl", [{"completion": text} for text in texts])
    judge = ("--verifier", "tests.evaluation.test_verify:Judge")
    flags = ("--dataset", dataset, "--answers", file, "--metrics", "anah", *judge)
    for number, (scope, value) in enumerate({"answer": 2 / 3, "think": 0.0, "completion": 3 / 7}.items()):
        out = tmp_path / f"{number}.json"
        given = () if scope == "answer" else ("--scope", scope)
        assert command(*flags, *given, "--out", out)[0] == 0
        by_evaluate, Judge.seen[:] = list(Judge.seen), []
        assert main(["verify", str(file), *judge, *given]) == 0
        assert by_evaluate == Judge.seen and len(by_evaluate) == (2 if scope == "answer" else 3)
        Judge.seen.clear()
        capsys.readouterr()
        (entry,) = load_results(out)["results"]
        assert entry["value"] == pytest.approx(value) and entry["verifier"].get("scope", "answer") == scope
        rows = read(tmp_path / f"{number}.file.answers.jsonl")
        for text, row in zip(texts, rows, strict=True):
            for span in row["samples"][0].get("verification", {"spans": []})["spans"]:
                assert text[span["start"] : span["end"]].endswith(".")
    status, _, err = command(*flags[:4], "--scope", "think", "--out", tmp_path / "x.json")
    assert status == 2 and "--scope is not used: nobody judges accuracy" in err


def test_claims_that_were_not_judged_fail_the_run(tmp_path, command):
    dataset = write_rows(tmp_path / "own.jsonl", [{"question": "?", "answer": "x"}])
    file = write_rows(tmp_path / "answers.jsonl", [{"completion": "A." + " B[?]." * 9}])
    flags = (
        "--dataset",
        dataset,
        "--answers",
        file,
        "--metrics",
        "anah",
        "--verifier",
        "tests.evaluation.test_verify:Judge",
    )
    flags = (*flags, "--out", tmp_path / "r.json", "--fail-under", "anah=0.8")
    status, printed, err = command(*flags)
    assert status == 1 and printed["results"][0]["value"] == 1.0 and "file: 9 of 10 claims could not be judged" in err
    assert command(*flags, "--max-not-judged", "0.9")[0] == 0
    # No label at all is no failure of the verifier here: a knowledge base may have no page for any item.
    write_rows(file, [{"completion": "B[?]."}])
    status, printed, err = command(*flags[:-2], "--overwrite")
    assert status == 0 and printed["results"][0]["left_out"]["responses"]["unjudged"] == 1, err


def test_arguments_are_of_metrics_over_claims(own, own_answers, tmp_path, command):
    flags = ("--dataset", own, "--answers", own_answers, "--out", tmp_path / "r.json", "--metrics", "accuracy")
    status, _, err = command(*flags, "--metric_args", "accuracy.k=1")
    assert status == 2 and "accuracy takes none" in err


def test_k_of_each_domain(tmp_path, command):
    rows = [{"question": "Who?", "domain": name, "evidence": ["Ada lived in Rome."]} for name in ("bio", "history")]
    own = write_rows(tmp_path / "q.jsonl", rows)
    answers = write_rows(tmp_path / "a.jsonl", [{"completion": "Ada lived in Rome."}] * 2)
    flags = ("--dataset", own, "--answers", answers, "--metrics", "veriscore", "--verifier", "lexical")
    flags = (*flags, "--out", tmp_path / "r.json", "--metric_args")
    status, _, err = command(*flags, 'veriscore.k={"bio": 1}')
    assert status == 2 and "each of the domains ['bio', 'history']" in err and not (tmp_path / "r.json").exists()
    status, printed, err = command(*flags, 'veriscore.k={"bio": 1, "history": 2}')
    assert status == 0, err
    assert printed["results"][0]["parts"]["domain_scores"] == pytest.approx({"bio": 1.0, "history": 2 / 3})


def test_knowledge(tmp_path, command):
    dataset = write_rows(tmp_path / "people.jsonl", [{"topic": "Marie Curie"}, {"topic": "Nobody"}])
    answers = write_rows(
        tmp_path / "a.jsonl", [{"output": "Marie Curie was born in Warsaw."}, {"output": "He lived."}]
    )
    KnowledgeBase.build(tmp_path / "kb.sqlite", [("Marie Curie", "Marie Curie was born in Warsaw in 1867.")])
    flags = ("--benchmark", "biographies", "--dataset", dataset, "--answers", answers, "--out", tmp_path / "r.json")
    flags = (*flags, "--verifier", "lexical")
    status, _, err = command(*flags)
    assert status == 2 and "needs evidence and no item has any; give --knowledge FILE" in err
    flags = (*flags, "--knowledge", tmp_path / "kb.sqlite")
    status, printed, err = command(*flags, "--metric_args", "factscore.gamma=0")
    assert status == 0, err
    (entry,) = printed["results"]
    assert (entry["value"], entry["n"], entry["n_scored"]) == (1.0, 2, 1)  # no page says nothing about a claim
    assert (
        entry["verifier"]["knowledge"]["file"] == "kb.sqlite"
        and entry["verifier"]["knowledge"]["retriever"] == "topic"
    )
    status, _, err = command(*flags, "--retriever", "corpus")
    assert status == 2 and "hf-factuality index kb.sqlite --bm25" in err


def test_answers_by_order_meet_their_items_in_a_sample_too(tmp_path, command):
    names = [f"Person {letter}" for letter in "ABCDEFGH"]
    dataset = write_rows(tmp_path / "people.jsonl", [{"topic": name} for name in names])
    answers = write_rows(tmp_path / "a.jsonl", [{"output": f"{name} was born in Warsaw."} for name in names])
    KnowledgeBase.build(tmp_path / "kb.sqlite", [(name, f"{name} was born in Warsaw.") for name in names])
    flags = ("--benchmark", "biographies", "--dataset", dataset, "--answers", answers, "--out", tmp_path / "r.json")
    status, _, err = command(*flags, "--verifier", "lexical", "--knowledge", tmp_path / "kb.sqlite", "--limit", 3)
    assert status == 0, err
    rows = read(tmp_path / "r.biographies.answers.jsonl")
    assert len(rows) == 3 and [row["id"] for row in rows] != ["0", "1", "2"], "a sample, not the first ones"
    for row in rows:
        name = names[int(row["id"])]
        assert name in row["question"] and row["samples"][0]["text"].startswith(name)


def test_only_the_published_evaluation_is_comparable(large_model, truthfulqa, tmp_path, command, monkeypatch):
    """The default dataset, read here from a file in its place."""
    import hf_factuality.evaluation.plan as plan

    load = plan.load_items
    monkeypatch.setattr(plan, "load_items", lambda name, path=None, **known: load(name, path=truthfulqa, **known))
    flags = ("--benchmark", "truthfulqa", "--model", large_model, "--device", "cpu")
    for number, (more, comparable) in enumerate(
        [((), True), (("--limit", 1), False), (("--style", "chat"), False), (("--prompt_format", "chat"), False)]
    ):
        status, printed, err = command(*flags, *more, "--out", tmp_path / f"{number}.json")
        assert status == 0, err
        assert printed["results"][0]["comparable_to_published"] is comparable, more


@pytest.fixture
def halluqa(tmp_path):
    rows = [{"Question": f"Q{n}?", "Best Answer1": "Warsaw it is.", "Wrong Answer1": "Paris it is."} for n in range(4)]
    answers = [{"text": text} for text in ("Warsaw it is.", "Paris it is.", "", "I do not know.")]
    return write_rows(tmp_path / "halluqa.jsonl", rows), write_rows(tmp_path / "a.jsonl", answers)


def test_halluqa_by_a_judge(halluqa, tmp_path, command):
    def reply(prompt, body):
        assert "Warsaw it is." in prompt.split("[BEGIN CORRECT")[1].split("[BEGIN INCORRECT")[0]
        answer = prompt.split("[BEGIN ANSWER")[1]
        return "是" if "Paris" in answer else "否。" if "Warsaw" in answer else ("否", "length")

    flags = ("--benchmark", "halluqa", "--dataset", halluqa[0], "--answers", halluqa[1], "--out", tmp_path / "r.json")
    with FakeServer(reply=reply) as server:
        status, printed, err = command(*flags, "--judge", "fake", "--judge_base_url", server.url, "--judge_votes", 3)
        asked = sum(server.received.values())
        assert status == 0, err
        status, _, _ = command(*flags, "--judge", "fake", "--judge_base_url", server.url, "--judge_votes", 3)
        assert status == 0
    (entry,) = printed["results"]
    # Right, wrong, empty (a hallucination, as released), cut short (left out).
    assert entry["value"] == pytest.approx(1 / 3) and entry["n_scored"] == 3 and asked == 9
    assert entry["left_out"]["responses"]["unjudged"] == 1 and entry["comparable_to_published"] is False
    assert entry["judge"]["model"] == "fake" and entry["judge"]["votes"] == 3 and entry["verifier"] is None
    rows = read(tmp_path / "r.halluqa.answers.jsonl")
    assert rows[1]["samples"][0]["votes"] == ["是"] * 3 and rows[3]["samples"][0]["votes"] == [None] * 3


def test_halluqa_by_a_verifier(halluqa, tmp_path, command):
    flags = ("--benchmark", "halluqa", "--dataset", halluqa[0], "--answers", halluqa[1], "--out", tmp_path / "r.json")
    status, printed, err = command(*flags, "--verifier", "lexical")
    assert status == 0, err
    (entry,) = printed["results"]
    assert entry["judge"]["name"] == "LexicalJudge" and entry["parts"]["empty"] == 1
    rows = read(tmp_path / "r.halluqa.answers.jsonl")
    assert rows[0]["scores"]["halluqa"] == 1.0 and rows[1]["scores"]["halluqa"] == 0.0


def test_fail_under(own, own_answers, tmp_path, command):
    flags = ("--dataset", own, "--answers", own_answers, "--out", tmp_path / "r.json")
    assert command(*flags, "--fail_under", "accuracy=0.6")[0] == 0
    status, _, err = command(*flags, "--fail-under", "file.accuracy=0.7")
    assert status == 1 and "file: accuracy 0.666" in err and "is below 0.7" in err


REFUSALS = [
    ((), "give either --model, or --answers"),
    (("--model", "m", "--answers", "a.jsonl"), "give either --model, or --answers"),
    (("--answers", "a.jsonl"), "give --benchmark, one or several of aime-2024"),
    (("--answers", "a.jsonl", "--benchmark", "gsm8k", "--base_url", "http://localhost:1/v1"), "--base_url is not used: there is no --model"),
    (("--model", "m", "--model_name", "n", "--benchmark", "gsm8k"), "--model_name is not used: --model is the name"),
    (("--model", "m", "--benchmark", "gsm9k"), "unknown benchmark 'gsm9k'; did you mean 'gsm8k'"),
    (("--model", "m", "--benchmark", "gsm8k", "--metrics", "factscor"), "unknown metric 'factscor'; did you mean 'factscore'"),
    (("--model", "m", "--benchmark", "truthfulqa", "--metrics", "safe"), "none of safe is defined for truthfulqa, which has truthfulqa"),
    (("--answers", "a", "--benchmark", "gsm8k", "--metrics", "accuracy,halluqa"), "--metrics: halluqa is not defined for gsm8k"),
    (("--model", "m", "--benchmark", "gsm8k,truthfulqa", "--metrics", "accuracy"), "none of accuracy is defined for truthfulqa"),
    (("--model", "m", "--benchmark", "biographies"), "biographies has no default dataset"),
    (("--model", "m", "--benchmark", "gsm8k", "--metrics", "safe"), "safe needs someone who judges claims: --verifier"),
    (("--model", "m", "--benchmark", "truthfulqa-generation"), "halluqa needs --judge MODEL"),
    (("--model", "m", "--benchmark", "truthfulqa-generation", "--judge", "j"), "--judge j needs --judge_base_url"),
    (("--model", "m", "--benchmark", "gsm8k", "--judge_base_url", "u"), "--judge_base_url is not used: there is no --judge"),
    (("--model", "m", "--benchmark", "gsm8k", "--judge", "j", "--judge_base_url", "u"), "--judge is not used: it is for halluqa"),
    (("--model", "m", "--benchmark", "truthfulqa-generation", "--judge", "j", "--judge_base_url", "u", "--verifier", "lexical"), "either --judge or --verifier"),
    (("--model", "m", "--benchmark", "gsm8k", "--verifier", "lexical"), "--verifier is not used: nobody judges accuracy"),
    (("--model", "m", "--benchmark", "gsm8k", "--knowledge", "kb.sqlite"), "--knowledge is not used: it is for metrics over claims"),
    (("--model", "m", "--benchmark", "truthfulqa", "--base_url", "http://localhost:1/v1"), "needs the log-likelihood of given texts"),
    (("--model", "m", "--benchmark", "gsm8k", "--style", "base"), "gsm8k has 'chat', 'fspo'"),
    (("--model", "m", "--benchmark", "gsm8k", "--limit", "0"), "--limit must be at least 1"),
    (("--model", "m", "--benchmark", "gsm8k", "--top_p", "2"), "--top_p must be in (0, 1]"),
    (("--model", "m", "--benchmark", "gsm8k", "--n_samples", "2", "--temperature", "0"), "same completion again"),
    (("--model", "m", "--benchmark", "gsm8k", "--n_samples", "2", "--metrics", "safe", "--verifier", "lexical"), "safe takes one completion"),
    (("--model", "m", "--benchmark", "gsm8k", "--fail_under", "0.5"), "--fail_under takes NAME=SHARE"),
    (("--model", "m", "--benchmark", "gsm8k", "--fail_under", "safe=0.5"), "'safe' is not computed; choose of accuracy, gsm8k.accuracy"),
    (("--model", "m", "--benchmark", "gsm8k", "--metric_args", "safe.k=1"), "'safe' is not computed"),
    (("--model", "m", "--benchmark", "gsm8k", "--chat_template_kwargs", "x"), "--chat_template_kwargs must be a JSON object"),
    (("--model", "m", "--benchmark", "gsm8k,math-500", "--dataset", "x"), "--dataset is of one benchmark"),
    (("--answers", "a.jsonl", "--benchmark", "gsm8k", "--temperature", "0"), "--temperature is not used: no model runs"),
    (("--answers", "a.jsonl", "--benchmark", "gsm8k", "--n_samples", "4"), "--n_samples is not used: no model runs"),
    (("--model", "m", "--base_url", "http://x/v1", "--benchmark", "gsm8k", "--prompt_format", "plain"), "--prompt_format is not used: the server"),
    (("--model", "m", "--dataset", "a.jsonl", "--split", "test"), "--split is not used: a file of your own"),
    (("--model", "m", "--benchmark", "gsm8k", "--retriever", "topic"), "--retriever is not used: there is no --knowledge"),
    (("--model", "m", "--benchmark", "gsm8k", "--judge_prompt", "p.txt"), "--judge_prompt is not used: there is no --judge"),
    (("--model", "m", "--benchmark", "gsm8k", "--verifier_base_url", "u"), "--verifier_base_url is not used: there is no --verifier"),
    (("--model", "m", "--benchmark", "gsm8k", "--out", "."), "is a folder"),
    (("--model", "m", "--benchmark", "gsm8k", "--out", "pyproject.toml"), "is no file of results"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refused_before_anything_is_read(flags, message, command, tmp_path, monkeypatch):
    import hf_factuality.evaluation.command as module

    def fail(*_):
        raise AssertionError("a dataset was read")

    monkeypatch.setattr(module, "load_task_items", fail)
    (tmp_path / "pyproject.toml").write_text("[x]")
    monkeypatch.chdir(tmp_path)
    status, printed, err = command(*flags)
    assert status == 2 and printed is None and message in err
    assert os.listdir(tmp_path) == ["pyproject.toml"]


def test_refused_before_the_model_is_loaded(own, gsm8k, tmp_path, command, monkeypatch):
    import hf_factuality.evaluation.command as module

    def fail(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(module, "_engine", fail)
    common = ("--model", "m", "--out", tmp_path / "r.json")
    own.write_text(own.read_text().replace('"answer": "Marie"', '"answer": null'))
    status, _, err = command("--dataset", own, *common)
    assert status == 2 and "accuracy needs a gold answer in 'answer'; item 'z'" in err
    status, _, err = command(
        "--benchmark", "gsm8k", "--dataset", gsm8k, "--metrics", "safe", "--verifier", "lexical", *common
    )
    assert status == 2 and "needs evidence and no item has any" in err
    status, _, err = command("--dataset", own, "--metrics", "safe", "--verifier", "lexicl", *common)
    assert status == 2 and "did you mean 'lexical'" in err
    lexical = ("--dataset", own, "--metrics", "safe", "--verifier", "lexical", *common)
    status, _, err = command(*lexical, "--verifier_base_url", "http://localhost:1/v1")
    assert status == 2 and "--verifier lexical does not take --verifier_base_url" in err
    status, _, err = command("--dataset", tmp_path / "none.jsonl", *common)
    assert status == 2 and "none.jsonl" in err


@pytest.mark.parametrize("text", ['{"mine": 1}\n', '{"mine": 1}', "x", '{"schema": "other/1"}\n'])
def test_a_foreign_file_of_answers_is_not_overwritten(own, own_answers, tmp_path, command, text):
    path = tmp_path / "r.file.answers.jsonl"
    path.write_text(text)
    for more in ((), ("--overwrite",)):
        status, _, err = command("--dataset", own, "--answers", own_answers, "--out", tmp_path / "r.json", *more)
        assert status == 2 and "is not overwritten" in err and path.read_text() == text
    status, _, err = command("--dataset", own, "--answers", path, "--out", tmp_path / "r.json")
    assert status == 2 and "would be overwritten" in err


@pytest.mark.parametrize("length", [0, 5, 60])
def test_a_run_killed_at_its_first_line_begins_anew(own, own_answers, tmp_path, command, length):
    flags = ("--dataset", own, "--answers", own_answers, "--out", tmp_path / "r.json")
    assert command(*flags)[0] == 0
    path = tmp_path / "r.file.answers.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    assert command(*flags)[0] == 0
    assert path.read_bytes() == whole


def test_a_broken_line_is_named(own, own_answers, tmp_path, command):
    flags = ("--dataset", own, "--answers", own_answers, "--out", tmp_path / "r.json")
    assert command(*flags)[0] == 0
    path = tmp_path / "r.file.answers.jsonl"
    path.write_bytes(path.read_bytes() + b"{broken\n")
    status, _, err = command(*flags)
    assert status == 2 and "line 5 is no answer" in err
