"""VeriScore; `veriscore.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import JudgedAnswers, Rule


_JUDGES = ("human", "gpt-4-0125-preview", "gpt-4o", "SYX/llama3_based_claim_verifier")


def veriscore(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float | Mapping[str, float] | None = None,
    domains: Sequence[str | None] | None = None,
    abstention: Rule = "veriscore",
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """VeriScore (arXiv 2406.19276): F1 of supported claims, K of them wanted in each domain."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = JudgedAnswers(predictions, references, table="veriscore", options=options, **reading)
    found = scoring.veriscore_scores(answers.labels(), answers.domains(domains), k)
    as_published = k is not None and abstention == "veriscore" and deduplicate
    parts = {name: found[name] for name in ("precision", "recall", "facts", "k", "domain_scores", "no_claims")}
    return answers.result(
        "veriscore",
        found["score"],
        found["f1s"],
        parts={**parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "unjudged", "no_k")},
        settings={"k": k, **reading},
        published=_JUDGES,
        released=found["score"] if as_published and not found["no_claims"] else None,  # the release divides by 0
    )
