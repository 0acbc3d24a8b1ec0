"""Scorers of Inspect: a metric each, over what a verifier or a judge of ours found in the answer of a sample.

The score of a sample is what its metric makes of this answer alone. The metric [`result`] computes the value of all answers
together, with its interval, by the function that `hf-factuality evaluate` calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from anyio.to_thread import run_sync
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import NOANSWER, Metric, SampleScore, Score, Scorer, Target, Value, metric, scorer
from inspect_ai.solver import TaskState

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.evaluation.claim_lines import markdown_claim
from hf_factuality.evaluation.own_file import NAME, own_item
from hf_factuality.evaluation.plan import GRADED_METRICS
from hf_factuality.evaluation.verification import JUDGE_TOKENS, found_in
from hf_factuality.functional.labels import judged_units
from hf_factuality.inspect_eval.judging import LONG_FORM, shared_judging
from hf_factuality.io.markdown import escaped
from hf_factuality.io.messages import completion_text
from hf_factuality.metrics._registry import CLAIM_METRICS
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.spans import Verification


SCORED = ("accuracy", *GRADED_METRICS, "halluqa", "halueval", *CLAIM_METRICS, LONG_FORM)
"""The metrics that have a scorer, which has its name."""
ITEM = "benchmark_item"
"""Where the metadata of a sample holds its item; samples without one are read as rows of a file of one's own."""
# What such samples may say in their metadata.
_COLUMNS = ("evidence", "topic", "domain", "data_source", "checklist")
# Reasons to leave an answer out that say something about it; all others leave the sample unscored.
_DECLINED = ("abstained", "no_facts", "no_sentences", "no_claims")
_CUT = ("max_tokens", "model_length")
_KEPT = ("text", "finish_reason", "verification", "checklist", "votes")


def item_row(item: BenchmarkItem) -> dict[str, Any]:
    """An item for the metadata of a sample, without its messages, which are the sample's input."""
    return {name: value for name, value in asdict(item).items() if name != "messages" and value not in (None, (), {})}


def _item(state: TaskState, target: Target) -> BenchmarkItem:
    known = state.metadata.get(ITEM)
    if known is not None:
        return _item_of(known)
    row = {name: state.metadata.get(name) for name in _COLUMNS}
    golds = [text for text in target if text]
    row |= {"id": state.sample_id, "question": state.input_text, "answer": golds or None}
    return own_item(row, 0, f"sample {state.sample_id}")


def _item_of(row: Mapping[str, Any]) -> BenchmarkItem:
    tuples = {name: tuple(row.get(name, ())) for name in ("evidence", "choices", "correct")}
    return BenchmarkItem(**{"question": None, **row, **tuples, "messages": ()})


def _answer(output: ModelOutput) -> dict[str, Any]:
    """What is known of an answer before it is judged; nothing of one that is missing."""
    if output.error is not None or not output.choices:
        return {}
    message = output.choices[0].message
    parts = [message.content] if isinstance(message.content, str) else message.content
    reasoning = "".join(part.reasoning for part in parts if not isinstance(part, str) and part.type == "reasoning")
    text = completion_text({"content": message.text, "reasoning_content": reasoning or None})[0]
    return {"text": text, "finish_reason": "length" if output.stop_reason in _CUT else "stop"}


def arguments_of(name: str, given: Mapping[str, Any]) -> str:
    """The arguments of the scorer of a metric, for [`shared_judging`]."""
    long_form = name == LONG_FORM
    metrics = given["metrics"] or (None if long_form else [name])
    suite = given["suite"] or ("long-form" if long_form else None)
    return json.dumps({**given, "metrics": metrics, "suite": suite}, sort_keys=True)


