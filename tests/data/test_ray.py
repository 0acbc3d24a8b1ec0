"""The engine ray: the same datasets as here, also when a worker is killed, and no verdict asked for twice."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from hf_factuality.cli import main
from hf_factuality.data import preferences_from
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.errors import JudgingError
from hf_factuality.generation.client import ChatClient
from hf_factuality.io.ray import _packed, ray_map
from hf_factuality.spans import LabeledSpan, Verification
from hf_factuality.verifiers import SentenceExtractor, VerifierPipeline
from hf_factuality.verifiers.judges.llm import LLMJudge
from tests.data.test_build_preferences import judged
from tests.generation.fake_server import FAST, FakeServer


PLACES = ("Leeds", "Hull", "Bath", "York")
CONCURRENCY = 4


def judge(base_url):
    """With a cache, which all workers share."""
    client = ChatClient(base_url, "fake", retry=FAST, concurrency=CONCURRENCY)
    return VerifierPipeline(SentenceExtractor(), LLMJudge(client))


def reply(prompt, body):
    """Of the question and the seed alone."""
    name = prompt.split()[-1].rstrip("?")
    number = sum(map(ord, name)) + body.get("seed", 0)
    return f"{name} was born in {PLACES[number % 4]}. {name} died in {PLACES[number // 4 % 4]}."


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def questions(folder, count):
    rows = [{"id": f"P{n}", "question": f"Who was Person{n}?", "evidence": f"Person{n} was born in Leeds, died in York.",
             "answer": "Leeds"} for n in range(count)]  # fmt: skip
    return write(folder / f"questions-{count}.jsonl", rows)


def build(command, file, out, sampler, judging, *more):
    argv = [
        f"build-{command}", file, "--base_url", sampler.url, "--model", "fake", "--out", out, "--concurrency", CONCURRENCY,
        *([] if command == "refusals" else ["--num_samples", 2]), *more,
    ]  # fmt: skip
    served = ["--verifier", "tests.data.test_ray:judge", "--verifier_base_url", judging.url]
    return main(list(map(str, [*argv, *([] if command in ("refusals", "corrections") else served)])))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache.sqlite"))


@pytest.fixture(scope="module", autouse=True)
def no_ray_is_left():
    yield
    try:
        import ray
    except ImportError:
        return
    ray.shutdown()


def rows_of(folder, name):
    return Dataset.from_parquet(str(folder / f"{name}.parquet")).to_list()


# Without Ray
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "2"], "--workers 2 is for --engine ray"),
        (["--gpus_per_worker", "1"], "--gpus_per_worker 1.0 is for --engine ray"),
        (["--engine", "ray"], "pip install hf_factuality[ray]"),
    ],
)
def test_flags_are_refused(tmp_path, flags, message, monkeypatch, capsys):
    monkeypatch.setattr("hf_factuality.io.ray.find_spec", lambda name: None)
    file, kept = write(tmp_path / "rows.jsonl", [{"completion": "a b", "evidence": "a b"}]), tmp_path / "kept.jsonl"
    kept.write_text("labelled before", encoding="utf-8")
    assert main(["verify", file, "--out", str(kept), *flags]) == 2 and message in capsys.readouterr().err
    assert kept.read_text(encoding="utf-8") == "labelled before"


def test_a_model_that_is_nowhere_is_an_error_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_factuality.io.ray.find_spec", lambda name: True)
    argv = [
        "build-preferences",
        questions(tmp_path, 1),
        "--model",
        str(tmp_path / "m"),
        "--engine",
        "ray",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(argv) == 2 and "the model" in capsys.readouterr().err
    assert not list((tmp_path / "o").glob("*"))


@pytest.mark.parametrize(("here", "device"), [(False, "cpu"), (True, "cuda")])
def test_models_go_to_the_device_of_the_worker(monkeypatch, here, device):
    inner = torch.nn.Linear(3, 3)
    judge = {"model": torch.nn.ModuleDict({"first": inner, "again": inner}), "name": "judge", "bias": torch.ones(2)}
    packed, weights, places = _packed(judge), judge["model"].state_dict(), []
    monkeypatch.setattr("torch.cuda.is_available", lambda: here)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: places.append(device))
    found = pickle.loads(packed)
    assert set(places) == {device} and found["model"]["first"] is found["model"]["again"]
    assert all(torch.equal(value, weights[name]) for name, value in found["model"].state_dict().items())
    assert found["name"] == "judge" and torch.equal(found["bias"], torch.ones(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_the_gpu_goes_to_a_worker_without_one(monkeypatch):
    judge = {"model": torch.nn.Linear(3, 3).cuda(), "bias": torch.ones(2, device="cuda")}
    packed = _packed(judge)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = pickle.loads(packed)
    assert {found["model"].weight.device.type, found["bias"].device.type} == {"cpu"}
    assert torch.equal(found["model"].weight, judge["model"].weight.cpu())


@pytest.mark.parametrize(
    "flags",
    [["--workers", "0"], ["--gpus_per_worker", "1.5"], ["--gpus_per_worker", "-1"], ["--gpus_per_worker", "nan"]],
)
def test_flags_with_ray_are_refused(tmp_path, flags, monkeypatch, capsys):
    monkeypatch.setattr("hf_factuality.io.ray.find_spec", lambda name: True)
    file = write(tmp_path / "rows.jsonl", [{"completion": "a b", "evidence": "a b"}])
    assert main(["verify", file, "--engine", "ray", *flags]) == 2 and f"{flags[0]} " in capsys.readouterr().err


@pytest.mark.parametrize(("address", "own"), [(None, {"address": "local", "num_cpus": 2}), ("auto", {})])
def test_ray_is_one_of_its_own_without_an_address(monkeypatch, address, own):
    """Also where another runs, which `ray.init` would take."""
    given = {}

    def init(**settings):
        given.update(settings)
        raise ConnectionError("no Ray here")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConnectionError):
        next(ray_map([(len, 0.0)], ["a"], 2))
    assert {name: given[name] for name in ("address", "num_cpus") if name in given} == own


class Fails:
    """On what begins with "f"."""

    requires_evidence = True

    def verify(self, inputs):
        if any(it.completion.startswith("f") for it in inputs):
            raise RuntimeError("no judge")
        labels = ["supported" if "7" in it.completion else "contradicted" for it in inputs]
        return [Verification((LabeledSpan(0, 1, label),)) for label in labels]


def rows_that_fail(folder, first, last):
    """500 rows, of which some are empty or have no evidence."""
    rows = [{"id": n, "completion": f"{'f' if first <= n < last else 'a'}{n}" if n % 9 else " ", "evidence": "x" if n % 7 else None}
            for n in range(500)]  # fmt: skip
    return ["verify", write(folder / "rows.jsonl", rows), "--verifier", "tests.data.test_ray:Fails"]


@pytest.mark.parametrize(("first", "last", "status"), [(500, 500, 0), (200, 260, 0), (100, 500, 2), (0, 500, 2)])
def test_rows_are_written_in_order_and_given_up_as_by_the_local_engine(
    tmp_path, first, last, status, monkeypatch, capsys
):
    """Workers that are started anew for every 192 rows, and whose results come in any order."""
    argv, found = rows_that_fail(tmp_path, first, last), []

    def shuffled(stages, pieces, workers):
        for number in random.Random(0).sample(range(len(pieces)), len(pieces)):
            yield number, stages[0][0](pieces[number])

    monkeypatch.setattr("hf_factuality.verifiers.guard._AHEAD", 192)
    monkeypatch.setattr("hf_factuality.verifiers.guard.ray_map", shuffled)
    monkeypatch.setattr("hf_factuality.io.ray.find_spec", lambda name: True)
    for engine in ([], ["--engine", "ray", "--workers", "2"]):
        assert main([*argv, "--json", "--out", str(tmp_path / "out"), *engine]) == status
        found.append((capsys.readouterr(), (tmp_path / "out").read_bytes()))
    assert found[0] == found[1] and (found[0][1].count(b"\n") == 500 if status == 0 else "no judge" in found[0][0].err)


# With it
def kill_a_worker(server, after):
    """Once the server has got so many requests; the thread that does it, which says whom."""
    import psutil

    killed = []

    def run():
        while sum(server.received.values()) < after:
            time.sleep(0.005)
        workers = [
            each for each in psutil.process_iter(["cmdline"]) if "_Work" in " ".join(each.info["cmdline"] or ())
        ]
        os.kill(workers[0].pid, signal.SIGKILL)
        killed.append(workers[0].pid)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, killed


@pytest.mark.slow
def test_ray_makes_what_one_process_makes_also_when_a_worker_is_killed(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    file, found, again = questions(tmp_path, 2000), {}, {}
    for name, more in (
        ("local", []),
        ("ray", ["--engine", "ray", "--workers", 2]),
        ("killed", ["--engine", "ray", "--workers", 2]),
    ):
        monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / f"{name}.sqlite"))
        with FakeServer(reply) as sampler, FakeServer(judged) as judging:
            thread, killed = kill_a_worker(judging, 3000) if name == "killed" else (None, None)
            assert build("preferences", file, tmp_path / name, sampler, judging, *more) == 0
            if thread:
                thread.join()
                assert killed
            asked = {prompt: count for prompt, count in judging.received.items() if "Person" in prompt}
            again[name] = sum(asked.values()) - len(asked)
            found[name] = rows_of(tmp_path / name, "pairs")
            assert len(asked) > 4000
    assert found["ray"] == found["local"] == found["killed"] and len(found["local"]) > 1000
    print("verdicts asked for again:", again)
    # What was under way when the worker died had no verdict yet.
    assert again["local"] == again["ray"] == 0 and again["killed"] <= CONCURRENCY


@pytest.mark.slow
@pytest.mark.parametrize("command", ["checklists", "refusals", "corrections"])
def test_the_other_builders(tmp_path, own_cache, command):
    pytest.importorskip("ray")
    file = questions(tmp_path, 40)
    with FakeServer(reply) as sampler, FakeServer(judged) as judging:
        for out, engine in (("local", []), ("ray", ["--engine", "ray", "--workers", 2])):
            assert build(command, file, tmp_path / out, sampler, judging, *engine) == 0
    produced = {path.name for path in (tmp_path / "local").glob("*.parquet")}
    assert produced
    for each in produced:
        local, ray = (Dataset.from_parquet(str(tmp_path / out / each)).to_list() for out in ("local", "ray"))
        assert local == ray


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_with_the_other_engine(tmp_path, own_cache):
    pytest.importorskip("ray")
    file = questions(tmp_path, 200)
    with FakeServer(reply) as sampler, FakeServer(judged) as judging:
        assert build("preferences", file, tmp_path / "run", sampler, judging) == 0
        whole = rows_of(tmp_path / "run", "pairs")
        for journal in ("responses.jsonl", "verifications.jsonl"):
            path = tmp_path / "run" / journal
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[: 90 if journal.startswith("r") else 70]))
        (tmp_path / "run" / "pairs.parquet").unlink()
        before = sum(judging.received.values())
        assert build("preferences", file, tmp_path / "run", sampler, judging, "--engine", "ray", "--workers", 2) == 0
        assert sum(judging.received.values()) - before <= 2  # the trial; the rest is in the cache
    assert rows_of(tmp_path / "run", "pairs") == whole


@pytest.mark.slow
def test_the_command_may_be_killed_twice(tmp_path, own_cache):
    pytest.importorskip("ray")
    file = questions(tmp_path, 300)
    with FakeServer(reply) as sampler, FakeServer(judged) as judging:
        for number, after in ((signal.SIGKILL, 200), (signal.SIGTERM, 500)):
            argv = [file, tmp_path / "run", sampler.url, judging.url]
            run = subprocess.Popen([sys.executable, "-m", __name__, *map(str, argv)])
            while sum(judging.received.values()) < after:
                time.sleep(0.005)
                assert run.poll() is None, "it should still run"
            run.send_signal(number)
            assert run.wait(60) == -number
        assert build("preferences", file, tmp_path / "run", sampler, judging, "--engine", "ray", "--workers", 2) == 0
        asked = {prompt: count for prompt, count in judging.received.items() if "Person" in prompt}
        # What was under way when the command died had no verdict yet.
        assert len(asked) > 600 and sum(asked.values()) - len(asked) <= 2 * 2 * CONCURRENCY
        assert build("preferences", file, tmp_path / "local", sampler, judging) == 0
    assert rows_of(tmp_path / "run", "pairs") == rows_of(tmp_path / "local", "pairs")


class Down:
    requires_evidence = False

    def verify(self, inputs):
        raise JudgingError("no judge at all")


@pytest.mark.slow
def test_an_error_of_a_worker_is_that_of_the_command(tmp_path):
    pytest.importorskip("ray")
    asked = read_questions([{"id": str(n), "question": f"Who was {n}?"} for n in range(4)])
    sampler = GivenResponses({question.id: ["a", "b"] for question in asked})
    with pytest.raises(JudgingError, match="no judge at all"):
        preferences_from(asked, sampler, Down(), tmp_path, workers=2, patience=0, progress=False)


class Moody:
    """Fails on whatever is about an odd number."""

    requires_evidence = False

    def verify(self, inputs):
        if any(int(it.question.split()[-1].rstrip("?")) % 2 for it in inputs):
            raise ValueError("odd")
        spans = [(LabeledSpan(0, 1, "supported" if it.completion == "a" else "contradicted"),) for it in inputs]
        return [Verification(own) for own in spans]


@pytest.mark.slow
def test_a_batch_on_which_the_verifier_fails_ends_nothing(tmp_path):
    pytest.importorskip("ray")
    asked = read_questions([{"id": str(n), "question": f"Who was {n}?"} for n in range(8)])
    sampler, found = GivenResponses({question.id: ["a", "b"] for question in asked}), []
    for workers in (0, 2):
        run = preferences_from(asked, sampler, Moody(), tmp_path / str(workers), workers=workers, progress=False)
        found.append([row["id"] for row in run])
    assert found[0] == found[1] == ["0", "2", "4", "6"]


@pytest.mark.slow
def test_verify(tmp_path):
    pytest.importorskip("ray")
    rows = [{"id": n, "completion": f"A{n} was born in {PLACES[n % 4]}. It was 19{n % 90 + 10}.", "evidence": [f"A{n} was born in Leeds."]}
            for n in range(2000)] + [{"id": "empty", "completion": "", "evidence": ["x"]}]  # fmt: skip
    rows[7]["completion"] = "Zoë \ud83d\ude00 was born in Leeds."
    file = write(tmp_path / "rows.jsonl", rows)
    for out, engine in (("local", []), ("ray", ["--engine", "ray", "--workers", "2"])):
        assert main(["verify", file, "--out", str(tmp_path / out), *engine]) == 0
    assert (tmp_path / "local").read_bytes() == (tmp_path / "ray").read_bytes()


class Whereabouts:
    """Finds wrong what a worker without a GPU of its own sees."""

    requires_evidence = False

    def verify(self, inputs):
        own = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        time.sleep(0.02)
        return [
            Verification((LabeledSpan(0, 1, "supported" if own in ("0", "1") else "contradicted", claim=own),))
            for _ in inputs
        ]


@pytest.mark.slow
def test_workers_have_gpus_of_their_own(tmp_path, capsys):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)  # Ray counts what it is told
    try:
        file = write(tmp_path / "rows.jsonl", [{"id": n, "completion": f"a{n}"} for n in range(3000)])
        argv = ["verify", file, "--verifier", "tests.data.test_ray:Whereabouts", "--engine", "ray", "--workers", "2"]
        assert main([*argv, "--gpus_per_worker", "1", "--out", str(tmp_path / "out")]) == 0
        rows = map(json.loads, (tmp_path / "out").read_text().splitlines())
        assert {row["verification"]["spans"][0]["claim"] for row in rows} == {"0", "1"}
        assert main([*argv, "--gpus_per_worker", "4", "--out", str(tmp_path / "none")]) == 2
        assert "a worker needs 4 GPUs, and no machine of Ray has more than 2" in capsys.readouterr().err
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["preferences", "process-labels"])
def test_a_model_samples_in_the_workers(tmp_path, tiny_model, command):
    pytest.importorskip("ray")
    rows = [{"id": n, "question": f"Where was Person{n} born?", "evidence": "Ada Lovelace was born in London. Marie Curie", "answer": "a"}
            for n in range(24)]  # fmt: skip
    more = ["--rollouts", "2", "--verifier", "gold"] if command == "process-labels" else ["--temperature", "1.0"]
    argv = [f"build-{command}", write(tmp_path / "rows.jsonl", rows), "--model", tiny_model, "--dtype", "float32", "--device", "cpu",
            "--num_samples", "4", "--max_new_tokens", "24", *more]  # fmt: skip
    for out, engine in (("local", []), ("ray", ["--engine", "ray", "--workers", "2"])):
        assert main([*argv, "--out", str(tmp_path / out), *engine]) == 0
    for name in ("responses.jsonl", "rollouts/responses.jsonl")[: 1 + (command == "process-labels")]:
        local, ray = (sorted((tmp_path / out / name).read_text().splitlines()) for out in ("local", "ray"))
        assert local == ray and local
    (made,) = (tmp_path / "local").glob("*.parquet")
    assert made.read_bytes() == (tmp_path / "ray" / made.name).read_bytes()
    settings = [json.loads((tmp_path / out / "settings.json").read_text()) for out in ("local", "ray")]
    assert settings[0] == settings[1]


class Dies:
    """Ends the process of whoever asks about the third person."""

    requires_evidence = False

    def verify(self, inputs):
        if any(" 3?" in it.question for it in inputs):
            os.kill(os.getpid(), signal.SIGKILL)
        return [Verification((LabeledSpan(0, 1, "supported"),)) for _ in inputs]


@pytest.mark.slow
def test_what_ends_every_worker_ends_the_command(tmp_path, capsys):
    """With what is done kept; Ray's default is to try for ever."""
    pytest.importorskip("ray")
    asked = read_questions([{"id": str(n), "question": f"Who was {n}?"} for n in range(6)])
    sampler = GivenResponses({question.id: ["a", "b"] for question in asked})
    with pytest.raises(JudgingError, match="died"):
        preferences_from(asked, sampler, Dies(), tmp_path / "run", workers=2, progress=False)
    rows = [{"completion": "a", "question": f"Who was {n // 400}?"} for n in range(1600)]
    argv = [
        "verify",
        write(tmp_path / "rows.jsonl", rows),
        "--verifier",
        "tests.data.test_ray:Dies",
        "--engine",
        "ray",
    ]
    assert main([*argv, "--workers", "2", "--out", str(tmp_path / "out")]) == 2
    kept = (tmp_path / "out").read_bytes().count(b"supported")
    assert 640 <= kept <= 1152 and f"out holds the {kept} rows until then" in capsys.readouterr().err


