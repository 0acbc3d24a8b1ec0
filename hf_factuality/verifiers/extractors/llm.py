"""Atomic claims by a language model, each anchored to the characters that state it.

Three published ways to ask: FActScore's (sentence by sentence), VeriScore's (a sliding window, verifiable claims only)
and RLFH's (the whole response at once: sentences, then their statements). Prompts are our own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from rapidfuzz.distance import LCSseq

from hf_factuality.generation.base import ChatModel, ChatRequest
from hf_factuality.reading.completion import read_text
from hf_factuality.reading.marks import without_thinking
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.extractors.anchor import MIN_COVERAGE, anchor_claim, content_words, find_exact
from hf_factuality.verifiers.judges.llm import Talk, converse, log_unknown
from hf_factuality.verifiers.prompts import Prompt, load_prompt


Sentence = tuple[int, int]
# Completions whose prompts are in memory at once.
SLICE = 256
# A model that goes round in circles writes no claims.
MAX_CLAIM_CHARS, MAX_CLAIMS = 1000, 100
_BULLET = re.compile(r"(?:[-*•]|\d{1,3}[.)])\s+(\S.*)")
_HEADER = re.compile(r">>\s*Sentence\s+\d+\s*:\s*(\S.*)", re.IGNORECASE)
_STATEMENT = re.compile(r"[-*•]\s+(\S.*)")


@dataclass(frozen=True)
class ExtractedClaim:
    """An atomic claim: its span without label, with `claim` set; the characters of the sentence that it was taken from; and
    how it was found: `"exact"` (its very words), `"aligned"` (most of its words, in order), `"sentence"` (not found: it spans
    its sentence), `"completion"` (not even its sentence was found)."""

    span: LabeledSpan
    sentence: tuple[int, int]
    anchor: str


@dataclass(frozen=True)
class Extraction:
    """The claims of one completion in the order of the text, and its sentences whose claims are `unknown`: no answer that
    could be read."""

    claims: tuple[ExtractedClaim, ...]
    unknown: tuple[tuple[int, int], ...] = ()


@dataclass
class ExtractionReport:
    """Counts of one call: units asked about (sentences, or whole completions), units whose answer could not be read,
    units without any answer, claims, claims by how they were anchored, claims left out because they repeat another of
    their sentence or hold a number that the completion does not; units whose answer was cut at its length, of those that
    could not be read; units without a whole answer, by the number of the input."""

    units: int = 0
    unparsed: int = 0
    failed: int = 0
    claims: int = 0
    exact: int = 0
    aligned: int = 0
    unanchored: int = 0
    repeated: int = 0
    invented: int = 0
    first_error: str | None = None
    cut: int = 0
    unanswered: Counter = field(default_factory=Counter)


def parse_claims(text: str, nothing: str) -> list[str] | None:
    """Claims from an answer that is a list and nothing else; `[]` for `nothing` alone, `None` for any other answer.

    The lines begin with "- ", "* ", "•" or "1."; a claim that is too long or empty makes the answer unreadable.
    """
    lines = [line.strip() for line in without_thinking(text).splitlines() if line.strip()]
    if len(lines) == 1 and _same(_BULLET.sub(r"\1", lines[0]), nothing):
        return []
    bullets = [_BULLET.fullmatch(line) for line in lines]
    if not lines or not all(bullets):
        return None
    claims = [match[1] for match in bullets if match]
    return claims if _plausible(claims, nothing) else None


def parse_statements(text: str, nothing: str) -> list[tuple[str, list[str]]] | None:
    """RLFH's sentences with their statements from an answer of its form; `[]` for `nothing` alone, `None` for any other.

    The lines are ">> Sentence <n>: ..." with lines "* ..." under them.
    """
    lines = [line.strip() for line in without_thinking(text).splitlines() if line.strip()]
    if len(lines) == 1 and _same(lines[0], nothing):
        return []
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        header, statement = _HEADER.fullmatch(line), _STATEMENT.fullmatch(line)
        if header:
            found.append((header[1], []))
        elif statement and found:
            found[-1][1].append(statement[1])
        else:
            return None
    statements = [statement for _, list_ in found for statement in list_]
    return found if statements and _plausible(statements, nothing) else None


def same_claim(text: str) -> str:
    """What two claims have in common that are the same but for case, white space and a full stop."""
    return " ".join(text.split()).rstrip(".。").casefold()


def _same(line: str, nothing: str) -> bool:
    return line.strip(" .*\"'").casefold() == nothing.strip(" .").casefold()


def _plausible(claims: Sequence[str], nothing: str) -> bool:
    return len(claims) <= MAX_CLAIMS and all(
        len(claim) <= MAX_CLAIM_CHARS and any(map(str.isalnum, claim)) and not _same(claim, nothing)
        for claim in claims
    )


@dataclass(eq=False, repr=False)
class LLMExtractor:
    """What the three ways share: asking until the answer can be read, and anchoring. Use one of its subclasses.

    Implements [`~hf_factuality.verifiers.base.Extractor`]. An answer that is not of the form asked for, or that was cut,
    is asked for again, a little warmer each time. If it never can be read the claims of that sentence are unknown:
    [`extract_claims`] says so, and [`extract`], which cannot, does as `on_failure` says.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model.
        prompt (`str` or `Path`, *optional*):
            Name or file of another prompt.
        retries (`int`, *optional*):
            How often an unreadable answer is asked for again.
        temperature (`float`, *optional*):
            Of the first attempt; 0.25 more for each further one.
        max_tokens (`int`, *optional*):
            Longest answer.
        on_failure (`str`, *optional*, defaults to `"sentence"`):
            What [`extract`] returns for a sentence whose claims are unknown: `"sentence"`, the sentence whole, so that
            it is judged as it is; `"drop"`, nothing.

    Raises:
        `ValueError`: an argument is out of range, or the prompt lacks a value.
    """

    client: ChatModel
    prompt: str | Path | Prompt | None = None
    _: KW_ONLY
    retries: int = 2
    temperature: float = 0.0
    max_tokens: int = 512
    on_failure: str = "sentence"
    last_report: ExtractionReport = field(default_factory=ExtractionReport, init=False)

    prompt_name: ClassVar[str]
    nothing: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ("question", "context", "sentence")
    required: ClassVar[tuple[str, ...]] = ("sentence",)
    parse: ClassVar[Callable[[str, str], list | None]] = staticmethod(parse_claims)
    drop_new_numbers: ClassVar[bool] = False

    def __post_init__(self):
        if self.retries < 0 or self.temperature < 0 or self.max_tokens < 1:
            raise ValueError("retries and temperature must be >= 0, max_tokens >= 1")
        if self.on_failure not in ("sentence", "drop"):
            raise ValueError(f'on_failure must be "sentence" or "drop", got {self.on_failure!r}')
        name = self.prompt if self.prompt is not None else self.prompt_name
        self.prompt = load_prompt(name, self.fields, self.required)

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, the spans of its claims in order, without labels; `claim` is set.
        [`~hf_factuality.generation.client.ServerError`]: the server is gone; what was answered is in the cache."""
        results = []
        for item, found in zip(inputs, self.extract_claims(inputs), strict=True):
            spans = [claim.span for claim in found.claims]
            if self.on_failure == "sentence":
                spans += [LabeledSpan(start, end, claim=item.completion[start:end]) for start, end in found.unknown]
            results.append(sorted(spans, key=lambda span: span.start))
        return results

    def extract_claims(self, inputs: Sequence[VerifierInput]) -> list[Extraction]:
        """Per input, its claims with their sentences and anchors, and what is unknown. See [`extract`]."""
        report = self.last_report = ExtractionReport()
        results: list[Extraction] = []
        for start in range(0, len(inputs), SLICE):
            results += self._extract(inputs[start : start + SLICE], start)
        log_unknown(report, f"the claims of %d of {report.units} units are unknown", self)
        return results

    def _extract(self, inputs: Sequence[VerifierInput], first: int) -> list[Extraction]:
        # Headings, code, questions, lists of sources and refusals claim nothing.
        stated = [[it for it in read_text(item.completion)[1] if it.kind == "statement"] for item in inputs]
        units = [
            self._units(item, [(it.start, it.end) for it in own]) for item, own in zip(inputs, stated, strict=True)
        ]
        owners = [number for number, found in enumerate(units, first) for _ in found]
        answers = iter(self._ask([self.prompt.fill(values) for found in units for values, _ in found], owners))
        results = []
        for item, found in zip(inputs, units, strict=True):
            # Words of the completion and its question.
            around = frozenset(word for word, _, _ in content_words(f"{item.completion}\n{item.question or ''}"))
            claims: list[ExtractedClaim] = []
            unknown: list[Sentence] = []
            for _, sentences in found:
                answer = next(answers)
                if answer is None:
                    unknown += sentences
                else:
                    claims += self._claims(answer, item, sentences, around)
            results.append(Extraction(tuple(claims), tuple(unknown)))
        return results

    def _units(self, item: VerifierInput, sentences: list[Sentence]) -> list[tuple[dict, list[Sentence]]]:
        """What the model is asked about, each with the values of the prompt and its sentences; here one sentence each."""
        return [
            (
                {
                    "question": item.question,
                    "context": self._context(item, sentences, number),
                    "sentence": item.completion[start:end],
                },
                [(start, end)],
            )
            for number, (start, end) in enumerate(sentences)
        ]

    def _context(self, item: VerifierInput, sentences: Sequence[Sentence], number: int) -> str | None:
        raise NotImplementedError

    def _claims(
        self, answer: list, item: VerifierInput, sentences: list[Sentence], around: frozenset[str]
    ) -> list[ExtractedClaim]:
        """The claims of a unit, from its answer as `parse` reads it."""
        return self._anchored(answer, item, sentences[0], around)

    def _messages(self, prompt: str) -> tuple[tuple[str, str], ...]:
        """The conversation that asks about a unit."""
        return (("user", prompt),)

    def _ask(self, prompts: Sequence[str], owners: Sequence[int]) -> list[list | None]:
        """Per prompt, the answer as `parse` reads it; `None` if it never could. `owners` are the numbers of their inputs."""

        def talk(prompt: str) -> Talk:
            for attempt in range(self.retries + 1):
                temperature = self.temperature + 0.25 * attempt
                seed = attempt if temperature else None
                answer = yield ChatRequest(
                    self._messages(prompt), temperature=temperature, max_new_tokens=self.max_tokens, seed=seed
                )
                found = self.parse(answer.text, self.nothing) if answer.complete else None
                if found is not None:
                    return found

        found = converse(self.client, talk, prompts)
        report = self.last_report
        report.units += len(prompts)
        report.failed += len(found.failed)
        report.unparsed += found.results.count(None) - len(found.failed)
        report.first_error = report.first_error or next(iter(found.failed.values()), None)
        cut = {number for number in found.cut if found.results[number] is None}
        report.cut += len(cut)
        report.unanswered.update(owners[number] for number in cut | found.failed.keys())
        return found.results

    def _anchored(
        self, claims: Sequence[str], item: VerifierInput, sentence: Sentence, around: frozenset[str]
    ) -> list[ExtractedClaim]:
        """[`ExtractedClaim`] of each text, without repetitions."""
        report, result, seen = self.last_report, [], set()
        for text in claims:
            same = same_claim(text)
            if same in seen:
                report.repeated += 1
                continue
            seen.add(same)
            if self.drop_new_numbers and any(
                word[0].isdecimal() and word not in around for word, _, _ in content_words(text)
            ):
                report.invented += 1
                continue
            start, end, anchor = anchor_claim(text, item.completion, sentence, around)
            result.append(ExtractedClaim(LabeledSpan(start, end, claim=text), sentence, anchor))
        anchors = Counter(claim.anchor for claim in result)
        report.claims += len(result)
        report.exact += anchors["exact"]
        report.aligned += anchors["aligned"]
        report.unanchored += anchors["sentence"] + anchors["completion"]
        return result


