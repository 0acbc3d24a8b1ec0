"""The rate of HalluQA: five votes per answer, or its claims against the reference answers; `halluqa.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import majority, non_hallucination_rate
from hf_factuality.metrics._claims import Answer, ClaimOptions, JudgedAnswers, verdict_of_claims
from hf_factuality.metrics._common import is_published, make_result, named, read_options
from hf_factuality.spans import Verification


_VOTES = {"是": True, "否": False, "yes": True, "no": False}
_PUBLISHED_VOTES = 5  # per answer
_JUDGES = ("gpt-4-0613", "human")
_JUDGED = (Answer, Verification)


def read_vote(value: Any) -> bool | None:
    """A vote "is this a hallucination?": a bool, or exactly 是, 否, yes or no; anything else is `None`."""
    if isinstance(value, bool):
        return value
    return _VOTES.get(value.strip().lower()) if isinstance(value, str) else None


def _votes(item: Any, place: str) -> tuple[list[bool | None] | None, str | None]:
    """Votes and text of a prediction; `None` for what it does not have. A verdict stands for as many equal votes."""
    if item is None or isinstance(item, str):
        return None, item
    if isinstance(item, _JUDGED):
        return None, "" if getattr(item, "text", None) == "" else "judged"
    if isinstance(item, bool):
        return [item] * _PUBLISHED_VOTES, None
    if isinstance(item, list):
        return [read_vote(vote) for vote in item], None
    if isinstance(item, dict) and {"votes", "hallucinated", "text", "response"} & set(item):
        text, votes = item.get("text", item.get("response")), item.get("votes")
        if votes is None and "hallucinated" in item:
            votes = [item["hallucinated"]] * _PUBLISHED_VOTES
        if (text is None or isinstance(text, str)) and (votes is None or isinstance(votes, list)):
            return None if votes is None else [read_vote(vote) for vote in votes], text
    raise DataError(
        f"{place} must be text, votes, True, False or a dictionary with `text` and `votes`, got {item!r:.100}"
    )


def halluqa(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Result of the metric `halluqa`."""
    given = read_options(ClaimOptions, options)
    read = [_votes(item, f"prediction {row}") for row, item in enumerate(predictions)]
    # Only answers that bring no votes and are not empty reach the verifier.
    unread = [votes is None and text is not None and bool(text.strip()) for votes, text in read]
    texts = [
        [] if not open_ else item if isinstance(item, _JUDGED) else text
        for item, (_, text), open_ in zip(predictions, read, unread, strict=True)
    ]
    answers = JudgedAnswers(texts, references, table=None, options=options)
    verdicts: list[bool | None] = []
    released: list[bool] = []
    left_out = {"missing": 0, "no_evidence": 0, "verifier_failed": 0, "no_claims": 0, "unjudged": 0}
    empty = 0
    for (votes, text), open_, answer in zip(read, unread, answers.items, strict=True):
        reason = None
        if text is not None and not text.strip():
            verdict = harsh = True  # as released: an empty answer is a hallucination, whatever the votes
            empty += 1
        elif votes is not None:
            verdict = majority(votes)
            harsh = None in votes or 2 * sum(vote is True for vote in votes) > len(votes) or not votes
            reason = "unjudged"
        else:
            verdict = verdict_of_claims(answer) if open_ else None
            harsh = verdict is not False
            stated = answer.labels and not answer.abstained
            reason = "missing" if not open_ else answer.problem or ("unjudged" if stated else "no_claims")
        verdicts.append(verdict)
        released.append(harsh)
        if verdict is None:
            left_out[reason] += 1
    found = non_hallucination_rate(verdicts, released)
    voted = not any(unread)
    as_published = voted and all(votes is None or len(votes) == _PUBLISHED_VOTES for votes, _ in read)
    extractor, judge = (None, named(given.judge)) if voted else answers.who()
    result = make_result(
        "halluqa",
        found["rate"],
        scores=found["scores"],
        parts={
            "hallucinated": sum(verdict is True for verdict in verdicts),
            "empty": empty,
            "rate_released": found["rate_released"],
        },
        left_out={"responses": left_out},
        extractor=extractor,
        judge=judge,
        released=found["rate_released"] if as_published and is_published(given.judge, _JUDGES) else None,
        options=given,
    )
    if given.return_spans:
        result["spans"] = answers.spans()
    return result
