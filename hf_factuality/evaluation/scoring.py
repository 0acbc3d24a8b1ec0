"""From answers to results: the metrics of this package, and `accuracy`, which is the answer reward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.best_of import best_of_curve
from hf_factuality.evaluation.verification import answer_row, opens_reasoning
from hf_factuality.metrics._claims import Answer, small_answer
from hf_factuality.metrics._common import Options, make_result
from hf_factuality.metrics._registry import CLAIM_METRICS, compute
from hf_factuality.rewards import SCORERS, FSPOAnswerReward, extract_answer
from hf_factuality.spans import Verification, scope_ranges
from hf_factuality.verifiers.service import Row


JUDGED_METRICS = (*CLAIM_METRICS, "halluqa")
"""Metrics that need a verifier or a judge."""
_MATH = ("MATH", "GSM8K")
# A letter alone or after "Answer", whatever stands around it: "(A)", "**A**", "Answer: A", "A。".
_LETTER = re.compile(r"\W*(?:(?:answer|答案)\W*)?([a-h])\W*", re.IGNORECASE)


def metrics_of(benchmark: Benchmark) -> tuple[str, ...]:
    """Names of the metrics that are defined for a benchmark, its own first."""
    if benchmark.kind == "log_likelihood":
        return benchmark.metrics
    more = ("accuracy",) if benchmark.data_source and benchmark.name != "halueval-qa" else ()
    return tuple(dict.fromkeys((*benchmark.metrics, *more, *CLAIM_METRICS)))


def boxed(text: str) -> str | None:
    r"""What is inside the last `\boxed{...}` of a text; `None` if there is none that is closed."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for place in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : place].strip()
        start = text.rfind("\\boxed{", 0, start)
    return None


def final_answer(item: BenchmarkItem, completion: str, data_source: str | None) -> str | None:
    r"""The answer that a completion comes to.

    The text of the last `<answer>` tags; without them, of mathematics the last `\boxed{}`, and otherwise all that follows
    the reasoning. Reasoning that is still open, also one that the prompt has opened, comes to no answer. To a question with
    lettered options, only a letter is an answer: the rule that compares texts would take an "A" in brackets for an article.

    Args:
        item ([`BenchmarkItem`]):
            The item, for its prompt.
        completion (`str`):
            The completion.
        data_source (`str`, *optional*):
            `"MATH"` and `"GSM8K"` are mathematics.

    Returns:
        `str` or `None`.
    """
    tagged = extract_answer(completion)
    rest = tagged
    if rest is None:
        rest = completion[slice(*scope_ranges(completion, opened=opens_reasoning(item))[-1])].strip()
    if "letter" in item.reference:
        match = _LETTER.fullmatch(rest)
        return match and match[1].upper()
    if tagged is not None:
        return tagged or None
    return boxed(rest) if data_source in _MATH else rest or None


