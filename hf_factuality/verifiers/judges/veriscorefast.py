"""VeriFastScore: a language model that writes the claims of an answer and their verdicts in one pass.

System message, turn and form of the answer are those of the released code (arXiv 2505.16973, `RishanthRajendhran/VeriFastScore`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rapidfuzz.distance import LCSseq

from hf_factuality.generation.base import ChatModel
from hf_factuality.generation.client import ChatClient
from hf_factuality.reading.completion import without_citations
from hf_factuality.reading.marks import without_thinking
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.extractors.anchor import content_words
from hf_factuality.verifiers.extractors.llm import ExtractedClaim, LLMExtractor, Sentence, same_claim
from hf_factuality.verifiers.judges.minicheck import local_chat
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import Prompt, load_prompt


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

VERISCOREFAST_MODEL = "rishanthrajendhran/VeriFastScore"
NOTHING = "No verifiable claim."
VERISCOREFAST_LABELS: Mapping[str, Label] = MappingProxyType(
    {"Supported": Label.SUPPORTED, "Unsupported": Label.UNVERIFIABLE}
)
"""Published verdict -> label. "Unsupported" is missing from the evidence or contradicted by it, so it is not `CONTRADICTED`."""
_HEADING = "### Facts"
_VERDICT = re.compile(rf"(\S.*): ({'|'.join(VERISCOREFAST_LABELS)})")
# More lines, or longer ones, are those of a model that goes round in circles.
_MAX_LINES, _MAX_CHARS = 500, 1000


def parse_verdicts(text: str, nothing: str = NOTHING) -> list[tuple[str, Label | None]] | None:
    """Claims and labels of an answer: one a line, "claim: Supported" or "claim: Unsupported", under "### Facts" or not.

    A line that ends otherwise has the label `None`; `[]` for `nothing` alone, and `None` for a text in which no line has a
    verdict.
    """
    lines = [line.strip() for line in without_thinking(text).splitlines() if line.strip()]
    if lines and lines[0] == _HEADING:
        del lines[0]
    if len(lines) == 1 and lines[0].rstrip(".").casefold() == nothing.rstrip(".").casefold():
        return []
    matches = [_VERDICT.fullmatch(line) for line in lines]
    if not any(matches) or len(lines) > _MAX_LINES or max(map(len, lines)) > _MAX_CHARS:
        return None
    return [
        (line, None) if match is None else (match[1], VERISCOREFAST_LABELS[match[2]])
        for line, match in zip(lines, matches, strict=True)
    ]


@dataclass(eq=False, repr=False)
class VeriScoreFastExtractor(LLMExtractor):
    """Claims of a whole completion with their verdicts, by one answer of VeriFastScore.

    Implements [`~hf_factuality.verifiers.base.Extractor`]; its spans have labels already, by the evidence of the row, so no
    judge is asked. Claims are found again in the completion as by [`~hf_factuality.verifiers.RLFHExtractor`]. A line without
    one of the two verdicts has no label; such lines are counted in `unread_lines`, and a warning shows the first. An answer
    without any is asked for again, a little warmer each time; if none can be read, the sentences of the completion have no
    label. Nothing is guessed.

    What differs from the released code: temperature 0 instead of 0.7, the evidence is the row's instead of a search's, an answer
    that was cut or cannot be read is unknown instead of "no claim", and a line is read whole.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model, or a [`~hf_factuality.generation.LocalChat`].
        prompt, retries, temperature, max_tokens, on_failure (*optional*):
            See [`~hf_factuality.verifiers.extractors.llm.LLMExtractor`]. `max_tokens` is 2048 by default.

    Raises:
        `ValueError`: see there.
    """

    prompt_name = "veriscorefast"
    nothing = NOTHING
    fields = ("response", "evidence")
    required = ("response", "evidence")
    parse = staticmethod(parse_verdicts)

    client: ChatModel
    prompt: str | Path | Prompt | None = None
    _: KW_ONLY
    retries: int = 2
    max_tokens: int = 2048
    unread_lines: int = field(default=0, init=False)

    def __post_init__(self):
        super().__post_init__()
        self._system = load_prompt("veriscorefast_system", ()).text

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, the spans of its claims in order, with labels; see [`VeriScoreFastExtractor`]."""
        self.unread_lines, self._first_unread = 0, ""
        found = super().extract(inputs)
        if self.unread_lines:
            logger.warning(
                "%s: %d lines have neither verdict and no label; the first: %r",
                type(self).__name__, self.unread_lines, self._first_unread[:200],
            )  # fmt: skip
        return found

    def _messages(self, prompt: str) -> tuple[tuple[str, str], ...]:
        return (("system", self._system), ("user", prompt))

    def _units(self, item: VerifierInput, sentences: list[Sentence]) -> list[tuple[dict, list[Sentence]]]:
        evidence = "\n\n".join(without_citations(text) for text in item.evidence if text.strip())
        return [({"response": item.completion.strip(), "evidence": evidence}, sentences)] if sentences else []

    def _claims(
        self, answer: list, item: VerifierInput, sentences: list[Sentence], around: frozenset[str]
    ) -> list[ExtractedClaim]:
        labels: dict[str, set[Label | None]] = {}
        for text, label in answer:
            labels.setdefault(same_claim(text), set()).add(label)
            if label is None:
                self._first_unread = self._first_unread or text
                self.unread_lines += 1
        words = [[word for word, _, _ in content_words(item.completion[slice(*it)])] for it in sentences]
        found = []
        for text, _ in {same_claim(text): (text, label) for text, label in reversed(answer)}.values():
            wanted = [word for word, _, _ in content_words(text)]
            shared = [LCSseq.similarity(wanted, own) for own in words]
            best = max(range(len(shared)), key=shared.__getitem__)
            place = sentences[best] if shared[best] else (0, len(item.completion))
            # Verdicts that differ are none.
            (label, *others) = labels[same_claim(text)]
            found += [
                replace(claim, span=replace(claim.span, label=None if others else label))
                for claim in self._anchored([text], item, place, around)
            ]
        self.last_report.repeated += len(answer) - len(labels)
        return sorted(found, key=lambda claim: claim.span.start)


