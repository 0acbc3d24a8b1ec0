"""Spans and labels to scores. The rewards of the trainers and the metrics call the same functions.

Scores of answers that are not made of claims (choices, votes, probabilities) and confidence intervals are in
[`~hf_factuality.functional.metrics`].
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from math import exp
from statistics import median

from hf_factuality.functional._numbers import is_number, require_number
from hf_factuality.functional.labels import TERNARY_VALUES, span_values
from hf_factuality.spans import Label, LabeledSpan


SUPPORTED_LABELS = frozenset({Label.SUPPORTED, Label.HEDGED_SUPPORTED})
CONTRADICTED_LABELS = frozenset({Label.CONTRADICTED, Label.HEDGED_CONTRADICTED})
"""Labels that count as supported, as in RLFH's accuracy. What is neither these nor `NO_FACT` counts as not supported."""


def mean_factuality(spans: Sequence[LabeledSpan], values: Mapping[Label, float] = TERNARY_VALUES) -> float | None:
    """Mean value of a completion's sentences, `(1/N) sum_j R_fact(z_j)` (FSPO, arXiv 2505.24630, Eq. 10).

    Args:
        spans (`Sequence[LabeledSpan]`):
            The sentences of one completion.
        values (`Mapping[Label, float]`, *optional*, defaults to [`TERNARY_VALUES`]):
            Number per label.

    Returns:
        `float` in the range of `values`, or `None` if there are sentences but none could be judged. Unjudged sentences
        do not count in N. No sentence at all gives 0: the sum is empty, and silence is neither paid nor punished.
    """
    judged = [value for value in span_values(spans, values) if value is not None]
    if spans and not judged:
        return None
    return sum(judged) / len(judged) if judged else 0.0


def factual_precision(spans: Sequence[LabeledSpan]) -> float | None:
    """Supported share of the claims that were judged: what nobody supports counts against it.

    What `precision` means in every command, card and report; see docs/metrics.md.

    Args:
        spans (`Sequence[LabeledSpan]`):
            The sentences or claims of one completion, or of many; without repeats by
            [`~hf_factuality.reading.distinct_units`].

    Returns:
        `float` in [0, 1]: supported over supported, contradicted and unverifiable, hedged ones included; `None` if no
        claim was judged.
    """
    return count_claims([span.label for span in spans]).precision


def decided_precision(spans: Sequence[LabeledSpan]) -> float | None:
    """Supported over supported plus contradicted, hedged ones included: unverifiable claims do not count.

    Args:
        spans (`Sequence[LabeledSpan]`):
            The sentences or claims of one completion, or of many.

    Returns:
        `float` in [0, 1], or `None` if nothing was supported or contradicted.
    """
    decided = [value for value in span_values(spans, TERNARY_VALUES) if value]
    return sum(value > 0 for value in decided) / len(decided) if decided else None


class ClaimCounts(namedtuple("ClaimCounts", ("supported", "judged", "unjudged"))):
    """Claims of one response: `supported` of `judged`, and `unjudged` ones without a label.

    Spans that hold nothing to check (`NO_FACT`) are no claims.
    """

    __slots__ = ()

    @property
    def stated(self) -> int:
        """Claims that the response makes, judged or not."""
        return self.judged + self.unjudged

    @property
    def precision(self) -> float | None:
        """Supported over judged; `None` if nothing was judged."""
        return self.supported / self.judged if self.judged else None


