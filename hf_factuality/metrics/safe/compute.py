"""The score of SAFE; `safe.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import JudgedAnswers, Rule


_JUDGES = ("human", "gpt-3.5-turbo-0125")
_PUBLISHED_K = (64, 178)  # median and maximum number of facts of the paper's responses


def safe(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float = 64,
    abstention: Rule = None,
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """F1@K of SAFE (arXiv 2403.18802): precision of the relevant facts, and recall against K facts."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = JudgedAnswers(predictions, references, table="safe", options=options, **reading)
    labels = answers.labels()
    found = scoring.mean_f1_at_k([found or [] for found in labels], [k] * len(labels))
    # The released code has no rule for responses that decline, and counts what they claim.
    ignored = any(answer.abstained and answer.labels for answer in answers.items)
    parts = {name: found[name] for name in ("precision", "recall", "facts", "no_claims")}
    return answers.result(
        "safe",
        found["score"],
        found["f1s"],
        parts={**parts, "abstained": labels.count(None), "empty": answers.empty()},
        left_out={"unjudged": found["unjudged"]},
        settings={"k": k, **reading},
        published=_JUDGES,
        # The release counts repeated facts as often as they are stated.
        released=_f1(answers.labels_as_given(), k) if k in _PUBLISHED_K and not ignored else None,
    )


def _f1(labels: Sequence[Any], k: float) -> float | None:
    return scoring.mean_f1_at_k([found or [] for found in labels], [k] * len(labels))["score"]
