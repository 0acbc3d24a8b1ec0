"""The verifier protocol, its three stages (extract, retrieve, judge) and the pipeline that chains them.

Everything is batch in, list out: one call per generation batch, so that a judge can batch by length or send requests
concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hf_factuality.errors import ExtractionError, JudgingError, RetrievalError
from hf_factuality.spans import Label, LabeledSpan, Verification


@dataclass(frozen=True)
class VerifierInput:
    """A completion to check, with what there is to check it against.

    Args:
        completion (`str`):
            The text to verify. Spans are character ranges of this very string. It was written by a model: it is data,
            never an instruction.
        question (`str`, *optional*):
            What was asked.
        evidence (`tuple[str, ...]`, *optional*):
            Passages that came with the row. A closed-book policy never sees them.
        row (`Mapping[str, Any]`, *optional*):
            The other columns of the dataset row.
    """

    completion: str
    question: str | None = None
    evidence: tuple[str, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JudgeInput:
    """A claim and the passages it is judged by.

    Args:
        claim (`str`):
            A sentence or an atomic statement.
        evidence (`tuple[str, ...]`):
            Passages, best first where the retriever ranks them.
        question (`str`, *optional*):
            What was asked.
    """

    claim: str
    evidence: tuple[str, ...]
    question: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict on one claim.

    Args:
        label ([`Label`], *optional*):
            `None` if the judge failed on this claim.
        score (`float`, *optional*):
            Confidence in [0, 1] that the claim is supported.
        evidence (`str`, *optional*):
            The passage that decided.
    """

    label: Label | None
    score: float | None = None
    evidence: str | None = None


def evidence_passages(value: Any) -> tuple[str, ...] | None:
    """Evidence as users store it to the passages of a [`VerifierInput`].

    Args:
        value (`Any`):
            Text, a list of texts, or `None`.

    Returns:
        `tuple[str, ...]`: the passages that are not blank; `None` if `value` is nothing of the kind.
    """
    passages = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(passages, (list, tuple)) or not all(p is None or isinstance(p, str) for p in passages):
        return None
    return tuple(passage for passage in passages if passage and passage.strip())


@runtime_checkable
class Verifier(Protocol):
    """Reads completions, returns labelled spans. Any object with this method is a verifier.

    `requires_evidence` says whether a row without evidence can be checked at all; a verifier without this attribute is
    taken to need it. Rows without evidence are then not sent to it.
    """

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order; spans are character ranges of `input.completion`."""
        ...


class Extractor(Protocol):
    """Finds the units to judge."""

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, the spans to judge, without labels; `claim` set where it is not the text of the span."""
        ...


class Retriever(Protocol):
    """Finds evidence for each claim."""

    def retrieve(
        self, inputs: Sequence[VerifierInput], claims: Sequence[Sequence[str]]
    ) -> list[list[tuple[str, ...]]]:
        """Per input and claim, the passages to judge it by, best first."""
        ...


class Judge(Protocol):
    """Labels claims."""

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`Judgement`] per input, in order."""
        ...


class RowEvidence:
    """Retriever that returns the evidence of the row, whole."""

    def retrieve(
        self, inputs: Sequence[VerifierInput], claims: Sequence[Sequence[str]]
    ) -> list[list[tuple[str, ...]]]:
        return [[item.evidence] * len(texts) for item, texts in zip(inputs, claims, strict=True)]

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again: none."""
        return {}


class VerifierPipeline:
    """Chains extractor, retriever and judge into a [`Verifier`].

    All claims of all inputs reach the judge in one call.

    Args:
        extractor ([`Extractor`]):
            Finds the spans.
        judge ([`Judge`]):
            Labels them.
        retriever ([`Retriever`], *optional*, defaults to the row's own evidence):
            Finds evidence.
        requires_evidence (`bool`, *optional*):
            Whether rows without evidence are left out. By default they are, unless a retriever finds it.
    """

    def __init__(
        self,
        extractor: Extractor,
        judge: Judge,
        retriever: Retriever | None = None,
        requires_evidence: bool | None = None,
    ):
        self.extractor = extractor
        self.judge = judge
        self.retriever = retriever if retriever is not None else RowEvidence()
        if requires_evidence is None:
            requires_evidence = isinstance(self.retriever, RowEvidence)
        self.requires_evidence = requires_evidence

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order.

        Raises:
            `ExtractionError`, `RetrievalError`, `JudgingError`: a stage returned another number of results than it got
            inputs.
        """
        if not inputs:
            return []
        spans = _checked(self.extractor.extract(inputs), inputs, ExtractionError, "extractor")
        claims = [
            [span.claim if span.claim is not None else span.text(item.completion) for span in found]
            for item, found in zip(inputs, spans, strict=True)
        ]
        passages = _checked(self.retriever.retrieve(inputs, claims), inputs, RetrievalError, "retriever")
        requests = [
            JudgeInput(claim=claim, evidence=tuple(evidence), question=item.question)
            for item, texts, found in zip(inputs, claims, passages, strict=True)
            for claim, evidence in zip(texts, _checked(found, texts, RetrievalError, "retriever"), strict=True)
        ]
        # A retriever that found nothing says nothing about the claim. Evidence that the row lacks is the judge's affair.
        skip = not isinstance(self.retriever, RowEvidence)
        sent = [request for request in requests if not skip or any(text.strip() for text in request.evidence)]
        judged = iter(_checked(self.judge.judge(sent), sent, JudgingError, "judge") if sent else [])
        sent_ids = {id(request) for request in sent}
        verdicts = iter([next(judged) if id(request) in sent_ids else Judgement(None) for request in requests])
        results = []
        for found in spans:
            labelled = []
            for span in found:
                verdict = next(verdicts)
                labelled.append(
                    LabeledSpan(span.start, span.end, verdict.label, verdict.score, span.claim, verdict.evidence)
                )
            results.append(Verification(spans=tuple(labelled)))
        return results

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the settings into a folder; see [`~hf_factuality.verifiers.hub.save_pipeline`]."""
        from hf_factuality.verifiers.hub import save_pipeline

        return save_pipeline(self, folder)

    @staticmethod
    def from_pretrained(folder_or_repo: str | Path, revision: str | None = None, **kwargs: Any) -> VerifierPipeline:
        """Make a pipeline from its settings; see [`~hf_factuality.verifiers.hub.load_pipeline`]."""
        from hf_factuality.verifiers.hub import load_pipeline

        return load_pipeline(folder_or_repo, revision, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Publish the settings; see [`~hf_factuality.verifiers.hub.push_pipeline`]."""
        from hf_factuality.verifiers.hub import push_pipeline

        return push_pipeline(self, repo_id, **kwargs)


def _checked(results: Any, inputs: Sequence[Any], error: type[Exception], stage: str) -> Any:
    if len(results) != len(inputs):
        raise error(f"the {stage} returned {len(results)} results for {len(inputs)} inputs; it must return one each")
    return results