@dataclass(eq=False, repr=False)
class VeriScoreFastJudge:
    """Stands behind [`VeriScoreFastExtractor`], whose claims have their verdicts already: what it could not read stays without
    label."""

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, without label."""
        return [Judgement(None)] * len(inputs)


class VeriScoreFastVerifier(VerifierPipeline):
    """Claims of the completion with their verdicts by the row's evidence, in one pass of VeriFastScore; see
    [`VeriScoreFastExtractor`].

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"rishanthrajendhran/VeriFastScore"`):
            Name of the model, or the loaded model.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Of a loaded model.
        base_url (`str`, *optional*):
            Address of an OpenAI-compatible server that has the model; `kwargs` are then those of
            [`~hf_factuality.generation.client.ChatClient`]. `None`: it runs in this process, and `kwargs` are `device`,
            `revision`, `batch_size` and those of `from_pretrained`.
        max_tokens (`int`, *optional*, defaults to `2048`):
            Longest answer.
        **kwargs:
            See `base_url`.
    """

    def __init__(
        self,
        model: str | PreTrainedModel = VERISCOREFAST_MODEL,
        tokenizer: PreTrainedTokenizerBase | None = None,
        base_url: str | None = None,
        max_tokens: int = 2048,
        **kwargs: Any,
    ):
        client: Any = ChatClient(base_url, str(model), **kwargs) if base_url is not None else None
        if client is None:
            client = local_chat(model, tokenizer, **kwargs)
        super().__init__(VeriScoreFastExtractor(client, max_tokens=max_tokens), VeriScoreFastJudge())
