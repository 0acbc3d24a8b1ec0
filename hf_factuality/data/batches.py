"""Batches of questions: sampled and verified, in this process or in Ray's."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.data.sampling import GivenResponses, Sampler
from hf_factuality.errors import JudgingError
from hf_factuality.generation.journal import LineFile
from hf_factuality.io.ray import ray_map
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import NO_EVIDENCE, VerificationRequest, judge_rows


logger = logging.getLogger(__name__)


class BatchVerification:
    """Verifies responses and writes down what was found."""

    def __init__(self, responses: LineFile, verdicts: LineFile, verifier: Verifier, patience: float, bar: Any):
        from hf_factuality.generation.client import ChatClient

        self.responses, self.verdicts, self.patience, self.bar = responses, verdicts, patience, bar
        # The verifier gets the responses of a batch of questions in one call, however many these are.
        self.guard = GuardedVerifier(verifier, None, sys.maxsize, raises=(JudgingError, OSError))
        self.served = isinstance(getattr(getattr(verifier, "judge", None), "client", None), ChatClient)
        self.stopped = False

    def failed(self, verdict: dict[str, Any] | None) -> bool:
        """Whether to try again: an error, a model without a whole answer to a claim, or nothing judged by a server, which
        may have refused every request."""
        if verdict is None:
            return False
        if verdict["error"] is not None:
            return verdict["error"] != NO_EVIDENCE
        if verdict.get("unanswered"):
            return True
        return self.served and bool(verdict["spans"]) and all(span["label"] is None for span in verdict["spans"])

    def judge(self, questions: Sequence[PreferenceQuestion], again: bool = False, first: bool | None = None) -> None:
        """Judge the responses to questions that were not verified; with `again`, those on which the verifier failed.

        `JudgingError` if it fails on all responses of the `first` questions, by default those before which there is no verdict.
        """
        first = not self.verdicts if first is None else first
        rows = []
        found: dict[str, list] = {}
        for question in questions:
            if question.id in self.verdicts and not again:
                continue
            responses = self.responses[question.id]
            verdicts = self.verdicts[question.id] if again else [None] * len(responses)
            for number, (response, verdict) in enumerate(zip(responses, verdicts, strict=True)):
                if response is not None and (verdict is None or self.failed(verdict)):
                    item = VerifierInput(response[0], question.question, question.evidence, question.row)
                    rows.append(VerificationRequest(item, key=(question.id, number)))
            found[question.id] = verdicts
        if rows:
            (judged,) = _patiently(
                lambda: list(judge_rows(self.guard, rows, chunk=None)),
                self.patience,
                "verification",
                lambda: self.stopped,
            )
            sent = [it.found.error for it in judged if it.left_out is None]
            if first and sent and all(sent):
                raise JudgingError(f"the verifier failed on all {len(sent)} responses of the first batch: {sent[0]}")
            for it in judged:
                key, number = it.row.key
                if found[key][number] is None or it.found.error is None:  # a failure replaces no labels
                    found[key][number] = it.found.to_dict()
        if found:
            self.verdicts.add(found.items())
        if not again:
            self.bar.update(len(questions))


def sample_batch(batch: Sequence[PreferenceQuestion], sampler: Sampler, seed: int, patience: float) -> list[tuple]:
    if isinstance(sampler, GivenResponses):
        found = sampler.responses_to([question.id for question in batch])
    else:
        key = f"{seed} {batch[0].id}".encode("utf-8", "surrogatepass")
        batch_seed = int.from_bytes(hashlib.sha256(key).digest()[:4], "big") >> 1
        messages = [question.messages for question in batch]
        found = _patiently(lambda: sampler.sample(messages, batch_seed), patience, "sampling")
    return [
        (question.id, [None if r is None else [r.text, r.finished] for r in rows])
        for question, rows in zip(batch, found, strict=True)
    ]


def _patiently(call, patience: float, what: str, stopped: Callable[[], bool] = lambda: False) -> Any:
    """The result of `call`; while a server is down, tries again until `patience` seconds are over."""
    start, delay = time.monotonic(), 2.0
    while True:
        try:
            return call()
        except (JudgingError, OSError) as error:
            waited = time.monotonic() - start
            if stopped():
                raise
            if waited >= patience:
                raise JudgingError(
                    f"{what} has failed for {waited:.0f} seconds: {error}; what is done is kept: start the run again to go on"
                ) from error
            logger.warning("%s failed, trying again in %.0f seconds: %s", what, delay, error)
            time.sleep(min(delay, patience - waited))
            delay = min(2 * delay, 60.0)


def over_ray(
    batches, sampler: Sampler, seed: int, work: BatchVerification, workers: int, gpus_per_worker: float
) -> None:
    """Sample and verify batches in Ray's workers; this process writes down what comes back."""
    todo = [batch for batch in batches if not all(question.id in work.verdicts for question in batch)]
    work.bar.update(sum(map(len, batches)) - sum(map(len, todo)))
    known = work.responses, work.verdicts
    tasks = [
        (
            batch,
            *([(q.id, found[q.id]) for q in batch if q.id in found] for found in known),
            batch is todo[0] and not known[1],
        )
        for batch in todo
    ]
    for_sampler = gpus_per_worker if getattr(sampler, "in_worker", False) else 0.0
    stages = [(partial(_judge_task, work.guard.verifier, work.patience), gpus_per_worker - for_sampler)]
    sample = partial(_sample_task, sampler, seed, work.patience)
    if isinstance(sampler, GivenResponses):
        tasks = list(map(sample, tasks))
    else:
        stages.insert(0, (sample, for_sampler))
    for number, (sampled, judged) in ray_map(stages, tasks, workers):
        if not all(question.id in work.responses for question in todo[number]):
            work.responses.add(sampled)
        work.verdicts.add(judged)
        work.bar.update(len(todo[number]))


# What is done to a batch in a process of Ray, where nothing is written but into the caches of servers' answers.
def _sample_task(sampler: Sampler, seed: int, patience: float, task: tuple) -> tuple:
    batch, answered, known, first = task
    if len(answered) < len(batch):
        answered = sample_batch(batch, sampler, seed, patience)
    return batch, answered, known, first


def _judge_task(verifier: Verifier, patience: float, task: tuple) -> tuple[list, list]:
    from tqdm.auto import tqdm

    batch, answered, known, first = task
    verdicts = _Held(known)
    BatchVerification(_Held(answered), verdicts, verifier, patience, tqdm(disable=True)).judge(batch, first=first)
    before = dict(known)
    return answered, [(key, items) for key, items in verdicts.items() if key not in before]


class _Held(dict):
    """A [`LineFile`] that is none."""

    add = dict.update
