"""One answer against its evidence, as a test asserts it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.evaluation._shared import check_choices, limits_of
from hf_factuality.evaluation.claim_lines import claim_lines, shortened
from hf_factuality.functional.scoring import count_claims
from hf_factuality.generation.given import given_answer
from hf_factuality.reading.same import distinct_units
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput, evidence_passages
from hf_factuality.verifiers.guard import GuardedVerifier, quiet_guard
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest, judge_rows


class NotJudgedWarning(UserWarning):
    """Claims of an answer that was accepted could not be judged."""


loaded_verifier = lru_cache(maxsize=8)(load_verifier)
"""[`load_verifier`] of a name, once per process."""


def assert_supported(
    answer: str | Sequence[Mapping[str, Any]],
    evidence: str | Sequence[str],
    at_least: float = 0.8,
    verifier: str | Verifier = "small",
    *,
    question: str | None = None,
    scope: str = "answer",
    max_not_judged: float = 0.0,
) -> Verification:
    """Assert that the evidence supports an answer, in a test of an application.

    Args:
        answer (`str` or `Sequence[Mapping[str, Any]]`):
            The text, or messages, of which the assistant's last is taken.
        evidence (`str` or `Sequence[str]`):
            The passages.
        at_least (`float`, *optional*, defaults to 0.8):
            Share of the judged claims that must be supported, in [0, 1].
        verifier (`str` or [`Verifier`], *optional*, defaults to `"small"`):
            A name for [`load_verifier`], which is loaded once per process, or a verifier.
        question (`str`, *optional*):
            What was asked.
        scope (`str`, *optional*, defaults to `"answer"`):
            What of the answer is judged: `"answer"`, `"think"` (its reasoning) or `"completion"`.
        max_not_judged (`float`, *optional*, defaults to 0):
            Share of the claims that may be left unjudged; a warning says how many were.

    Returns:
        [`Verification`]: the labelled claims, in characters of the answer.

    Raises:
        `AssertionError`: too little is supported, the answer states nothing, or too much could not be judged; the message lists
        the claims with their labels and where each stands. `ValueError`, `TypeError`: an argument is wrong.
    """
    __tracebackhide__ = True  # pytest then points at the caller's line
    for name, share in (("at_least", at_least), ("max_not_judged", max_not_judged)):
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ValueError(f"`{name}` is a share in [0, 1], got {share!r}")
    check_choices({"scope": SCOPES}, {"scope": scope})
    passages = evidence_passages(evidence)
    if passages is None:
        raise TypeError(f"`evidence` must be a text or a list of texts, got {evidence!r:.100}")
    try:
        text = given_answer(answer, "`answer`")
    except DataError:
        raise TypeError(f"`answer` must be a text, or messages with a role each, got {answer!r:.100}") from None
    judge = loaded_verifier(verifier) if isinstance(verifier, str) else load_verifier(verifier)
    guard = judge if isinstance(judge, GuardedVerifier) else GuardedVerifier(judge, timeout=None)
    item = VerifierInput(text or "", question, passages)
    with quiet_guard():
        ((judged,),) = judge_rows(guard, [VerificationRequest(item, scope, missing=text is None)], chunk=None)
    problem = _problem(judged, at_least, max_not_judged)
    if problem:
        raise AssertionError("\n".join([problem, *_described(judged, guard)]))
    return judged.verification


def _problem(judged: JudgedRow, at_least: float, max_not_judged: float) -> str | None:
    """Why an answer is not accepted."""
    found = judged.found
    if judged.left_out == "empty":
        return "the answer was not judged: nothing of it is in the scope"
    if found.error is not None:
        return f"the answer was not judged: {found.error}"
    claims = count_claims([it.label for it in distinct_units(found.spans, judged.row.shown.completion)])
    unjudged = f"{claims.unjudged} of {claims.stated} claims could not be judged"
    if claims.unjudged and (claims.unjudged > max_not_judged * claims.stated or not claims.judged):
        more = f", and {claims.supported} of the others are supported" if claims.judged else ""
        return f"{unjudged}, at most {max_not_judged:.0%} may be{more}"
    if claims.precision is None:
        return "the answer declines, and states nothing" if judged.row.declines else "the answer states nothing"
    if claims.precision < at_least:
        short = f"{claims.supported} of {claims.judged} claims are supported ({claims.precision:.2f})"
        return f"{short}, at least {at_least:g} is asked for" + (f"; {unjudged}" if claims.unjudged else "")
    if claims.unjudged:
        warnings.warn(f"{unjudged}; the others are supported enough", NotJudgedWarning, stacklevel=3)
    return None


def _described(judged: JudgedRow, guard: GuardedVerifier) -> list[str]:
    """The answer, its claims and who judged them."""
    item, found = judged.row.input, judged.verification
    lines = [f"question: {shortened(item.question, 300)}"] if item.question else []
    lines.append(f"answer: {shortened(item.completion, 600)}")
    lines += [f"  {line}" for line in claim_lines(item.completion, distinct_units(found.spans, item.completion))]
    lines.append(f"evidence: passages {len(item.evidence)}, characters {sum(map(len, item.evidence))}")
    return [*lines, *limits_of(guard.verifier)]