def count_claims(labels: Sequence[Label | None]) -> ClaimCounts:
    """Count the claims of one response by their labels, `None` where the judgement failed.

    Each label counts: give those of distinct claims ([`~hf_factuality.reading.distinct_units`]), so that nothing is won by
    saying it again. So do the metrics and rewards of this library.

    Hedged support counts as supported; contradicted and unverifiable claims are judged and not supported.
    """
    judged = [label for label in labels if label is not None and label is not Label.NO_FACT]
    supported = sum(label in SUPPORTED_LABELS for label in judged)
    return ClaimCounts(supported, len(judged), sum(label is None for label in labels))


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the numbers among `values`; `None` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def length_penalty(num_facts: int, gamma: float = 10.0) -> float:
    """`exp(1 - gamma / n)` for n <= gamma facts, else 1 (released FActScore code; the paper has no penalty).

    In (0, 1]. A response has at least 1 fact; a `gamma` of 0 switches the penalty off.
    """
    if num_facts < 1 or gamma < 0:
        raise ValueError(f"length_penalty needs num_facts >= 1 and gamma >= 0, got {num_facts!r} and {gamma!r}")
    return 1.0 if num_facts > gamma else exp(1.0 - gamma / num_facts)


def factscore_scores(responses: Sequence[Sequence[Label | None] | None], gamma: float = 10.0) -> dict:
    """FActScore (arXiv 2305.14251, section 3): `f(y) = (1/|A_y|) sum_a 1[a is supported]`, mean over responding y.

    Args:
        responses (`Sequence[Sequence[Label | None] | None]`):
            Per response, the labels of its atomic facts; `None` if it abstains. Irrelevant facts (`IR`, our
            `UNVERIFIABLE`) count in the denominator: only so does the paper's 58.3 for ChatGPT come out of its human
            labels (without them it is 62.3).
        gamma (`float`, *optional*, defaults to `10.0`):
            See [`length_penalty`], which counts stated facts, judged or not: a judge that fails makes no answer short.

    Returns:
        `dict`:
        - `score`: mean over the scored responses of precision times penalty; `None` if there are none;
        - `init_score`: the same without penalty, as the paper defines it;
        - `respond_ratio`: share of responses that state at least one fact; `None` without responses;
        - `num_facts_per_response`: mean over those;
        - `scores`, `init_scores`: per response, `None` where it is left out;
        - `abstained`, `no_facts`, `unjudged`: numbers of responses left out, as they abstain, state no fact (which
          the released code also takes for abstaining), or have no fact that could be judged.

    Raises:
        `ValueError`: a negative `gamma`.
    """
    counts = [None if labels is None else count_claims(labels) for labels in responses]
    init_scores = [None if count is None else count.precision for count in counts]
    scores = [
        None if init is None else init * length_penalty(count.stated, gamma)
        for init, count in zip(init_scores, counts, strict=True)
    ]
    stated = [count.stated for count in counts if count is not None and count.stated]
    return {
        "score": mean(scores),
        "init_score": mean(init_scores),
        "respond_ratio": len(stated) / len(counts) if counts else None,
        "num_facts_per_response": mean(stated),
        "scores": scores,
        "init_scores": init_scores,
        "abstained": sum(count is None for count in counts),
        "no_facts": sum(count is not None and not count.stated for count in counts),
        "unjudged": sum(count is not None and count.stated > 0 and not count.judged for count in counts),
    }


PrecisionRecallF1 = namedtuple("PrecisionRecallF1", ("precision", "recall", "f1"))
PrecisionRecallF1.__doc__ = "Three numbers in [0, 1] of one response, each `None` where it is not defined."


def f1_at_k(labels: Sequence[Label | None], k: float) -> PrecisionRecallF1:
    """F1@K of one response (SAFE, arXiv 2403.18802): `P = S / (S + N)`, `R = min(1, S / K)`, `F1 = 2 P R / (P + R)`.

    Args:
        labels (`Sequence[Label | None]`):
            Labels of its distinct claims, S of them supported and N not. Claims that are irrelevant to the prompt are
            `NO_FACT`.
        k (`float`):
            Number of supported facts that is enough, above 0.

    Returns:
        [`PrecisionRecallF1`]: F1 is 0 if S = 0, as defined. A response without any claim has precision `None`, recall
        and F1 0: it supports nothing, and that is known. If there are claims and none could be judged, all three are
        `None`. Unjudged claims among judged ones are left out of S and N, so that recall is then a lower bound.
    """
    require_number("k", k, above=0)
    counts = count_claims(labels)
    if counts.unjudged and not counts.judged:
        return PrecisionRecallF1(None, None, None)
    recall = min(1.0, counts.supported / k)
    if not counts.supported:
        return PrecisionRecallF1(counts.precision, recall, 0.0)
    return PrecisionRecallF1(counts.precision, recall, 2 * counts.precision * recall / (counts.precision + recall))