class FActScoreExtractor(LLMExtractor):
    """FActScore's independent facts, sentence by sentence (arXiv 2305.14251).

    The model sees the three sentences before, to replace pronouns. As in FActScore, a fact with a number that the
    completion does not hold is left out (there by named entities), and so is one that repeats another of its sentence.

    Arguments as in [`LLMExtractor`].
    """

    prompt_name = "extract_factscore"
    nothing = "No facts."
    drop_new_numbers = True

    def _context(self, item: VerifierInput, sentences: Sequence[Sentence], number: int) -> str | None:
        start, end = sentences[max(number - 3, 0)][0], sentences[number][0]
        return item.completion[start:end].strip() or None


class VeriScoreExtractor(LLMExtractor):
    """VeriScore's verifiable claims, by a sliding window (arXiv 2406.19276).

    The model sees three sentences before and one after; of a longer text that answers no question, its first sentence
    too.

    Arguments as in [`LLMExtractor`].
    """

    prompt_name = "extract_veriscore"
    nothing = "No verifiable claim."

    def _context(self, item: VerifierInput, sentences: Sequence[Sentence], number: int) -> str | None:
        first, last = max(number - 3, 0), min(number + 1, len(sentences) - 1)
        text = item.completion[sentences[first][0] : sentences[last][1]]
        if item.question is None and first > 0 and len(sentences) > 5:
            text = f"{item.completion[slice(*sentences[0])]}\n...\n{text}"
        return text


