"""From questions with passages to pairs of answers, compared on four axes (RAG-Reward, arXiv 2501.13264)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hf_factuality.data.build import (
    LONG_ANSWERS,
    BuildArguments,
    BuildReport,
    Rows,
    build_arguments,
    refuse_arguments,
    run_build,
    verifier_name,
)
from hf_factuality.data.builder import DatasetKind, Unjudged, judged_responses, seeded_random, verified_responses
from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.data.sampling import GivenResponses, Sampler
from hf_factuality.errors import DataError
from hf_factuality.functional.scoring import factual_precision
from hf_factuality.reading.same import distinct_units
from hf_factuality.spans import Label, Verification
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.judges.compare import AXES, grounded_messages
from hf_factuality.verifiers.registry import load_verifier


if TYPE_CHECKING:
    from datasets import Dataset


REASONS = {
    "no_pair": "questions without two different finished answers", "tie": "pairs that are equally good on an axis",
    "disagreement": "pairs on an axis that were judged otherwise in the other order", "unknown": "pairs on an axis without a verdict",
}  # fmt: skip
KIND = DatasetKind("preferences.parquet", "preferences", "preference", REASONS, """# Answers to questions with passages, compared on {axes}

{rows} preferences between {pairs} pairs of answers to {questions} questions, made with hf_factuality {version} for a reward
model of grounded answers ([RAG-Reward](https://huggingface.co/papers/2501.13264)). Each row is one pair on one `axis`, as
TRL's `RewardTrainer` reads it. A judge of pairs was asked in both orders: ties and pairs on which the orders disagree are in
the configuration `undecided`, not in the data for training.

**The preferences are a model's or a program's, not people's.**
""", ("rag-reward", "preference", "factuality"), apart="undecided.parquet")  # fmt: skip
push_rag_preferences = KIND.push


@dataclass(frozen=True)
class RAGPreferenceConfig:
    """Which pairs are judged, and when one answer is better.

    Args:
        pairs_per_question (`int`, *optional*, defaults to `1`):
            Drawn by the seed.
        min_margin (`float`, *optional*, defaults to `0.0`):
            Of an axis that a verifier decides by what it finds in each answer: shares of supported sentences that differ by
            this or less are a tie.

    Raises:
        `ValueError`: a value is out of range.
    """

    pairs_per_question: int = 1
    min_margin: float = 0.0

    def __post_init__(self):
        if self.pairs_per_question < 1 or not 0 <= self.min_margin < 1:
            given = f"{self.pairs_per_question} and {self.min_margin}"
            raise ValueError(f"need pairs_per_question >= 1 and 0 <= min_margin < 1, got {given}")


def with_passages(questions: Sequence[PreferenceQuestion]) -> list[PreferenceQuestion]:
    """The questions as asked with their numbered passages; those that come with a `prompt` of their own keep it."""
    without = [question.id for question in questions if not question.evidence]
    if without:
        raise DataError(
            f"{len(without)} of {len(questions)} questions have no passages, the first of them {without[0]!r}; give each a column "
            "'evidence', a list of texts"
        )
    return [
        it if it.row.get("prompt") else replace(it, messages=(*grounded_messages(it.question, it.evidence),))
        for it in questions
    ]


def rag_preferences_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    judges: Mapping[str, Verifier],
    folder: str | os.PathLike,
    *,
    preferences: RAGPreferenceConfig | None = None,
    **run: Any,
) -> Dataset:
    """Sample answers to questions with passages, and compare pairs of them on each axis.

    Args:
        questions, sampler, folder, **run:
            As for [`~hf_factuality.data.preferences_from`]; evidence is the passages. Answers of several models come as
            [`~hf_factuality.data.sampling.GivenResponses`].
        judges (`Mapping[str, Verifier]`):
            Axis -> who decides it, each in a folder of the run with its name: a judge of pairs
            ([`~hf_factuality.verifiers.CompareVerifier`]), which is asked in both orders, or any verifier, by the share of
            supported sentences of each answer (`"citations:nli:MODEL"`: attribution without a judge of pairs).
        preferences ([`RAGPreferenceConfig`], *optional*):
            Which pairs; `min_margin` may differ when a run is continued.

    Returns:
        `datasets.Dataset`: columns `id`, `axis`, `prompt`, `chosen`, `rejected` (conversations), `question`, `evidence` (a
        list), `topic`. Ties and disagreements are rows of `undecided.parquet`, with their `verdict`.

    Raises:
        `DataError`, `JudgingError`: as there; a question without passages. `ValueError`: no axis, or one with a name that is
        no folder's.
    """
    config, folder, seed = preferences or RAGPreferenceConfig(), Path(folder), run.get("seed", 0)
    if not judges or not all(axis.isidentifier() for axis in judges):
        raise ValueError(f"judges need the names of axes, such as {[*AXES]}; got {[*judges]}")
    questions, counts = with_passages(questions), Counter(dict.fromkeys(REASONS, 0))
    texts, pairs = {}, {}
    with judged_responses(questions, sampler, Unjudged(), folder, KIND.file, **run) as journals:
        for question in questions:
            found = [
                text for text, _ in verified_responses(question, *journals, counts, finished=True) if text.strip()
            ]
            texts[question.id] = found = list(dict.fromkeys(found))
            every = list(combinations(range(len(found)), 2))
            counts["no_pair"] += not every
            pairs[question.id] = seeded_random(seed, question.id).sample(
                every, min(len(every), config.pairs_per_question)
            )
    counts["cut_off_responses"] = 0  # none is kept
    rows, undecided = [], []
    for axis, judge in judges.items():
        judged = (_compared if getattr(judge, "compares", False) else _scored)(
            questions, texts, pairs, judge, folder / axis, config.min_margin, run
        )
        for question in questions:
            for first, second in pairs[question.id]:
                verdict = judged[question.id, first, second]
                said = [[{"role": "assistant", "content": texts[question.id][n]}] for n in (first, second)]
                row = question.columns() | {"id": f"{question.id} {first} {second} {axis}", "axis": axis}
                if verdict in ("first", "second"):
                    chosen, rejected = said if verdict == "first" else said[::-1]
                    rows.append(row | {"chosen": chosen, "rejected": rejected})
                    continue
                counts[verdict] += 1
                if verdict != "unknown":
                    undecided.append(row | {"verdict": verdict, "first": said[0], "second": said[1]})
    report = {
        "questions": len(questions), "pairs": sum(map(len, pairs.values())), "rows": len(rows), "axes": ", ".join(judges),
        "preferences": {axis: sum(row["axis"] == axis for row in rows) for axis in judges},
        **counts,
    }  # fmt: skip
    columns = "id axis question topic evidence prompt"
    apart = undecided, f"{columns} verdict first second"
    return KIND.write(folder, rows, f"{columns} chosen rejected", report, config, apart=apart)


def _compared(questions, texts, pairs, judge, folder, margin, run) -> dict[tuple[str, int, int], str]:
    """By a judge of pairs: each order is a question of its own, whose response is the answer that is shown first."""
    asked, shown = [], {}
    for question in questions:
        for first, second in pairs[question.id]:
            for one, other in ((first, second), (second, first)):
                key, own = f"{question.id} {one} {other}", texts[question.id]
                asked.append(replace(question, id=key, row={"other": own[other]}))
                shown[key] = [own[one]]
    labels = {
        key: verdicts[0].spans[0].label if verdicts[0] and verdicts[0].spans else None
        for key, verdicts in _verdicts(asked, shown, judge, folder, run).items()
    }
    return {
        (question.id, *pair): _agreed(*(labels[f"{question.id} {one} {other}"] for one, other in (pair, pair[::-1])))
        for question in questions
        for pair in pairs[question.id]
    }


def _agreed(first: Label | None, second: Label | None) -> str:
    """Of the labels of the first answer, shown first, and of the second one, shown first."""
    if first is None or second is None:
        return "unknown"
    if (first, second) == (Label.UNVERIFIABLE, Label.UNVERIFIABLE):
        return "tie"
    known = {(Label.SUPPORTED, Label.CONTRADICTED): "first", (Label.CONTRADICTED, Label.SUPPORTED): "second"}
    return known.get((first, second), "disagreement")


def _scored(questions, texts, pairs, judge, folder, margin, run) -> dict[tuple[str, int, int], str]:
    """By the shares of sentences that a verifier supports."""
    asked = [question for question in questions if pairs[question.id]]
    found, judged = _verdicts(asked, texts, judge, folder, run), {}
    for question in asked:
        shares = [
            factual_precision(distinct_units(it.spans, text)) if it and not it.error else None
            for it, text in zip(found[question.id], texts[question.id], strict=True)
        ]
        for first, second in pairs[question.id]:
            one, other = shares[first], shares[second]
            if one is None or other is None:
                verdict = "unknown"
            else:
                verdict = "tie" if abs(one - other) <= margin else "first" if one > other else "second"
            judged[question.id, first, second] = verdict
    return judged


def _verdicts(asked, texts, judge, folder, run) -> dict[str, list[Verification | None]]:
    if not asked:
        return {}
    given = GivenResponses({question.id: texts[question.id] for question in asked})
    with judged_responses(asked, given, judge, folder, **run) as journals:
        return {it.id: [verdict for _, verdict in verified_responses(it, *journals, Counter())] for it in asked}


def build_rag_preferences(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    axis: Sequence[str] | Mapping[str, str | Verifier | None] | None = None,
    pairs_per_question: int = 1,
    min_margin: float = 0.0,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample answers to questions with passages and compare them on four axes, for RAG-Reward.

    Args:
        questions, out, **options:
            As of [`build_preferences`], with the passages as `evidence`; `knowledge` means nothing. `verifier` decides the
            axes for which no other one is named: a judge of pairs, such as `"compare:MODEL"`. Sampled are by default 4
            answers at temperature 1.0, of at most 1024 tokens.
        axis (`Sequence[str]` or `Mapping[str, str | Verifier]`, *optional*):
            Axes to compare on, maybe with the verifier that decides: `["verbosity", "attribution=citations:hhem"]`, or
            `{"verbosity": None, "attribution": verifier}`. By default all four of RAG-Reward.
        pairs_per_question, min_margin (*optional*):
            See [`~hf_factuality.data.RAGPreferenceConfig`].

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.rag_preferences_from`] makes them.

    Raises:
        As [`build_preferences`]. `DataError`: also for a question without passages.

    Example:

        >>> build_rag_preferences("questions.jsonl", out="rag", model="Qwen/Qwen3-0.6B", axis=["attribution=citations:hhem"])
    """
    args = build_arguments(options, questions, out)
    config = RAGPreferenceConfig(pairs_per_question, min_margin)
    refuse_arguments(args, "answers are compared by the passages of the questions", "knowledge")
    named = axis if isinstance(axis, Mapping) else dict(text.partition("=")[::2] for text in axis or AXES)
    own = {name: load_verifier(verifier) for name, verifier in named.items() if verifier}

    def make(questions, sampler, verifier, folder, **run):
        if len(own) < len(named) and not getattr(verifier, "compares", False):
            told = f"`verifier` {verifier_name(args.verifier)} compares no answers: take compare:MODEL"
            raise ValueError(
                f"{told}, or name who decides each axis, as in `axis` attribution=citations:{verifier_name(args.verifier)}"
            )
        judges = {name: own.get(name) or verifier.on(name) for name in named}
        return rag_preferences_from(questions, sampler, judges, folder, preferences=config, **run)

    return run_build(args, KIND, make, with_passages, **LONG_ANSWERS)