@dataclass
class Answers:
    """All answers of a benchmark, and what was found in them.

    Args:
        benchmark ([`Benchmark`]), items (`Sequence[BenchmarkItem]`):
            What was asked.
        completions (`Sequence[Sequence[str | None]]`):
            Per item and sample; `None` for one that is missing.
        log_likelihoods (`Sequence[Sequence[float] | None]`, *optional*):
            Per item and choice, where that was asked.
        verifications (`Sequence[Verification | None]`, *optional*):
            Per item, of its first completion.
        votes (`Sequence[Sequence[str | None] | None]`, *optional*):
            Per item.
        verifier (`AnswerVerifier`, *optional*), judge (`AnswerJudge`, *optional*):
            Who found them.
        scope (`str`, *optional*, defaults to `"answer"`):
            What of the completions they were shown.
        published (`bool`):
            Whether prompts, items and format are those of the published evaluation.
        metric_args (`Mapping[str, Mapping[str, Any]]`, *optional*):
            Arguments per metric.
        best_of (`Sequence[int]`, *optional*):
            Numbers of samples; metrics over claims get the part `best_of`, see [`best_of_curve`].
        sample_verifications (`Sequence[Sequence[Verification | None]]`, *optional*):
            Per item and sample, for `best_of`.
    """

    benchmark: Benchmark
    items: Sequence[BenchmarkItem]
    completions: Sequence[Sequence[str | None]]
    log_likelihoods: Sequence[Sequence[float] | None] = ()
    verifications: Sequence[Verification | None] = ()
    votes: Sequence[Sequence[str | None] | None] = ()
    verifier: Any = None
    judge: Any = None
    scope: str = "answer"
    published: bool = False
    metric_args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    best_of: Sequence[int] = ()
    sample_verifications: Sequence[Sequence[Verification | None]] = ()

    @property
    def first(self) -> list[str | None]:
        """Per item, its first completion."""
        return [texts[0] for texts in self.completions]

    @cached_property
    def shown(self) -> list[str | None]:
        """Per item, what is judged of its first completion."""
        return [row and row.shown.completion for row in self._rows]

    @cached_property
    def judged(self) -> list[Answer | None]:
        """Per item, what metrics over claims read of its first completion."""
        found = self.verifications or [None] * len(self.items)
        return [row and self._judged(row, it) for row, it in zip(self._rows, found, strict=True)]

    @cached_property
    def _rows(self) -> list[Row | None]:
        rows = zip(self.items, self.first, strict=True)
        return [None if text is None else answer_row(item, 0, text, self.scope) for item, text in rows]

    def _judged(self, row: Row, found: Verification | None) -> Answer:
        unjudged = None
        if found is None or found.error is not None:
            lacks = self.verifier.requires_evidence and not row.input.evidence
            found, unjudged = Verification(), "no_evidence" if lacks else "verifier_failed"
        item, _ = row.key
        return small_answer(row.shown.completion, found.gather(row.ranges), unjudged, item.domain)


def score(name: str, answers: Answers) -> dict[str, Any]:
    """The result of a metric as its module returns it, with `scores`, one per item.

    Args:
        name (`str`):
            One of [`metrics_of`].
        answers ([`Answers`]):
            What to score.

    Returns:
        `dict[str, Any]`, see docs/metrics.md; `value` instead of the metric's name.
    """
    if name == "accuracy":
        found = accuracy(answers)
    else:
        predictions, references, options = _INPUTS[name](answers) if name in _INPUTS else (answers.judged, None, {})
        options |= answers.metric_args.get(name, {})
        found = compute(name, predictions, references, return_scores=True, **options)
        if name in JUDGED_METRICS:
            who = answers.judge if name == "halluqa" and answers.judge else answers.verifier
            found["extractor"] = who.description.get("extractor")
            found["judge"] = who.description if who is answers.judge else who.description["judge"]
        else:  # the numbers are the model's own
            found["extractor"] = found["judge"] = None
    if answers.best_of and name in CLAIM_METRICS:
        found["parts"]["best_of"] = best_of_curve(_sample_scores(name, answers), answers.best_of)
    return {"value": found.pop(name), **found}


def _sample_scores(name: str, answers: Answers) -> list[list[float | None]]:
    """Per item and sample, the score of its response."""
    flat = replace(
        answers,
        items=[item for item, texts in zip(answers.items, answers.completions, strict=True) for _ in texts],
        completions=[[text] for texts in answers.completions for text in texts],
        verifications=[found for samples in answers.sample_verifications for found in samples],
        metric_args={name: {**answers.metric_args.get(name, {}), "resamples": 0}},
        best_of=(),
    )
    scores = iter(score(name, flat)["scores"])
    return [[next(scores) for _ in texts] for texts in answers.completions]


