"""What a request and its answer hold. What is wrong with a request is a [`RefusedRequest`] with the HTTP status that says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hf_factuality.verifiers.base import VerifierInput, evidence_passages
from hf_factuality.verifiers.service import VerificationRequest


_SHOWN = 200
"""Characters of the client's own words that an answer repeats at most."""


class RefusedRequest(Exception):
    """A request that gets no verdict: its HTTP status, why, and seconds after which it may be sent again."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(frozen=True)
class RequestLimits:
    """The largest request."""

    max_body_bytes: int
    max_rows: int
    max_passages: int
    max_characters: int
    max_claims: int


def _whole(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a surrogate pair") from None
    return text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(_whole)]
Passages = Annotated[list[Text], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Id = Annotated[str | int | None, AfterValidator(lambda value: _whole(value) if isinstance(value, str) else value)]


class RequestRow(BaseModel):
    """A completion with its evidence."""

    model_config = ConfigDict(strict=True, extra="forbid")

    completion: Text = Field(description="The text to check.")
    evidence: Passages = Field(default=[], description="One passage or several.")
    question: Text | None = Field(default=None, description="What was asked.")
    scope: Literal["answer", "think", "completion"] = Field(
        default="answer", description="What is judged: the answer, the reasoning in think blocks, or all of it."
    )
    id: Id = Field(default=None, description="Comes back with the result.")


class RequestRows(BaseModel):
    """Several completions."""

    model_config = ConfigDict(strict=True, extra="forbid")

    rows: list[RequestRow] = Field(min_length=1)


class SpanAnswer(BaseModel):
    """A judged range of characters (code points) of the completion; `label` is null if it could not be judged."""

    start: int
    end: int
    text: str
    label: str | None
    score: float | None
    claim: str | None
    evidence: str | None
    reason: str | None


class VerificationAnswer(BaseModel):
    """`error` says why nothing could be judged; such a row is in no score."""

    spans: list[SpanAnswer]
    claims: list[SpanAnswer]
    abstained: bool
    error: str | None
    unanswered: int


class RowAnswer(BaseModel):
    """A completion's result."""

    id: str | int | None
    verification: VerificationAnswer
    declined: bool


class VerifyAnswer(BaseModel):
    """Results in the order of the rows, with the scores and counts of `hf_factuality.verify`."""

    rows: list[RowAnswer]
    summary: dict[str, Any]
    verifier: str
    notes: list[str]


def read_request(body: bytes, limits: RequestLimits) -> list[RequestRow]:
    """The rows of a request: one row, or an object with `rows`. [`RefusedRequest`]: it is none, or too large."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedRequest(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        raise RefusedRequest(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise RefusedRequest(400, f"the body is not JSON: {error!s:.{_SHOWN}}") from None
    several = isinstance(found, dict) and "rows" in found
    if several and isinstance(found["rows"], list) and len(found["rows"]) > limits.max_rows:
        raise RefusedRequest(413, f"{len(found['rows'])} rows; at most {limits.max_rows} in a request")
    try:
        rows = RequestRows.model_validate(found).rows if several else [RequestRow.model_validate(found)]
    except ValidationError as error:
        raise RefusedRequest(422, _first(error)) from None
    check_size(rows, limits)
    return rows


def check_size(rows: Sequence[RequestRow], limits: RequestLimits) -> None:
    """Refuse rows with texts that are too long, or too many passages."""
    for number, row in enumerate(rows):
        where = f"rows.{number}." if len(rows) > 1 else ""
        for name in ("completion", "question"):
            length = len(getattr(row, name) or "")
            if length > limits.max_characters:
                raise RefusedRequest(413, f"{where}{name} has {length} characters; at most {limits.max_characters}")
        if len(row.evidence) > limits.max_passages:
            raise RefusedRequest(
                413, f"{where}evidence has {len(row.evidence)} passages; at most {limits.max_passages}"
            )


def to_judge(rows: Sequence[RequestRow]) -> list[VerificationRequest]:
    """The rows as the judging loop takes them."""
    return [
        VerificationRequest(
            VerifierInput(row.completion, row.question, evidence_passages(row.evidence) or ()), row.scope, key=row.id
        )
        for row in rows
    ]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Which of the two counts differs between parsers, so what was checked might not be what was meant.
        raise ValueError("an object has a key twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 100:
        raise ValueError("a number has more than 100 digits")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    told = error.errors(include_url=False, include_input=False, include_context=False)
    place = [str(part) for part in told[0]["loc"]]
    if place[-2:] == ["id", "str"]:
        return f"{'.'.join(place[:-1])}: Input should be a string or an integer"
    where = ".".join(place).encode("utf-8", "replace").decode()[:_SHOWN] or "the body"
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"{where}: {told[0]['msg'].removeprefix('Value error, ')}{more}"
