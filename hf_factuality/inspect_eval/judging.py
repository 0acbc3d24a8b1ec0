"""What `hf_factuality.evaluate` does with answers, for answers that come one by one.

Prompts, judges and metrics are those of `evaluate`: this holds its task, asks its `judge_answers`, and calls its `score`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.evaluation.evaluate import read_arguments
from hf_factuality.evaluation.journal import KnownAnswers
from hf_factuality.evaluation.model import load_judges, read_items
from hf_factuality.evaluation.plan import Arguments, Task, make_plan
from hf_factuality.evaluation.run import judge_answers
from hf_factuality.evaluation.scoring import TaskAnswers, item_answer, rule_name, score
from hf_factuality.evaluation.suite import answer_axes
from hf_factuality.evaluation.verification import default_retriever
from hf_factuality.generation.cache import content_key
from hf_factuality.methods.long_form.axes import long_form_axes
from hf_factuality.verifiers.guard import quiet_guard


LONG_FORM = "long_form"
"""The axes of the suite `long-form`, as a metric."""
_UNREAD = "not read"  # stands for a dataset where only answers are judged


def plan_task(given: Mapping[str, Any]) -> tuple[Arguments, Task]:
    """The arguments of `evaluate` for one benchmark, checked, and its task; nothing is read or written."""
    args = read_arguments({**given, "model": "inspect", "out": None})
    (task,) = make_plan(args).tasks
    return args, task


def load_task(given: Mapping[str, Any]) -> tuple[Task, str | None]:
    """A task with its items, and how evidence is found for them in a knowledge base."""
    args, task = plan_task(given)
    read_items(args, task)
    return task, args.retriever or (default_retriever(task.items) if args.knowledge else None)


@cache
def shared_judging(given: str) -> AnswerJudging:
    """One judging for all scorers of the same arguments (JSON): its verifier is loaded once, and judges each answer once."""
    return AnswerJudging(json.loads(given))


class AnswerJudging:
    """A verifier or a judge, and the metrics that read what it found.

    Args:
        given (`Mapping[str, Any]`):
            Arguments of `evaluate`, with one `benchmark`.
    """

    def __init__(self, given: Mapping[str, Any]):
        dataset = {given["benchmark"]: _UNREAD}
        args, self.task = plan_task({"dataset": dataset, **given})
        self._stack = ExitStack()
        load_judges(args, self.task, self._stack)
        self.unscored: dict[str, dict[Any, tuple[dict[str, Any], dict[str, Any]]]] = {}
        """By run and sample, item and answer of what has no score. Inspect shows metrics the other samples only, but these count
        too: an answer whose judgement failed has made claims, and is one of the answers of a share."""
        self._known: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, tuple[BenchmarkItem, str]] = {}
        self._asking = threading.Lock()

    def check(self, items: Sequence[BenchmarkItem]) -> None:
        """`DataError` if the verifier can judge no answer to these items."""
        if self.task.verifier is not None:
            self.task.verifier.check(items)

    def judge(self, item: BenchmarkItem, text: str) -> dict[str, Any]:
        """What is known of an answer, as in a file of answers; blocks until it is judged. For any thread: answers that come while
        others are judged are judged together."""
        key = content_key({"item": asdict(item), "text": text})
        if key in self._known:
            return self._known[key]
        self._waiting[key] = (item, text)
        with self._asking:
            if key not in self._known:
                self._waiting.setdefault(key, (item, text))  # a call for the same answer may have taken it, and failed
                waiting, self._waiting = self._waiting, {}
                self._known |= self._judge(waiting)
            found = self._known[key]
            if _failed(found):
                del self._known[key]  # it may have been the server's, and is tried anew if it is asked for again
            return found

    def _judge(self, waiting: Mapping[str, tuple[BenchmarkItem, str]]) -> dict[str, dict[str, Any]]:
        answers, items = KnownAnswers(), [replace(item, id=key) for key, (item, _) in waiting.items()]
        answers.add({"id": key, "sample": 0, "text": text} for key, (_, text) in waiting.items())
        with quiet_guard():
            # Whoever asks counts failures; that all of a few answers failed says little.
            judge_answers(replace(self.task, items=items), answers, give_up_after=None)
        return {key: answers.sample(key) for key in waiting}

    def measure(
        self, metric: str, items: Sequence[BenchmarkItem], known: Sequence[Sequence[Mapping[str, Any]]], **options: Any
    ) -> tuple[float | None, dict[str, Any]]:
        """Value and result of a metric; `known` holds per item what is known of each answer, `options` are the metric's."""
        several = max((len(samples) for samples in known), default=1)
        sampling = self.task.generation
        if sampling is not None:  # that several answers can differ is known: they are here
            sampling = replace(sampling, num_samples=several, temperature=sampling.temperature or 1.0)
        arguments = {**self.task.metric_args, metric: {**self.task.metric_args.get(metric, {}), **options}}
        task = replace(self.task, items=items, generation=sampling, metric_args=arguments)
        answers = TaskAnswers(task, [{"completions": list(samples)} for samples in known])
        if metric == LONG_FORM:
            axes = long_form_axes(list(answer_axes(answers)))
            reasons = {"missing": len(items) - axes["n"]}
            result = {"parts": axes, "confidence_interval": None, "left_out": {"responses": reasons}}
            return axes["correct"], {**result, "scores": [axes["correct"]]}
        found = score(metric, answers)
        return found["value"], found

    def outcome(self, item: BenchmarkItem, sample: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """The final answer of a text, and what became of it ("correct", "wrong", "refused"), where gold answers are compared."""
        source = rule_name(self.task.benchmark, item)
        if source is None or sample.get("text") is None:
            return None, None
        final = item_answer(item, sample["text"], source)
        compared = self.task.judge or self.task.match
        task = replace(self.task, items=[item], generation=replace(self.task.generation, num_samples=1))
        return final, TaskAnswers(task, [{"completions": [sample]}]).outcomes[0] if compared else None


def _failed(sample: Mapping[str, Any]) -> bool:
    found = sample.get("verification") or {}
    return bool(found.get("error") or found.get("unanswered")) or None in (sample.get("votes") or ())