def mean_f1_at_k(responses: Sequence[Sequence[Label | None] | None], ks: Sequence[float | None]) -> dict:
    """Mean of [`f1_at_k`] over responses.

    Args:
        responses (`Sequence[Sequence[Label | None] | None]`):
            Per response, the labels of its claims; `None` leaves it out (an abstention, where these do not count).
        ks (`Sequence[float | None]`):
            K per response, above 0, else `ValueError`; `None` leaves it out, since recall is not defined.

    Returns:
        `dict`: `score` (mean F1), `precision` (mean over responses with claims), `recall`, each `None` if nothing can
        be averaged; `f1s`, per response; `facts` (mean number of claims of the scored responses); numbers of
        responses: `abstained`, `no_claims` (scored, with F1 0), `unjudged` and `no_k` (left out).
    """
    for k in ks:
        if k is not None:
            require_number("k", k, above=0)
    unknown = PrecisionRecallF1(None, None, None)
    pairs = list(zip(responses, ks, strict=True))
    rows = [unknown if None in pair else f1_at_k(*pair) for pair in pairs]
    f1s = [row.f1 for row in rows]
    stated = [count_claims(labels).stated for labels, f1 in zip(responses, f1s, strict=True) if f1 is not None]
    return {
        "score": mean(f1s),
        "precision": mean([row.precision for row in rows]),
        "recall": mean([row.recall for row in rows]),
        "f1s": f1s,
        "facts": mean(stated),
        "abstained": sum(labels is None for labels in responses),
        "no_claims": stated.count(0),
        "unjudged": sum(None not in pair and f1 is None for pair, f1 in zip(pairs, f1s, strict=True)),
        "no_k": sum(labels is not None and k is None for labels, k in pairs),
    }


