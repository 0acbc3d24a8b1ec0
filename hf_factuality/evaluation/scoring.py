"""From answers to results: the metrics of this package, and `accuracy`, which is the answer reward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.best_of import best_of_curve, best_of_n, majority_of_n
from hf_factuality.evaluation.plan import GRADED_METRICS, JUDGE_METRICS, Task
from hf_factuality.evaluation.verification import answer_row, found_in, gold_answers, opens_reasoning
from hf_factuality.functional.answers import contained_match
from hf_factuality.functional.scoring import mean
from hf_factuality.generation.cache import content_key
from hf_factuality.methods.process_reward.formula import aggregate_steps
from hf_factuality.metrics._claims import Answer, small_answer
from hf_factuality.metrics._common import Options, make_result
from hf_factuality.metrics._registry import compute
from hf_factuality.reading.completion import read
from hf_factuality.reading.marks import final_range, stated_confidence
from hf_factuality.reading.rules import abstains
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.rewards import SCORERS, FSPOAnswerReward
from hf_factuality.spans import Verification


_MATH = ("MATH", "GSM8K", "math", "gsm8k")
# A letter alone or after "Answer", whatever stands around it: "(A)", "**A**", "Answer: A", "A。".
_LETTER = re.compile(r"\W*(?:(?:answer|答案)\W*)?([a-h])\W*", re.IGNORECASE)


def rule_name(benchmark: Benchmark, item: BenchmarkItem) -> str | None:
    """The data source whose rule compares the answers to an item: its row's, else the benchmark's."""
    return item.reference.get("data_source") or benchmark.data_source


def applied_rules(task: Task) -> dict[str, Any]:
    """For the settings of a result, by which rule answers were compared: `data_source`, or of several how many items each has."""
    counted = Counter(rule_name(task.benchmark, item) for item in task.items)
    return {"data_source": next(iter(counted)) if len(counted) == 1 else dict(sorted(counted.items()))}


def item_answer(item: BenchmarkItem, completion: str, data_source: str | None) -> str | None:
    """The one final answer of a completion ([`~hf_factuality.reading.final_answer`]); reasoning that is still open has none.

    Of mathematics, one that is marked as such: by tags, a box, or `####`. Of lettered options, only a letter.
    """
    opened = opens_reasoning(item)
    final = read(completion, opened).final
    if data_source in _MATH and final_range(completion, opened)[1] == "whole":
        return None
    if "letter" in item.reference:
        match = _LETTER.fullmatch(final or "")
        return match and match[1].upper()
    return final


@dataclass
class TaskAnswers:
    """All answers of a task: `known` holds per item what its journal does."""

    task: Task
    known: Sequence[Mapping[str, Any]]
    published: bool = False  # prompts, items and format are those of the published evaluation

    @cached_property
    def samples(self) -> list[list[Mapping[str, Any]]]:
        """Per item, what is known of each completion that it should have; nothing of one that is missing."""
        count = self.task.generation.num_samples if self.task.generation else 0
        found = [[*it.get("completions", ()), *[None] * count][:count] for it in self.known]
        return [[sample or {} for sample in samples] for samples in found]

    @cached_property
    def judged(self) -> list[list[Answer | None]]:
        """Per item and sample that is judged, what metrics over claims read of it."""
        return [
            [self._judged(item, sample) for sample in samples[: self.task.judged_samples]]
            for item, samples in zip(self.task.items, self.samples, strict=True)
        ]

    @cached_property
    def outcomes(self) -> list[str | None]:
        """What became of the first answer to each item; one without text is wrong, as the answer reward has it."""
        return [self._outcome(item, it[0]) for item, it in zip(self.task.items, self.samples, strict=True)]

    def _outcome(self, item: BenchmarkItem, sample: Mapping[str, Any]) -> str | None:
        if sample.get("text") is None:
            return None
        row, source = answer_row(item, 0, sample["text"], self.task.scope), rule_name(self.task.benchmark, item)
        if not row.ranges:
            return "wrong" if source else "answered"
        if self.task.judge:
            return self.task.judge.outcome(sample.get("votes") or ())
        if read(sample["text"], opens_reasoning(item)).declines:
            return "refused"  # never right
        final = item_answer(item, sample["text"], source)
        rule = SCORERS.get(source) if self.task.match == "exact" else contained_match
        right = rule(final, gold_answers(item)) if source and final else 0.0
        if right is not None and right < 0.5:
            return "wrong" if source else "answered"
        return right and "correct"

    def _judged(self, item: BenchmarkItem, sample: Mapping[str, Any]) -> Answer | None:
        if sample.get("text") is None:
            return None
        row = answer_row(item, 0, sample["text"], self.task.scope)
        found, unjudged = found_in(sample), None
        if found is None or found.error is not None:
            lacks = self.task.verifier.requires_evidence and not row.input.evidence
            found, unjudged = Verification(), "no_evidence" if lacks else "verifier_failed"
        return small_answer(row.shown.completion, found.gather(row.ranges), unjudged, item.domain)


def score(name: str, answers: TaskAnswers) -> dict[str, Any]:
    """The result of a metric as its module returns it, with `scores`, one per item, and `value` instead of its name."""
    task = answers.task
    if name == "accuracy":
        found = accuracy(answers)
        return {"value": found.pop(name), **found}
    predictions, references, options = _INPUTS.get(name, _claims)(answers)
    options |= task.metric_args.get(name, {})
    metric = task.own_metrics.get(name, name)
    found = compute(metric, predictions, references, return_scores=True, **options)
    found["extractor"] = found["judge"] = None  # the numbers are the model's own
    if name in task.judged_metrics:
        who = task.judge if name == "halluqa" and task.judge else task.verifier
        found["extractor"] = who.description.get("extractor")
        found["judge"] = who.description if who is task.judge else who.description["judge"]
    if name in GRADED_METRICS:
        found["judge"] = task.judge.description if task.judge else {"name": f"match {task.match}"}
        # Without a judge, which has its scope in its description. Where nothing has a gold answer nothing was compared.
        if not task.judge and task.benchmark.data_source:
            rules = applied_rules(task)["data_source"]  # which also says where the final answer of a text is
            found["settings"] |= {"data_source" if task.match == "exact" else "final_answer_of": rules}
        if not task.judge and task.scope != SCOPES[0]:
            found["settings"] |= {"scope": task.scope}
    if task.best_of and name in task.claim_metrics:
        flat = [answer for samples in answers.judged for answer in samples]
        scores = iter(compute(metric, flat, return_scores=True, **{**options, "resamples": 0})["scores"])
        curve = best_of_curve([[next(scores) for _ in samples] for samples in answers.judged], task.best_of)
        found["parts"]["best_of"] = curve
    return {"value": found.pop(name), **found}


def _claims(answers: TaskAnswers) -> tuple[list[Any], None, dict[str, Any]]:
    return [samples[0] for samples in answers.judged], None, {}


def _halluqa(answers: TaskAnswers) -> tuple[list[Any], None, dict[str, Any]]:
    task = answers.task
    if task.judge is None:
        return _claims(answers)
    voted = []
    for item, (sample, *_) in zip(task.items, answers.samples, strict=True):
        text = sample.get("text")
        shown = None if text is None else answer_row(item, 0, text, task.scope).shown.completion
        voted.append(None if text is None else {"text": shown, "votes": list(sample.get("votes") or [])})
    return voted, None, {}


def _halueval(answers: TaskAnswers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    task = answers.task
    texts = [samples[0].get("text") for samples in answers.samples]
    predictions = [
        None if text is None else item_answer(item, text, rule_name(task.benchmark, item)) or ""
        for item, text in zip(task.items, texts, strict=True)
    ]
    return predictions, [item.reference for item in task.items], {}


def _truthfulqa(answers: TaskAnswers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    predictions = []
    for item, known in zip(answers.task.items, answers.known, strict=True):
        values = known.get("log_likelihoods")
        places = {kind: item.reference[f"{kind}_choices"] for kind in ("mc1", "mc2")}
        predictions.append(values and {kind: [values[place] for place in found] for kind, found in places.items()})
    options = {"judge": "published prompts"} if answers.published else {}
    return predictions, [item.reference for item in answers.task.items], options


def _abstention(answers: TaskAnswers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    known = [item.reference.get("answerable", bool(item.answer) or None) for item in answers.task.items]
    asked = [{"answerable": it, "domain": item.domain} for it, item in zip(known, answers.task.items, strict=True)]
    return answers.outcomes, asked, {} if answers.task.benchmark.data_source else {"score": "f1"}


def _calibration(answers: TaskAnswers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    first = zip(answers.task.items, answers.samples, strict=True)
    stated = [stated_confidence(it[0].get("text") or "", opens_reasoning(item)) for item, it in first]
    return stated, answers.outcomes, {}


def _verdicts(answers: TaskAnswers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Verdicts on given claims, with what is true of them; claims with the same evidence are a group."""
    predictions, references = [], []
    for item, (sample, *_) in zip(answers.task.items, answers.samples, strict=True):
        predictions.append(found_in(sample))
        group = content_key({"evidence": list(item.evidence)})
        references.append({**item.reference, "domain": item.domain, "group": group})
    return predictions, references, {}


