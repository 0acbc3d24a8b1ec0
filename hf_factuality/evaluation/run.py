"""Answering and judging the items of one benchmark, each answer once, whatever was there before."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hf_factuality.errors import DataError, JudgingError
from hf_factuality.evaluation.engines import Engine, Request
from hf_factuality.evaluation.journal import Journal, KnownAnswers, journal_row
from hf_factuality.evaluation.plan import Task
from hf_factuality.evaluation.verification import AnswerJudge, JournalVerdicts, answer_row
from hf_factuality.generation.failures import GIVE_UP_AFTER, Failures
from hf_factuality.rewards import ChecklistReward
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


logger = logging.getLogger(__name__)


def answer_items(engine: Engine, task: Task, journal: Journal) -> None:
    """Answer what the journal has no answer to; `DataError` for another prompt, `JudgingError` if nothing is answered."""
    prompts = {item.id: list(item.messages) for item in task.items}
    for name, prompt in prompts.items():
        if journal.answers.get(name, {}).get("prompt", prompt) != prompt:
            fix = "name another `out`, or add `overwrite` to answer anew"
            raise DataError(f"{journal.path} has an answer to another prompt of item {name!r}; {fix}")
    if task.generation is None:
        todo = [item for item in task.items if "log_likelihoods" not in journal.answers.get(item.id, {})]
        with _bar(len(todo), " items") as bar:
            for name, values in engine.log_likelihoods(todo):
                journal.add([{"id": name, "prompt": prompts[name], "log_likelihoods": values}])
                bar.update()
        return
    requests = [Request(item, sample) for item in task.items for sample in range(task.generation.num_samples)]
    todo = [request for request in requests if not journal.sample(request.item.id, request.sample)]
    failures = Failures(known=len(requests) - len(todo))
    with _bar(len(todo), " completions") as bar:
        for request, found in engine.generate(todo, task.generation):
            bar.update()
            failures.count(found.error, request.item.id)
            if found.error:
                if engine.generates:
                    failures.check("the model does not answer")
                continue
            name, answer = request.item.id, {"text": found.text, "finish_reason": found.finish_reason}
            journal.add([{"id": name, "prompt": prompts[name], "sample": request.sample, **answer}])
    if failures.failed:
        told = "%d of %d completions are missing; the first: %s"
        logger.warning(told, failures.failed, len(requests), failures.first_reason)
    if failures.all_failed:
        raise JudgingError(f"no question was answered; the first: {failures.first_reason}")


def judge_answers(task: Task, journal: KnownAnswers, give_up_after: int | None = GIVE_UP_AFTER) -> None:
    """Judge what this verifier or judge has not judged with this evidence; `JudgingError` if nothing could be judged, unless
    `give_up_after` is `None`."""
    texts = [
        (item, number, journal.sample(item.id, number).get("text"))
        for item in task.items
        for number in range(task.judged_samples)
    ]
    rows = [answer_row(*found, task.scope) for found in texts if found[2] is not None]
    if task.verifier is not None:
        _verify(task.verifier.guarded, rows, JournalVerdicts(journal, task.verifier), give_up_after)
    if task.selector is not None:
        verdicts = JournalVerdicts(journal, task.selector, "selection", "selected")
        _verify(task.selector.guarded, rows, verdicts, give_up_after)
    if task.checklists:
        verdicts, judge = JournalVerdicts(journal, task.verifier, "checklist", "checked"), task.verifier.judge
        if judge:
            reward = ChecklistReward(judge)
            lists = [
                replace(reward._row(row.shown.completion, row.key[0].reference), key=row.key)
                for row in rows
                if row.key[1] == 0 and row.ranges and "checklist" in row.key[0].reference
            ]
            _verify(GuardedVerifier(reward.verifier, timeout=None), lists, verdicts, give_up_after)
        else:
            verdicts.forget(rows)  # what another verifier's judge said
    if task.judge is not None:
        _vote(task.judge, rows, journal)


def _verify(
    verifier: GuardedVerifier,
    rows: Sequence[VerificationRequest],
    verdicts: JournalVerdicts,
    give_up_after: int | None,
) -> None:
    # An item may have no page in the knowledge base.
    flags = {"give_up_after": give_up_after, "needs_label": False, "progress": " verified", "total": len(rows)}
    for _ in judge_rows(verifier, rows, verdicts=verdicts, **flags):  # each is in the journal by now
        pass
    verdicts.forget(rows)


def _vote(judge: AnswerJudge, rows: Sequence[VerificationRequest], journal: KnownAnswers) -> None:
    todo = []
    for row in rows:
        item, number = row.key
        sample, key = journal.sample(item.id, number), judge.key(row)
        if row.ranges and (sample.get("voted") != key or None in sample["votes"]):
            todo.append(row)
    with _bar(len(todo), " judged") as bar:
        for row, votes in judge.vote(todo):
            item, number = row.key
            journal.add([{"id": item.id, "sample": number, "votes": votes, "voted": judge.key(row)}])
            bar.update()


def journal_rows(
    task: Task,
    journal: Journal,
    scores: Mapping[str, Sequence[float | None]],
    outcomes: Sequence[str | None] | None = None,
) -> list[dict[str, Any]]:
    """One row per item for [`Journal.finish`]: id, prompt, question, answers with their spans, a score per metric, and what
    became of the first answer, where that was asked."""
    rows = []
    for place, item in enumerate(task.items):
        row: dict[str, Any] = {"id": item.id, "prompt": list(item.messages), "question": item.question}
        if item.answer is not None:
            row["gold"] = item.answer  # not "answer", which is a completion where such a file is read
        if item.choices:
            row |= {"choices": list(item.choices), "correct": list(item.correct)}
        row |= journal_row(journal.answers.get(item.id, {}))
        if outcomes is not None and outcomes[place] is not None:
            row["outcome"] = outcomes[place]
        rows.append({**row, "scores": {name: values[place] for name, values in scores.items()}})
    return rows


def _bar(total: int, unit: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, disable=not sys.stderr.isatty() or not total, file=sys.stderr)
