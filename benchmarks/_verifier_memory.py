"""Memory of the verifiers over many claims, each case in a process of its own; `verifier_speed.py` prints it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from hf_factuality.generation.client import ChatAnswer, ChatClient
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.judges.lexical.judge import LexicalJudge
from hf_factuality.verifiers.judges.llm import LLMJudge
from hf_factuality.verifiers.pipeline import VerifierPipeline


MEMORY_CASES = ("lexical", "cached_llm", "verify", "verify_metric")
WORDS = (
    "river north bridge poet opened museum castle valley engine station harbour novel prize teacher island painter "
    "council company founded second early stone garden railway senator orchestra winter"
).split()

Row = tuple[str, tuple[str, ...]]  # claim, ten sentences


def made_rows(count: int, seed: int = 0) -> list[Row]:
    """Claims of 6 to 30 words with ten evidence sentences of 3 to 40; each sentence has a name that is its own."""
    draw = random.Random(seed)

    def sentence(low: int, high: int) -> str:
        words = [draw.choice(WORDS) for _ in range(draw.randint(low, high))]
        name = "".join(draw.choices("abcdeiklmnorstu", k=8)).capitalize()
        return f"{name} {' '.join(words)} {draw.randint(1000, 2020)}."

    return [(sentence(6, 30), tuple(sentence(3, 40) for _ in range(10))) for _ in range(count)]


def resident() -> float:
    """Megabytes of this process, after what can be freed is freed."""
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


class InstantClient(ChatClient):
    """Answers "supported" without a server; the cache is the real one, on disk."""

    async def _send(self, request: Any, field: Any, logprobs: int, epoch: int) -> Any:
        return ChatAnswer("supported", "stop")


class OneClaim:
    """The completion is the claim."""

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list]:
        return [[LabeledSpan(0, len(item.completion), None)] for item in inputs]


def pipeline_memory(case: str, claims: int, folder: Path) -> list[tuple[int, float]]:
    """(claims, megabytes) ten times while a pipeline judges texts of which no two are equal."""
    if case == "lexical":
        judge: Any = LexicalJudge()
    else:
        judge = LLMJudge(InstantClient("http://127.0.0.1:9/v1", "none", cache=folder / "answers.sqlite"))
    verifier = VerifierPipeline(OneClaim(), judge)
    found = []
    for tenth in range(10):
        for start in range(0, claims // 10, 200):
            rows = made_rows(min(200, claims // 10 - start), seed=tenth * claims + start)
            verifier.verify([VerifierInput(claim, evidence=texts) for claim, texts in rows])
        found.append(((tenth + 1) * (claims // 10), resident()))
    return found


def verify_memory(case: str, claims: int, folder: Path) -> list[tuple[int, float]]:
    """The same while `hf-factuality verify` reads a file with a claim per row; the last sample is at its end."""
    import hf_factuality.evaluation.verify as command
    from hf_factuality.cli import main

    file, found, seen = folder / "answers.jsonl", [], 0
    with file.open("w", encoding="utf-8") as out:
        for claim, texts in (
            row for start in range(0, claims, 1000) for row in made_rows(min(1000, claims - start), start)
        ):
            out.write(json.dumps({"completion": claim, "evidence": texts}) + "\n")
    add = command.Tally.add

    def sampled(tally: Any, verification: Any) -> None:
        nonlocal seen
        add(tally, verification)
        seen += 1
        if seen % (claims // 10) == 0:
            found.append((seen, resident()))

    command.Tally.add = sampled
    flags = ["--metrics", "factscore"] if case == "verify_metric" else []
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        if main(["verify", str(file), "--verifier", "lexical", "--out", str(folder / "out.jsonl"), *flags]):
            raise SystemExit("hf-factuality verify failed")
    return found


def peak() -> float | None:
    """Most megabytes that this process has had at once, where the system says so."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), None)


def measure(case: str, claims: int) -> dict[str, Any]:
    """Samples and peak of one case, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        work = verify_memory if case.startswith("verify") else pipeline_memory
        return {"samples": work(case, claims, Path(folder)), "peak_mb": peak()}


def memory(case: str, claims: int) -> dict[str, Any]:
    """Run a case in a process of its own."""
    command = [sys.executable, __file__, case, str(claims)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"memory of {case}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    (_, first), (_, last) = found["samples"][0], found["samples"][-1]
    return {"ratio": last / first, "mb_per_tenth": (last - first) / 9, "first_mb": first, "last_mb": last, **found}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