_INPUTS = {"abstention": _abstention, "calibration": _calibration, "halluqa": _halluqa, "halueval": _halueval,
           "truthfulqa": _truthfulqa, **dict.fromkeys(JUDGE_METRICS, _verdicts)}  # fmt: skip


def accuracy(answers: TaskAnswers) -> dict[str, Any]:
    """Share of answers that the answer reward finds right, the mean of several samples per item (pass@1); 0 without a final
    answer. The part `reward` is the mean of the training reward, which also wants the format."""
    task, benchmark, reward = answers.task, answers.task.benchmark, FSPOAnswerReward()
    scores: list[float | None] = []
    rewards: list[float | None] = []
    counts: Counter[str] = Counter()
    rights, chosen = [], []  # of the samples of each item, and by what `best_of` chooses
    for item, samples in zip(answers.task.items, answers.samples, strict=True):
        source = rule_name(benchmark, item)
        golds = gold_answers(item)
        found, finals = [], []
        for sample in samples:
            text = sample.get("text")
            final = None if text is None else item_answer(item, text, source)
            finals.append(final)
            # One that declines is never right, unless that is the gold answer.
            right = final and (not abstains(final) or any(map(abstains, golds)))
            found.append(None if text is None else SCORERS[source](final, golds) if right else 0.0)
            counts["missing"] += text is None
            counts["no_gold"] += text is not None and found[-1] is None
            counts["unparsable"] += text is not None and final is None
            if found[-1] is not None:
                rewards += reward([list(item.messages)], [text], answer=[item.answer], data_source=[source])
        # A sample that is missing must not make the others count for more than they are.
        scores.append(None if None in found else mean(found))
        counts["samples"] += len(found) if scores[-1] is not None else 0
        if task.best_of:
            rights.append(found if scores[-1] is not None else [None] * len(found))
            chosen.append(_chosen_by(task, samples, finals, found, SCORERS[source]))
    parts = {"samples": counts["samples"], "unparsable": counts["unparsable"], "reward": mean(rewards)}
    settings = applied_rules(task)
    if task.best_of:
        how = majority_of_n if task.best_of_by == "majority" else best_of_n
        parts["best_of"] = best_of_curve(rights, task.best_of, chosen, how)
        parts["not_chosen"] = sum(by is None for own in chosen for by in own)
        settings |= {"best_of_by": task.best_of_by} | ({"aggregate": task.aggregate} if task.selector else {})
        if task.selector and task.scope != SCOPES[0]:
            settings |= {"scope": task.scope}
    return make_result(
        "accuracy",
        mean(scores),
        scores=scores,
        parts=parts,
        left_out={"responses": {name: counts[name] for name in ("missing", "no_gold")}},
        settings=settings,
        extractor=None,
        judge=task.selector.description["judge"] if task.selector else None,
        options=Options(return_scores=True),
    )


