"""The score of FActScore; `factscore.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import JudgedAnswers, Rule


_MODELS = ("retrieval+ChatGPT", "retrieval+ChatGPT+npm", "retrieval+llama", "retrieval+llama+npm", "npm")
_RULES = (None, "generic", "perplexity_ai")


def factscore(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    gamma: float = 10.0,
    abstention: Rule = None,
    deduplicate: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """FActScore (arXiv 2305.14251): the share of a response's facts that are supported, mean over responses."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = JudgedAnswers(predictions, references, table="factscore", options=options, **reading)
    found = scoring.factscore_scores(answers.labels(), gamma)
    parts = {name: found[name] for name in ("init_score", "respond_ratio", "num_facts_per_response")}
    return answers.result(
        "factscore",
        found["score"],
        found["scores"],
        parts={**parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "no_facts", "unjudged")},
        settings={"gamma": gamma, **reading},
        published=("human", *_MODELS),
        # The paper's figures have no length penalty.
        released=found["init_score"] if abstention in _RULES and not deduplicate else None,
    )
