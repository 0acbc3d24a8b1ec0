"""The engine ray: the same datasets as here, also when a worker is killed, and no verdict asked for twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from datasets import Dataset

from hf_factuality.chat.client import ChatClient
from hf_factuality.cli import main
from hf_factuality.data import build_preferences
from hf_factuality.data.builder import read_questions
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.errors import JudgingError
from hf_factuality.spans import LabeledSpan, Verification
from hf_factuality.verifiers import SentenceExtractor, VerifierPipeline
from hf_factuality.verifiers.judges.llm import LLMJudge
from tests.chat.fake_server import FAST, FakeServer
from tests.data.test_build_preferences import judged


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
        (["--workers", "2"], "--workers=2 is for --engine ray"),
        (["--engine", "ray"], "pip install 'hf_factuality[ray]'"),
    ],
)
def test_flags_are_refused(tmp_path, flags, message, monkeypatch, capsys):
    monkeypatch.setattr("hf_factuality.io.ray.find_spec", lambda name: None)
    file = write(tmp_path / "rows.jsonl", [{"completion": "a b", "evidence": "a b"}])
    assert main(["verify", file, *flags]) == 2 and message in capsys.readouterr().err


def test_a_model_in_this_process_is_refused(tmp_path, capsys):
    argv = [
        "build-preferences",
        questions(tmp_path, 1),
        "--model",
        "m",
        "--engine",
        "ray",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(argv) == 2 and "--engine ray samples from a server" in capsys.readouterr().err


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
    with pytest.raises(JudgingError, match="verification has failed .* no judge at all"):
        build_preferences(asked, sampler, Down(), tmp_path, workers=2, patience=0, progress=False)


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
        run = build_preferences(asked, sampler, Moody(), tmp_path / str(workers), workers=workers, progress=False)
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


class At:
    def __init__(self, url):
        self.url = url


if __name__ == "__main__":
    file, out, *urls = sys.argv[1:]
    sys.exit(build("preferences", file, out, *map(At, urls), "--engine", "ray", "--workers", 2))