def _chosen_by(task: Task, samples: Sequence[Mapping[str, Any]], finals: list, rights: list, rule: Any) -> list[Any]:
    """Per sample, what `best_of` chooses by: the score of a verifier, the answer that it votes for, or whether it is right."""
    if task.selector:
        found = [found_in(sample, "selection") for sample in samples]
        scores = [[span.score for span in one.spans] if one and not one.error else [] for one in found]
        return [aggregate_steps(own, task.aggregate) for own in scores]
    if task.best_of_by is None:
        return rights
    votes: dict[str, str] = {}
    for final in filter(None, finals):  # answers that the rule finds equal are one
        same = (vote for vote in dict.fromkeys(votes.values()) if (rule(final, [vote]) or 0) >= 0.5)
        votes[final] = votes.get(final) or next(same, final)
    return [votes.get(final) for final in finals]


def check_gold(benchmark: Benchmark, items: Sequence[BenchmarkItem]) -> None:
    """Check that answers can be compared: every item has a gold answer, and a data source with a rule."""
    without = [item.id for item in items if not item.answer]
    if without:
        lacking = f"item {without[0]!r} and {len(without) - 1} more have none"
        raise DataError(f"accuracy needs a gold answer in 'answer'; {lacking}")
    sources = [rule_name(benchmark, item) for item in items]
    FSPOAnswerReward().check({"answer": [item.answer for item in items], "data_source": sources})
