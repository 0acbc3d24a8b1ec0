"""Answering and judging the items of one benchmark, each answer once, whatever was there before."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.evaluation.engines import Engine, Generation, Request
from hf_factuality.evaluation.journal import Journal
from hf_factuality.evaluation.verification import (
    AnswerJudge,
    AnswerVerifier,
    JournalVerdicts,
    answer_row,
    journal_sample,
)
from hf_factuality.verifiers.service import GIVE_UP_AFTER, Row, judge_rows


logger = logging.getLogger(__name__)


def answer_items(
    engine: Engine, items: Sequence[BenchmarkItem], generation: Generation | None, journal: Journal
) -> None:
    """Answer what the journal has no answer to, and add each answer as it comes.

    Args:
        engine ([`Engine`]):
            Answers.
        items (`Sequence[BenchmarkItem]`):
            Questions.
        generation ([`Generation`], *optional*):
            `None` asks for the log-likelihoods of the choices.
        journal ([`Journal`]):
            What is known.

    Raises:
        `DataError`: an answer of the journal is to another prompt.
        `JudgingError`: no question could be answered.
    """
    for item in items:
        before = journal.answers.get(item.id, {}).get("prompt")
        if before is not None and before != list(item.messages):
            raise DataError(
                f"{journal.path} has an answer to another prompt of item {item.id!r}; name another --out, or add "
                "--overwrite to answer anew"
            )
    prompts = {item.id: list(item.messages) for item in items}
    if generation is None:
        todo = [item for item in items if "log_likelihoods" not in journal.answers.get(item.id, {})]
        with _bar(len(todo), " items") as bar:
            for name, values in engine.log_likelihoods(todo):
                journal.add([{"id": name, "prompt": prompts[name], "log_likelihoods": values}])
                bar.update()
        return
    requests = [Request(item, sample) for item in items for sample in range(generation.n_samples)]
    todo = [request for request in requests if journal_sample(journal, request.item.id, request.sample) is None]
    errors = []
    with _bar(len(todo), " completions") as bar:
        for found in engine.generate(todo, generation):
            bar.update()
            if found.text is None:
                errors.append(found.error)
                continue
            row = {"id": found.id, "prompt": prompts[found.id], "sample": found.sample, "text": found.text}
            journal.add([{**row, "finish_reason": found.finish_reason}])
    if errors:
        logger.warning("%d of %d completions are missing; the first: %s", len(errors), len(requests), errors[0])
    if len(errors) == len(requests):
        raise JudgingError(f"no question was answered; the first: {errors[0]}")


def judge_answers(
    items: Sequence[BenchmarkItem],
    journal: Journal,
    verifier: AnswerVerifier | None,
    judge: AnswerJudge | None,
    n_samples: int = 1,
    scope: str = "answer",
) -> None:
    """Judge `scope` of the first `n_samples` completions that were not judged before by the same verifier or judge and evidence.

    Raises:
        `JudgingError`: nothing at all could be judged.
    """
    rows = []
    for item in items:
        for number in range(n_samples):
            text = (journal_sample(journal, item.id, number) or {}).get("text")
            if text is not None:
                rows.append(answer_row(item, number, text, scope))
    if verifier is not None:
        verdicts = JournalVerdicts(journal, verifier)
        chunks = judge_rows(
            verifier.guarded,
            rows,
            verdicts=verdicts,
            give_up_after=GIVE_UP_AFTER,
            needs_label=False,  # an item may have no page in the knowledge base
            progress=" verified",
            total=len(rows),
        )
        for _ in chunks:  # each is in the journal by now
            pass
        verdicts.forget(rows)
    if judge is not None:
        keys = {id(row): judge.key(row) for row in rows}
        todo = [row for row in rows if row.ranges and not _voted(journal, row, keys[id(row)])]
        with _bar(len(todo), " judged") as bar:
            for pairs in judge.vote(todo):
                journal.add(
                    {"id": row.key[0].id, "sample": row.key[1], "votes": votes, "voted": keys[id(row)]}
                    for row, votes in pairs
                )
                bar.update(len(pairs))


def _voted(journal: Journal, row: Row, key: str) -> bool:
    item, number = row.key
    sample = journal_sample(journal, item.id, number) or {}
    return sample.get("voted") == key and None not in sample["votes"]


def journal_rows(
    items: Sequence[BenchmarkItem], journal: Journal, scores: Mapping[str, Sequence[float | None]]
) -> list[dict[str, Any]]:
    """One row per item for [`Journal.finish`]: id, prompt, question, answers with their spans, and a score per metric."""
    rows = []
    for place, item in enumerate(items):
        known = journal.answers.get(item.id, {})
        row: dict[str, Any] = {"id": item.id, "prompt": list(item.messages), "question": item.question}
        if item.answer is not None:
            row["gold"] = item.answer  # not "answer", which is a completion where such a file is read
        if item.choices:
            row |= {"choices": list(item.choices), "correct": list(item.correct)}
        if "log_likelihoods" in known:
            row["log_likelihoods"] = known["log_likelihoods"]
        if known.get("completions"):
            row["samples"] = known["completions"]
        rows.append({**row, "scores": {name: values[place] for name, values in scores.items()}})
    return rows


def _bar(total: int, unit: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, disable=not sys.stderr.isatty() or not total, file=sys.stderr)