@metric(name="result", scores="unreduced")
def result() -> Metric:
    """The value of all answers together, the ends of its interval, and its parts that are numbers, as `evaluate` has them.

    Several epochs of a sample are several answers to it for `accuracy`; for other metrics each counts as an answer of its own.
    """

    def compute(scores: list[SampleScore]) -> Value:
        if not scores:
            return {}
        by = scores[0].score.metadata["scored_by"]
        judging, name = shared_judging(by["arguments"]), by["metric"]
        rows = [(it.sample_id, it.score.metadata["item"], it.score.metadata["answer"]) for it in scores]
        rows += [(sample, *pair) for (sample, _), pair in judging.unscored.get(by["run"], {}).items()]
        groups: dict[Any, list[tuple[Any, Any]]] = {}
        for number, (sample, *pair) in enumerate(rows):
            groups.setdefault(sample if name == "accuracy" else number, []).append(pair)
        items = [_item_of(group[0][0]) for group in groups.values()]
        value, found = judging.measure(name, items, [[known for _, known in it] for it in groups.values()])
        interval = found["confidence_interval"] or {}
        ends = {end: interval[end] for end in ("low", "high") if end in interval}
        parts = {key: it for key, it in found["parts"].items() if type(it) in (int, float)}
        return {name: math.nan if value is None else value, **ends, **parts}

    return compute


async def _score(name: str, arguments: str, run: str, state: TaskState, target: Target) -> Score:
    judging, run = shared_judging(arguments), f"{run} {state.model}"
    item, known = _item(state, target), _answer(state.output)
    if known:
        known |= await run_sync(judging.judge, item, known["text"])
    known = {key: known[key] for key in _KEPT if key in known}
    options = {} if name in ("accuracy", LONG_FORM) else {"resamples": 0}
    _, found = judging.measure(name, [item], [[known]], **options)
    value = found["scores"][0]
    final, outcome = judging.outcome(item, known)
    verification = found_in(known)
    failed = bool(known) and verification is not None and verification.error is not None
    reasons = [reason for reason, count in found["left_out"]["responses"].items() if count]
    if "no_k" in reasons:
        value = 0.0  # the only answer states nothing, so that there is no K; among others it has an F1 of 0
    common: dict[str, Any] = {
        "answer": final,
        "explanation": _explained(known.get("text"), verification, outcome),
        "metadata": {
            "answer": known,
            "item": item_row(item),
            "scored_by": {"metric": name, "arguments": arguments, "run": run},
        },
    }
    unscored = judging.unscored.setdefault(run, {})
    unscored.pop((state.sample_id, state.epoch), None)
    if reasons and reasons[0] in _DECLINED:
        return Score(value=NOANSWER, reason="refusal" if reasons[0] == "abstained" else reasons[0], **common)
    if value is None or failed:
        why = "no_response" if not known else "grader_failed" if failed or "unjudged" in reasons else "scoring_failed"
        unscored[state.sample_id, state.epoch] = (common["metadata"]["item"], known)
        return Score.unscored(reason=why, **common)
    return Score(value=value, **common)


def _explained(text: str | None, verification: Verification | None, outcome: str | None) -> str | None:
    """The claims of an answer with their labels and evidence, in Markdown; or what became of it."""
    if verification is None or text is None:
        return outcome
    if verification.error is not None:
        return f"not judged: {escaped(verification.error)}"
    lines = [markdown_claim(text, unit) for unit in judged_units(verification)]
    return "\n".join(([outcome, ""] if outcome else []) + lines) or outcome or "nothing to judge"


def _register(name: str) -> Any:
    def factory(
        benchmark: str = NAME,
        metrics: Sequence[str] | None = None,
        metric_args: dict[str, Any] | None = None,
        suite: str | None = None,
        style: str | None = None,
        verifier: str | None = None,
        verifier_base_url: str | None = None,
        verifier_tokens: int | None = None,
        scope: str = SCOPES[0],
        knowledge: str | None = None,
        retriever: str | None = None,
        num_passages: int = 5,
        judge: str | None = None,
        judge_base_url: str | None = None,
        judge_prompt: str | None = None,
        judge_votes: int = 1,
        judge_tokens: int = JUDGE_TOKENS,
        match: str | None = None,
    ) -> Scorer:
        given = dict(locals())
        del given["name"]  # of the closure
        arguments = arguments_of(name, given)
        shared_judging(arguments)  # what cannot work is said now
        run = uuid4().hex

        async def score(state: TaskState, target: Target) -> Score:
            return await _score(name, arguments, run, state, target)

        return score

    return scorer(metrics=[result()], name=name)(factory)


SCORERS = {name: _register(name) for name in SCORED}
"""The scorers by name, as functions of the arguments of `hf_factuality.evaluate` that say who judges and how."""
