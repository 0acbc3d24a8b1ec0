"""The score of LongWiki; `longwiki.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import JudgedAnswers, Rule


_JUDGES = ("meta-llama/Llama-3.1-405B-Instruct-FP8",)


def longwiki(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float = 32,
    abstention: Rule = None,
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """LongWiki of HalluLens (arXiv 2504.17550): F1 of precision and recall@K over responses that do not refuse."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = JudgedAnswers(predictions, references, table="longwiki", options=options, **reading)
    found = scoring.longwiki_scores(answers.labels(), k)
    parts = {name: found[name] for name in ("precision", "recall", "false_refusal_rate", "median_claims", "facts")}
    return answers.result(
        "longwiki",
        found["score"],
        found["f1s"],
        parts={"f1": found["score"], **parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "unjudged")},
        settings={"k": k, **reading},
        published=_JUDGES,
        released=found["score"] if k == 32 and abstention is None and deduplicate else None,
    )
