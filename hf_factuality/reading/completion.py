"""What a completion says: one reading, made once, from which everything else takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from hf_factuality.reading.declining import declines_as_a_whole
from hf_factuality.reading.marks import (
    Range,
    blanked,
    final_answer,
    final_range,
    self_verdict,
    silent_ranges,
    stated_confidence,
)
from hf_factuality.reading.markup import Block
from hf_factuality.reading.scopes import scope_ranges, scope_text
from hf_factuality.reading.sentences import segmentation_language
from hf_factuality.reading.statements import Citation, Sentence, find_blocks, read_blocks


@dataclass(frozen=True)
class Reading:
    """What a text says, in half-open ranges of its characters (code points). Made by [`read`].

    Args:
        text (`str`):
            The completion.
        opened (`bool`):
            Whether the prompt ended in an opening `<think>`.
        language (`str`, *optional*):
            Code by which sentences are split; `None` guesses.
    """

    text: str
    opened: bool = False
    language: str | None = None

    @cached_property
    def reasoning(self) -> tuple[Range, ...]:
        """What stands in `<think>` blocks."""
        return tuple(scope_ranges(self.text, "think", self.opened))

    @cached_property
    def answer(self) -> tuple[Range, ...]:
        """What stands in the last `<answer>` tags, or else outside of the reasoning."""
        ranges = scope_ranges(self.text, "answer", self.opened)
        return tuple((start, end) for start, end in ranges if self.text[start:end].strip())

    @cached_property
    def final(self) -> str | None:
        """The one final answer; see [`~hf_factuality.reading.final_range`]."""
        return final_answer(self.text, self.opened)

    @cached_property
    def final_range(self) -> Range:
        """Its characters."""
        return final_range(self.text, self.opened)[0]

    @cached_property
    def confidence(self) -> float | None:
        """The probability of being right that the answer states, in [0, 1]."""
        return stated_confidence(self.text, self.opened)

    @cached_property
    def verdict(self) -> bool | None:
        """What the answer's last words say of it: `[VERIFY] correct` or `[VERIFY] wrong`."""
        return self_verdict(self.text, self.opened)

    @cached_property
    def silent(self) -> tuple[Range, ...]:
        """Stated confidences and the verdict, which say nothing about the world."""
        return tuple(silent_ranges(self.text, self.opened))

    @cached_property
    def visible(self) -> str:
        """The text with spaces for what is silent; of the same length."""
        return blanked(self.text, self.silent)

    def part(self, scope: str = "answer") -> tuple[str, list[Range]]:
        """What is judged of it: the text in a scope of `SCOPES`, and the characters that its parts have in the whole."""
        return scope_text(self.visible, scope, self.opened)

    @cached_property
    def _read(self) -> tuple[tuple[Block, ...], tuple[Sentence, ...], tuple[Citation, ...]]:
        blocks: list[Block] = []
        sentences: list[Sentence] = []
        citations: list[Citation] = []
        for start, end in self.answer:
            own, said, cited = read_text(self.visible[start:end], self.language)
            before = len(sentences)
            blocks += [replace(it, start=it.start + start, end=it.end + start) for it in own]
            sentences += [replace(it, start=it.start + start, end=it.end + start) for it in said]
            citations += [
                replace(it, start=it.start + start, end=it.end + start,
                        sentences=tuple(n + before for n in it.sentences))
                for it in cited
            ]  # fmt: skip
        return tuple(blocks), tuple(sentences), tuple(citations)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of the answer: prose, headings, items, tables, code and so on. Lines of a quotation, and a list of sources, are
        one block each."""
        found: list[Block] = []
        for block in self._read[0]:
            gap = self.text[found[-1].end : block.start] if found else ""
            joined = found and found[-1].kind == block.kind in ("quote", "references") and not gap.strip(" \t\n>")
            if joined and (block.kind == "references" or "\n\n" not in gap):
                found[-1] = replace(found[-1], end=block.end)
            else:
                found.append(block)
        return tuple(found)

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """Sentences of the answer, also those that state nothing."""
        return self._read[1]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """Citations of the answer."""
        return self._read[2]

    @cached_property
    def statements(self) -> tuple[Sentence, ...]:
        """What the answer states: sentences that are neither talk nor a refusal."""
        return tuple(sentence for sentence in self.sentences if sentence.kind == "statement")

    @cached_property
    def declines(self) -> bool:
        """Whether the answer declines, and commits to nothing. An empty one does not decline."""
        return declines_as_read(self._read[0], self._read[1])


@lru_cache(maxsize=2048)
def read_text(
    text: str, language: str | None = None
) -> tuple[tuple[Block, ...], tuple[Sentence, ...], tuple[Citation, ...]]:
    """Blocks, sentences and citations of a text as it stands: of an answer, of reasoning, or of a passage of evidence."""
    if not text.strip():
        return (), (), ()
    blocks = find_blocks(text)
    sentences, citations = read_blocks(blocks, language or segmentation_language(text))
    if declines_as_read(blocks, sentences):
        # Advice and excuses beside a refusal are no claims.
        sentences = [replace(it, kind="talk") if it.kind == "statement" else it for it in sentences]
    elif len(sentences) == 1 and sentences[0].kind == "refusal":
        # What commits to an answer is a claim.
        sentences = [replace(sentences[0], kind="statement")]
    return tuple(blocks), tuple(sentences), tuple(citations)


_FEW = 4
"""Sentences of an answer that may decline without any that does so by itself: "It is not known."."""


def declines_as_read(blocks: Sequence[Block], sentences: Sequence[Sentence]) -> bool:
    """Whether a text of these blocks and sentences declines, and commits to nothing."""
    if any(block.kind in ("code", "math", "row") for block in blocks):
        return False
    if len(sentences) > _FEW and not any(sentence.kind == "refusal" for sentence in sentences):
        return False
    return declines_as_a_whole([sentence.says for sentence in sentences])


@lru_cache(maxsize=1024)
def _read_passage(text: str) -> tuple[tuple[Block, ...], tuple[Sentence, ...], tuple[Citation, ...]]:
    """Blocks, sentences and citations of a passage of evidence, of which nobody asks whether it declines."""
    found = find_blocks(text)
    sentences, citations = read_blocks(found, segmentation_language(text), kinds=False)
    return tuple(found), tuple(sentences), tuple(citations)


@lru_cache(maxsize=2048)
def passage_sentences(text: str) -> tuple[tuple[str, bool], ...]:
    """What a passage of evidence says, in order: its sentences without questions, citations and markup, and its headings, which
    state nothing. Each with whether it is a sentence."""
    if not text.strip():
        return ()
    found, sentences, _ = _read_passage(text)
    parts = [(it.start, it.says, True) for it in sentences if not it.says.endswith(("?", "？"))]
    headings = [(block.start, block.visible, False) for block in found if block.kind == "heading"]
    if headings:
        parts = sorted([*headings, *parts], key=lambda part: part[0])
    return tuple((says, states) for _, says, states in parts)


_MAY_CITE = re.compile(r"[\[［【(（⁰¹²³⁴-⁹]|<sup|https?:", re.IGNORECASE)


@lru_cache(maxsize=2048)
def without_citations(text: str) -> str:
    """A text without its citations, as judges are shown it. Markup stays."""
    if _MAY_CITE.search(text) is None:
        return text
    _, _, citations = _read_passage(text)
    parts, at = [], 0
    for it in citations:
        parts.append(text[at : it.start])
        at = it.end
    return _LOOSE.sub("", "".join([*parts, text[at:]])) if citations else text


_LOOSE = re.compile(r"(?<=\S)[ \t]+(?=[.,;:!?。，；：！？।](?:\s|\Z))")


@lru_cache(maxsize=2048)
def read(text: str, opened: bool = False, language: str | None = None) -> Reading:
    """What a completion says.

    Args:
        text (`str`):
            The completion, with its reasoning.
        opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends in an opening `<think>`.
        language (`str`, *optional*):
            Code of `sentencex` by which sentences are split; `None` guesses.

    Returns:
        [`Reading`]: what it holds is found when asked for; the same text is read once.
    """
    return Reading(text, opened, language)
