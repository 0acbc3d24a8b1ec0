"""The metrics over labelled claims, as functions of answers; `evaluate` modules of these names describe their arguments.

Each takes predictions and references, one each per response, and the arguments of
[`~hf_factuality.metrics._claims.ClaimOptions`] besides its own. The formulas are in `hf_factuality.functional.scoring`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hf_factuality.functional.scoring as scoring
from hf_factuality.metrics._claims import Answers


_Rule = str | Callable[[str], bool] | None
_ANAH_JUDGES = ("human", "opencompass/anah-v2")
_FACTSCORE_MODELS = ("retrieval+ChatGPT", "retrieval+ChatGPT+npm", "retrieval+llama", "retrieval+llama+npm", "npm")
_FACTSCORE_RULES = (None, "generic", "perplexity_ai")
_LONGWIKI_JUDGES = ("meta-llama/Llama-3.1-405B-Instruct-FP8",)
_SAFE_JUDGES = ("human", "gpt-3.5-turbo-0125")
_SAFE_K = (64, 178)  # median and maximum number of facts of the paper's responses
_VERISCORE_JUDGES = ("human", "gpt-4-0125-preview", "gpt-4o", "SYX/llama3_based_claim_verifier")


def anah(
    predictions: Sequence[Any], references: Sequence[Any], *, abstention: _Rule = None, **options: Any
) -> dict[str, Any]:
    """ANAH-v2's score (arXiv 2407.04693): the share of sentences without hallucination."""
    answers = Answers(predictions, references, table="anah", abstention=abstention, options=options)
    labels = answers.labels()
    found = scoring.anah([found or [] for found in labels])
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
        published=_ANAH_JUDGES,
        released=None if abstained else found["released_score"],
        resampled=judged,
        statistic=lambda counts: sum(count.correct for count in counts) / sum(count.judged for count in counts),
    )


def factscore(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    gamma: float = 10.0,
    abstention: _Rule = None,
    deduplicate: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """FActScore (arXiv 2305.14251): the share of a response's facts that are supported, mean over responses."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = Answers(predictions, references, table="factscore", options=options, **reading)
    found = scoring.factscore(answers.labels(), gamma)
    parts = {name: found[name] for name in ("init_score", "respond_ratio", "num_facts_per_response")}
    return answers.result(
        "factscore",
        found["score"],
        found["scores"],
        parts={**parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "no_facts", "unjudged")},
        settings={"gamma": gamma, **reading},
        published=("human", *_FACTSCORE_MODELS),
        # The paper's figures have no length penalty.
        released=found["init_score"] if abstention in _FACTSCORE_RULES and not deduplicate else None,
    )


def longwiki(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float = 32,
    abstention: _Rule = None,
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """LongWiki of HalluLens (arXiv 2504.17550): F1 of precision and recall@K over responses that do not refuse."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = Answers(predictions, references, table="longwiki", options=options, **reading)
    found = scoring.longwiki(answers.labels(), k)
    parts = {name: found[name] for name in ("precision", "recall", "false_refusal_rate", "median_claims", "facts")}
    return answers.result(
        "longwiki",
        found["score"],
        found["f1s"],
        parts={"f1": found["score"], **parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "unjudged")},
        settings={"k": k, **reading},
        published=_LONGWIKI_JUDGES,
        released=found["score"] if k == 32 and abstention is None and deduplicate else None,
    )


def safe(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float = 64,
    abstention: _Rule = None,
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """F1@K of SAFE (arXiv 2403.18802): precision of the relevant facts, and recall against K facts."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = Answers(predictions, references, table="safe", options=options, **reading)
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
        published=_SAFE_JUDGES,
        # The release counts repeated facts as often as they are stated.
        released=_f1(answers.labels_as_given(), k) if k in _SAFE_K and not ignored else None,
    )


def _f1(labels: Sequence[Any], k: float) -> float | None:
    return scoring.mean_f1_at_k([found or [] for found in labels], [k] * len(labels))["score"]


def veriscore(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    k: float | Mapping[str, float] | None = None,
    domains: Sequence[str | None] | None = None,
    abstention: _Rule = "veriscore",
    deduplicate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """VeriScore (arXiv 2406.19276): F1 of supported claims, K of them wanted in each domain."""
    reading = {"abstention": abstention, "deduplicate": deduplicate}
    answers = Answers(predictions, references, table="veriscore", options=options, **reading)
    found = scoring.veriscore(answers.labels(), answers.domains(domains), k)
    as_published = k is not None and abstention == "veriscore" and deduplicate
    parts = {name: found[name] for name in ("precision", "recall", "facts", "k", "domain_scores", "no_claims")}
    return answers.result(
        "veriscore",
        found["score"],
        found["f1s"],
        parts={**parts, "empty": answers.empty()},
        left_out={name: found[name] for name in ("abstained", "unjudged", "no_k")},
        settings={"k": k, **reading},
        published=_VERISCORE_JUDGES,
        released=found["score"] if as_published and not found["no_claims"] else None,  # the release divides by 0
    )
