"""The score of ANAH-v2; `anah.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import JudgedAnswers, Rule


_JUDGES = ("human", "opencompass/anah-v2")


def anah(
    predictions: Sequence[Any], references: Sequence[Any], *, abstention: Rule = None, **options: Any
) -> dict[str, Any]:
    """ANAH-v2's score (arXiv 2407.04693): the share of sentences without hallucination."""
    answers = JudgedAnswers(predictions, references, table="anah", abstention=abstention, options=options)
    labels = answers.labels()
    found = scoring.anah_scores([found or [] for found in labels])
    judged = [count for count in found["counts"] if count.judged]
    abstained = labels.count(None)
    return answers.result(
        "anah",
        found["score"],
        found["response_scores"],
        parts={
            "mean_response_score": found["mean_response_score"],
            "released_score": found["released_score"],
            "correct_facts": found["correct_facts"],
            "incorrect_facts": found["incorrect_facts"],
            "sentences": sum(count.judged for count in judged),
            "empty": answers.empty(),
        },
        left_out={
            "abstained": abstained,
            "no_sentences": found["no_sentences"] - abstained,
            "unjudged": found["unjudged"],
        },
        settings={"abstention": abstention},
        published=_JUDGES,
        released=None if abstained else found["released_score"],
        resampled=judged,
        statistic=lambda counts: sum(count.correct for count in counts) / sum(count.judged for count in counts),
    )