def _halluqa(answers: Answers) -> tuple[list[Any], list[Any] | None, dict[str, Any]]:
    if answers.judge is None:
        return answers.judged, None, {}
    voted = [
        None if text is None else {"text": text, "votes": list(votes or [])}
        for text, votes in zip(answers.shown, answers.votes, strict=True)
    ]
    return voted, None, {}


def _halueval(answers: Answers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    predictions = [
        None if text is None else final_answer(item, text, answers.benchmark.data_source) or ""
        for item, text in zip(answers.items, answers.first, strict=True)
    ]
    return predictions, [item.reference for item in answers.items], {}


def _truthfulqa(answers: Answers) -> tuple[list[Any], list[Any], dict[str, Any]]:
    predictions = [
        values and {kind: [values[place] for place in item.reference[f"{kind}_choices"]] for kind in ("mc1", "mc2")}
        for item, values in zip(answers.items, answers.log_likelihoods, strict=True)
    ]
    options = {"judge": "published prompts"} if answers.published else {}
    return predictions, [item.reference for item in answers.items], options


_INPUTS = {"halluqa": _halluqa, "halueval": _halueval, "truthfulqa": _truthfulqa}


def accuracy(answers: Answers) -> dict[str, Any]:
    """Share of answers that the answer reward finds right; with several samples, the mean of them per item (pass@1).

    The final answer of a completion ([`final_answer`]) is scored by the rule of its data source, the one that pays the
    reward. Without a final answer, the score is 0, as is the reward, and `unparsable` counts it.

    Args:
        answers ([`Answers`]):
            With completions.

    Returns:
        `dict[str, Any]`: in the form of the metrics. Parts: `samples` (scored), `unparsable`, `reward` (mean of the
        training reward, which also wants the format `<think> </think> <answer> </answer>`).
    """
    reward = FSPOAnswerReward()
    scores: list[float | None] = []
    rewards: list[float] = []
    counts: Counter[str] = Counter()
    for item, texts in zip(answers.items, answers.completions, strict=True):
        source = item.reference.get("data_source") or answers.benchmark.data_source
        golds = [item.answer] if isinstance(item.answer, str) else list(item.answer or ())
        found = []
        for text in texts:
            if text is None:
                counts["missing"] += 1
                continue
            final = final_answer(item, text, source)
            value = SCORERS[source](final, golds) if final else 0.0
            if value is None:
                counts["no_gold"] += 1
                continue
            counts["unparsable"] += final is None
            found.append(value)
            paid = reward([list(item.messages)], [text], answer=[item.answer], data_source=[source])[0]
            rewards += [] if paid is None else [paid]
        # A sample that is missing must not make the others count for more than they are.
        scores.append(sum(found) / len(found) if found and len(found) == len(texts) else None)
    known = [value for value in scores if value is not None]
    samples = sum(len(texts) for texts, value in zip(answers.completions, scores, strict=True) if value is not None)
    return make_result(
        "accuracy",
        sum(known) / len(known) if known else None,
        scores=scores,
        parts={
            "samples": samples,
            "unparsable": counts["unparsable"],
            "reward": sum(rewards) / len(rewards) if rewards else None,
        },
        left_out={"responses": {name: counts[name] for name in ("missing", "no_gold")}},
        settings={"data_source": answers.benchmark.data_source},
        extractor=None,
        judge=None,
        options=Options(return_scores=True),
    )


def check_gold(benchmark: Benchmark, items: Sequence[BenchmarkItem]) -> None:
    """Check that `accuracy` can be computed.

    Raises:
        `DataError`: an item has no gold answer, or an unknown data source.
        `ImportError`: `math-verify` is needed and not installed.
    """
    sources = [item.reference.get("data_source") or benchmark.data_source for item in items]
    without = [item.id for item in items if not item.answer]
    if without:
        raise DataError(
            f"accuracy needs a gold answer in 'answer'; item {without[0]!r} and {len(without) - 1} more have none"
        )
    FSPOAnswerReward().check({"answer": [item.answer for item in items], "data_source": sources})