@dataclass(eq=False, repr=False)
class RLFHExtractor(LLMExtractor):
    """RLFH's two levels, a whole response at once: its factual sentences, then their statements (arXiv 2406.12221).

    The sentences that the model copies are found again in the completion; a statement whose sentence cannot be found
    spans the whole completion. Where the answer cannot be read all sentences of the completion are unknown.

    Arguments as in [`LLMExtractor`].
    """

    prompt_name = "extract_rlfh"
    fields = ("question", "response")
    required = ("response",)
    parse = staticmethod(parse_statements)
    nothing = "No statements."

    _: KW_ONLY
    retries: int = 4
    max_tokens: int = 4096

    def _units(self, item: VerifierInput, sentences: list[Sentence]) -> list[tuple[dict, list[Sentence]]]:
        values = {"question": item.question, "response": item.completion}
        return [(values, sentences)] if sentences else []

    def _claims(
        self, answer: list, item: VerifierInput, sentences: list[Sentence], around: frozenset[str]
    ) -> list[ExtractedClaim]:
        claims = []
        for copied, statements in answer:
            place = _find_sentence(copied, item.completion, sentences)
            found = self._anchored(statements, item, place or (0, len(item.completion)), around)
            if place is None:
                found = [replace(c, anchor="completion") if c.anchor == "sentence" else c for c in found]
            claims += found
        return sorted(claims, key=lambda claim: claim.sentence)


def _find_sentence(copied: str, text: str, sentences: Sequence[Sentence]) -> Sentence | None:
    """The sentence of `text` that was copied: its very words, else the one that shares most of them, in order."""
    exact = find_exact(copied, text, 0, len(text))
    if exact:
        start, end = exact
        while end < len(text) and text[end] in ".!?。！？":
            end += 1
        return start, end
    wanted = [word for word, _, _ in content_words(copied)]
    scores = [
        LCSseq.normalized_similarity(wanted, [word for word, _, _ in content_words(text[start:end])])
        for start, end in sentences
    ]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return None if best is None or scores[best] < MIN_COVERAGE else sentences[best]