def veriscore_k(num_claims: Sequence[int]) -> int | None:
    """VeriScore's K of a domain (arXiv 2406.19276): the median number of claims per response.

    Responses that abstain are not among `num_claims`, those without a claim are (0). Of an even number the upper of the
    middle two, as in the released code; `None` without responses. It may be 0, and recall is then not defined. The paper
    pools all models that it compares, so that K, and with it the score, depends on the pool.
    """
    return sorted(num_claims)[len(num_claims) // 2] if num_claims else None


def veriscore_scores(
    responses: Sequence[Sequence[Label | None] | None],
    domains: Sequence[str | None] | None = None,
    k: float | Mapping[str | None, float] | None = None,
) -> dict:
    """VeriScore (arXiv 2406.19276): mean F1@K with K = median number of claims per domain.

    Args:
        responses (`Sequence[Sequence[Label | None] | None]`):
            Per response, the labels of its verifiable claims; `None` if it abstains (left out, as in the released
            code). A response without a claim scores 0; the released code divides by zero there.
        domains (`Sequence[str | None]`, *optional*):
            Domain per response; by default, all are of one.
        k (`float` or `Mapping[str | None, float]`, *optional*):
            K of all domains, or of each, above 0, else `ValueError`: what a larger pool of models gave. `None` takes
            [`veriscore_k`] of these responses.

    Returns:
        `dict`: as [`mean_f1_at_k`], and `k` and `domain_scores`, each by domain.
    """
    names = list(domains) if domains is not None else [None] * len(responses)
    members: dict[str | None, list[Sequence[Label | None] | None]] = {}
    for name, labels in zip(names, responses, strict=True):
        members.setdefault(name, []).append(labels)
    if k is None:
        k_of = {
            name: veriscore_k([count_claims(labels).stated for labels in group if labels is not None])
            for name, group in members.items()
        }
    else:
        given = k if isinstance(k, Mapping) else dict.fromkeys(members, k)
        missing = [name for name in members if name not in given]
        if missing or not all(is_number(given[name]) and given[name] > 0 for name in members):
            raise ValueError(f"k must give a number above 0 for each of the domains {list(members)}, got {k!r}")
        k_of = {name: given[name] for name in members}
    result = mean_f1_at_k(responses, [k_of[name] or None for name in names])
    domain_scores = {
        name: mean([f1 for f1, other in zip(result["f1s"], names, strict=True) if other == name]) for name in members
    }
    return {**result, "k": k_of, "domain_scores": domain_scores}


def longwiki_scores(responses: Sequence[Sequence[Label | None] | None], k: float = 32) -> dict:
    """HalluLens LongWiki (arXiv 2504.17550): precision, recall@K and F1 per prompt, averaged over those answered.

    `responses` holds per prompt the labels of the claims; `None` if the response refuses. One without a claim counts as a
    refusal, as in the paper. Every question can be answered, so that every refusal is a false one. `k` supported claims are
    enough.

    Returns:
        `dict`: as [`mean_f1_at_k`] without `no_claims`, and `false_refusal_rate` (share of refusals; `None` without
        responses), `median_claims` (over answered prompts), and among `abstained` those without a claim.
    """
    answered = [labels if labels is not None and count_claims(labels).stated else None for labels in responses]
    result = mean_f1_at_k(answered, [k] * len(answered))
    del result["no_claims"]
    stated = [count_claims(labels).stated for labels in answered if labels is not None]
    return {
        **result,
        "false_refusal_rate": result["abstained"] / len(answered) if answered else None,
        "median_claims": float(median(stated)) if stated else None,
    }


SentenceCounts = namedtuple("SentenceCounts", ("correct", "judged", "unjudged"))
SentenceCounts.__doc__ = "Sentences of one response: `correct` (no hallucination) of `judged`, and `unjudged` ones."


def count_sentences(labels: Sequence[Label | None]) -> SentenceCounts:
    """Count the sentences of one response, one label each, as ANAH does: one without a fact is no hallucination."""
    judged = [label for label in labels if label is not None]
    correct = sum(label in SUPPORTED_LABELS or label is Label.NO_FACT for label in judged)
    return SentenceCounts(correct, len(judged), len(labels) - len(judged))


def anah_scores(responses: Sequence[Sequence[Label | None]]) -> dict:
    """ANAH-v2 (arXiv 2407.04693): share of sentences that are neither contradictory nor unverifiable.

    `responses` holds per response the labels of its sentences.

    Returns:
        `dict`:
        - `score`: over all sentences of all responses, as released; `None` if none was judged;
        - `mean_response_score`: mean of the shares per response, as Mask-DPO (ICLR 2025) ranks responses;
        - `released_score`: `score` with unparsed judgements counted as no hallucination, which the released code does;
        - `correct_facts`, `incorrect_facts`: supported, and contradictory or unverifiable, sentences per response. A
          response without sentences has none of either, so that saying nothing shows; one that could not be judged at all
          is left out;
        - `counts`: [`SentenceCounts`] per response; `response_scores`, `None` where nothing was judged;
        - `no_sentences`, `unjudged`: numbers of responses without a share, for want of sentences or of judgements.
    """
    counts = [count_sentences(labels) for labels in responses]
    shares = [count.correct / count.judged if count.judged else None for count in counts]
    correct, judged, unjudged = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0, 0)
    total = judged + unjudged
    known = [labels for labels in responses if not labels or any(label is not None for label in labels)]
    supported = [sum(label in SUPPORTED_LABELS for label in labels) for labels in known]
    return {
        "score": correct / judged if judged else None,
        "mean_response_score": mean(shares),
        "released_score": (correct + unjudged) / total if total else None,
        "correct_facts": mean(supported),
        "incorrect_facts": (judged - correct) / len(known) if known else None,
        "counts": counts,
        "response_scores": shares,
        "no_sentences": sum(not count.judged and not count.unjudged for count in counts),
        "unjudged": sum(not count.judged and count.unjudged > 0 for count in counts),
    }