@pytest.mark.slow
def test_a_verifier_that_goes_down_is_given_up_as_by_the_local_engine(tmp_path, capsys):
    pytest.importorskip("ray")
    argv, found = rows_that_fail(tmp_path, 100, 500), []
    for engine in ([], ["--engine", "ray", "--workers", "2"]):
        assert main([*argv, "--out", str(tmp_path / "out"), *engine]) == 2
        found.append(((tmp_path / "out").read_bytes(), capsys.readouterr().err.splitlines()[-1]))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--gpus_per_worker", "1"], ["--verifier", "tests.data.test_ray:local"]], ids=str)
def test_what_ray_cannot_run_is_said_and_is_no_verdict(tmp_path, flags, capsys):
    pytest.importorskip("ray")
    file, kept = write(tmp_path / "rows.jsonl", [{"completion": "a"}]), tmp_path / "kept.jsonl"
    kept.write_text("labelled before", encoding="utf-8")
    argv = ["verify", file, "--verifier", "tests.data.test_ray:Down", "--engine", "ray", "--workers", "1", *flags]
    assert main([*argv, "--out", str(kept)]) == 2
    message = "a worker needs 1 GPUs" if "--gpus_per_worker" in flags else "cannot be sent to workers of Ray"
    assert message in capsys.readouterr().err and kept.read_text(encoding="utf-8") == "labelled before"


def local():
    """A verifier that has no name to be found by."""

    class Local(Down):
        pass

    return Local()


class At:
    def __init__(self, url):
        self.url = url


if __name__ == "__main__":
    file, out, *urls = sys.argv[1:]
    sys.exit(build("preferences", file, out, *map(At, urls), "--engine", "ray", "--workers", 2))
