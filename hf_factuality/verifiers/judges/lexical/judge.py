"""The embedded judge: words, numbers, dates, negations, quantifiers and roles compared; no model, no download.

It is one half of `small`, the default, and alone the fast one. English; Chinese by character bigrams, without all that
needs a lexicon. It reads claim and evidence by cues and word lists, so that it knows a synonym ("shop", "store"), an
opposite ("rose", "fell"), a unit, a range, a passive, "buy" beside "sell" and "four years later", and misses what needs
more: figures of speech, chains of two sentences, what follows from the world. What it makes of each kind of error is in
docs/verifier-quality.md; take a trained judge where that matters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hf_factuality.functional.calibration import sigmoid
from hf_factuality.reading.completion import passage_sentences
from hf_factuality.reading.sentences import guess_language, segmentation_language
from hf_factuality.reading.words import ARTICLES, FUNCTION_WORDS, PRONOUNS
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.judges.lexical.alignment import Differences, find_differences
from hf_factuality.verifiers.judges.lexical.analysis import analyse
from hf_factuality.verifiers.judges.lexical.text import (
    COMMA,
    FUNCTION,
    HEDGE,
    MONTH,
    MONTHS,
    NAME,
    NEGATION,
    NUMBER,
    RUN_ON,
    SHORT_NAME,
    WORD,
    Token,
    content_terms,
    in_one_spelling,
    numbers_in_digits,
    states_nothing,
    tokens,
)
from hf_factuality.verifiers.pipeline import VerifierPipeline


# Logistic weights on the features of `lexical_features`, fitted by `benchmarks/lexical_verifier.py --fit`: see there
# for the data. WiCE dev, which that script reports on, took no part in the fit. They judge Chinese claims.
FEATURES = ("sentence", "three", "names", "numbers", "order", "conflict")
WEIGHTS = (1.8, 0.85, 3.23, 3.79, 0.93, -2.84)
INTERCEPT = -7.99
# English claims have these features (these, and `Differences`), fitted by the same script. A short claim says
# one thing, and a paraphrase of it may share few words with its evidence: what tells are the differences. A long claim
# says many things, and what tells is how much of it is there. From about `LENGTH` words on, the second weights count.
SHORT = {
    "conflict": -0.57,
    "most": -2.07,
    "bare": -1.32,
    "new_names": -2.5,
    "far_names": -0.11,
    "number": -1.98,
    "number_new": -1.46,
    "number_moved": -0.07,
    "number_negated": -6.54,
    "negated": -0.88,
    "opposite": -1.15,
    "roles": -1.65,
    "agent": -0.64,
    "sequence": -6.63,
    "quantifier": -1.77,
    "quantifier_new": -1.23,
    "doubt": -1.88,
    "patient": -0.47,
    "astray": -0.49,
    "holder": -1.91,
    "preposition": -0.7,
}
SHORT_INTERCEPT = 0.16
LONG = {
    "sentence": 0.76,
    "three": 0.49,
    "names": 1.61,
    "numbers": 3.23,
    "order": 0.79,
    "conflict": -3.09,
    "words": -0.17,
    "rare": -0.14,
    "new_names": -1.04,
    "far": -0.49,
    "number": -1.75,
    "number_new": -1.26,
    "roles": -0.03,
    "sequence": -1.3,
    "quantifier": -1.19,
    "doubt": -0.15,
    "patient": -0.63,
    "added": -0.21,
    "scattered": -0.07,
}
LONG_INTERCEPT = -4.44
LENGTH, LENGTH_SCALE = 11, 1.0
# In a long claim that is all there in one sentence these differences tell too, as if it were short, and count twice.
COPY_DIFFERENCES = ("negated", "opposite", "roles", "sequence", "quantifier", "quantifier_new")
COPY_WEIGHT, COPY_MISSING, COPY_LENGTH = 2.0, 0.1, 24
# Of a claim in the words of its evidence.
COPIED = 0.99
NOT_READ = "not judged: this judge reads English and Chinese, and the claim looks like {language!r}"
# Differences that speak against a claim, rather than leaving it open.
AGAINST = ("number", "number_negated", "negated", "opposite", "roles", "quantifier")

# How much a term of each kind counts, before its rarity in the evidence: function words, common words, other words,
# names, numbers, months.
KIND_WEIGHT = (0.0, 0.5, 1.0, 1.5, 2.5, 2.0)
# What an evidence sentence must hold of the claim to contradict it: this share of what is no missing name or number (a
# cheap first look), then this share of what lies outside the conflicting slots.
OVERLAP = 0.5
CONFLICT_COVERAGE = 0.75
# A sentence that holds the claim's value acquits it if its share is at most so much lower. From this share on, a
# sentence counts as a copy, which its neighbours do not acquit.
ACQUITTAL_MARGIN = 0.2
COPY_COVERAGE = 0.95


FEW_SENTENCES = 300
"""Evidence of more is indexed as a whole."""


class _Passage:
    """Sentences and headings of a passage, with their terms."""

    __slots__ = ("headings", "ordered", "sentences", "terms")

    def __init__(self, passage: str):
        self.sentences: list[str] = []
        # Each with the number of the sentence that follows it.
        self.headings: list[tuple[int, str]] = []
        for text, states in passage_sentences(passage):
            if not states:
                self.headings.append((len(self.sentences), text))
                continue
            start = 0
            if "." in text[:-1] or "!" in text or "?" in text:  # most have no mark but the one at the end
                for cut in RUN_ON.finditer(text):
                    self.sentences.append(text[start : cut.end()])
                    start = cut.end()
            self.sentences.append(text[start:])
        self.ordered = [content_terms(sentence) for sentence in self.sentences]
        self.terms = [frozenset(terms) for terms in self.ordered]


# Claims share passages, also where their evidence is not the same as a whole.
_passage = lru_cache(maxsize=1024)(_Passage)


class _Index:
    """Sentences of the evidence, and where terms occur."""

    def __init__(self, passages: tuple[str, ...]):
        self.sentences: list[str] = []
        self.ordered: list[tuple[str, ...]] = []
        self.terms: list[frozenset[str]] = []
        # For each term of a heading, the sentences that it stands above, as a range; and the headings with these.
        self.headed: dict[str, list[tuple[int, float]]] = {}
        self.headings: list[tuple[str, int, float]] = []
        for passage in map(_passage, passages):
            first = len(self.sentences)
            self.sentences += passage.sentences
            self.ordered += passage.ordered
            self.terms += passage.terms
            # A passage that is nothing but a heading is a line of a page whose other lines follow.
            stop = len(self.sentences) if passage.sentences else math.inf
            for above, heading in passage.headings:
                self.headings.append((heading, first + above, stop))
                for term in content_terms(heading):
                    self.headed.setdefault(term, []).append((first + above, stop))
        self._holders: dict[str, list[int]] = {}
        # Among few sentences those with a term are found when it is asked for: claims ask for a dozen terms of hundreds.
        self._holds_all = len(self.sentences) > FEW_SENTENCES
        if self._holds_all:
            for number, terms in enumerate(self.terms):
                for term in terms:
                    self._holders.setdefault(term, []).append(number)
        self._tokens: dict[int, list[Token]] = {}

    def holders(self, term: str) -> list[int]:
        """Numbers of the sentences with a term, in order."""
        found = self._holders.get(term, [] if self._holds_all else None)
        if found is None:
            found = [number for number, terms in enumerate(self.terms) if term in terms]
            if found:  # a server is asked for names without end that no sentence has
                self._holders[term] = found
        return found

    def tokens(self, number: int) -> list[Token]:
        """Tokens of a sentence; few are ever looked at."""
        if number not in self._tokens:
            self._tokens[number] = tokens(self.sentences[number])
        return self._tokens[number]

    def count_pairs(self, pairs: Set[tuple[str, str]]) -> int:
        """How many of these pairs of content terms are neighbours in a sentence."""
        holders = {n for first, second in pairs for n in self.holders(first) if second in self.terms[n]}
        left = set(pairs)
        for number in holders:
            left.difference_update(pairwise(self.ordered[number]))
        return len(pairs) - len(left)

    def context(self, number: int) -> Set[str]:
        """Terms of a sentence, and of the one before it if it starts with a pronoun."""
        if number and (found := self.tokens(number)) and found[0].term in PRONOUNS:
            return self.terms[number] | self.terms[number - 1]
        return self.terms[number]

    def absent(self, terms: Set[str], best: Sequence[int]) -> int:
        """How many terms stand in no sentence, and in no heading above one of the sentences `best`."""
        return sum(
            not any(first <= number < stop for first, stop in self.headed.get(term, ()) for number in best)
            for term in terms
            if not self.holders(term)
        )


# Keyed by the passages: the completions of one prompt come together and share them, and are split and indexed once.
_index = lru_cache(maxsize=128)(_Index)


class _Slot(NamedTuple):
    """A number, a part of a date, or words with a name among them, with the two neighbours on either side."""

    kind: str
    terms: frozenset[str]
    left: tuple[str, str]  # nearest first
    right: tuple[str, str]


# After these words a name is one of several: another name in the evidence does not exclude it.
_LISTED = frozenset(("and", "or", "with", "like", "includ", "as"))
_PAD = ("", "")


def _slots(found: list[Token], other: Set[str]) -> list[_Slot]:
    """Slots of a text whose terms are not among the terms of the `other` text."""
    terms, kinds, after_comma = [*_PAD], [FUNCTION, FUNCTION], set()
    for term, kind in found:
        if term == COMMA:
            after_comma.add(len(terms))
        elif term not in ARTICLES:
            terms.append(term)
            kinds.append(FUNCTION if term in other and kind < NUMBER else kind)
    stop = len(terms)
    terms += _PAD
    kinds += [FUNCTION, FUNCTION]
    slots, i = [], 2
    while i < stop:
        end, kind, term = i + 1, None, terms[i]
        if kinds[i] == MONTH:
            kind = "month"
        elif kinds[i] == NUMBER:
            if len(term) <= 2 and MONTH in (kinds[i - 1], kinds[i + 1]):
                kind = "day"
            else:
                kind = "year" if len(term) == 4 and "1000" <= term <= "2100" else "quantity"
        elif kinds[i] != FUNCTION:
            while FUNCTION < kinds[end] < NUMBER and end not in after_comma:
                end += 1
            kind = "name" if NAME in kinds[i:end] else None
        if kind is not None and not (kind != "name" and term in other):
            slots.append(
                _Slot(kind, frozenset(terms[i:end]), (terms[i - 1], terms[i - 2]), (terms[end], terms[end + 1]))
            )
        i = end
    return slots


def _exclude(claim: _Slot, other: _Slot) -> bool:
    """Whether two slots with different values stand in the same place, as far as their neighbours tell."""
    if claim.kind != other.kind:
        return False
    same_left = [ours == theirs != "" for ours, theirs in zip(claim.left, other.left, strict=True)]
    if claim.kind == "quantity":
        # The counted thing has to be the same ("82 radio stations", "26 TV stations"), or both words to the left.
        counted = (set(claim.right) & set(other.right)) - FUNCTION_WORDS - {""}
        return bool(counted) or claim.right[0] == other.right[0] == "%" or all(same_left)
    same_right = claim.right[0] == other.right[0] != ""
    if claim.kind == "name":
        return same_left[0] and claim.left[0] not in _LISTED and (same_left[1] or same_right)
    if claim.kind == "year":
        # "a 1974 novel" and "the 1980 film", "since 1995" and "in 2017" are not about one date.
        dated = not MONTHS.isdisjoint((*claim.left, *claim.right[:1], *other.left, *other.right[:1]))
        return dated or same_left[0] or same_right
    return True  # month, day


def _share(part: Iterable[str], whole: Iterable[str], weights: dict[str, float]) -> float:
    total = sum(weights[term] for term in whole)
    return sum(weights[term] for term in part) / total if total else 0.0


def _conflicting(found: list[Token], weights: dict[str, float], best: list[int], index: _Index) -> int:
    """Number of the sentence that says the same but for a date, number or name; -1 if there is none."""
    keys = {token.term for token in found if token.kind >= NAME}
    names = {token.term for token in found if token.kind == NAME}
    for number in best if keys else ():
        context = index.context(number)
        missing = keys - context
        if not missing or _share(weights.keys() & context, weights.keys() - missing, weights) < OVERLAP:
            continue
        theirs = _slots(index.tokens(number), weights.keys())
        # A first word without a neighbour to its left is the subject: another one is another topic.
        ours = [slot for slot in _slots(found, context) if slot.kind != "name" or slot.left[0]] if theirs else []
        conflicts = [slot for slot in ours if any(_exclude(slot, other) for other in theirs)]
        if not conflicts:
            continue
        values = frozenset().union(*(slot.terms for slot in conflicts))
        rest = weights.keys() - values
        # All other names must agree, or the sentence is about somebody else.
        if len(rest & context) < 2 or (names & rest) - context:
            continue
        coverage = _share(rest & context, rest, weights)
        if coverage < CONFLICT_COVERAGE:
            continue
        # Acquitted if the value stands in a sentence about as close to the claim, or, short of a copy, in a neighbour.
        holders = {holder for value in values & keys for holder in index.holders(value)}
        if not any(
            (abs(holder - number) == 1 and coverage < COPY_COVERAGE)
            or _share(rest & index.terms[holder], rest, weights) > coverage - ACQUITTAL_MARGIN
            for holder in holders
        ):
            return number
    return -1


def _negated(claim: str, sentence: str, context: Set[str]) -> tuple[bool, bool]:
    """Whether a negation speaks against the claim, and whether claim and sentence are alike but for it."""
    claim = HEDGE.sub(" ", claim)  # "I'm not sure, but"
    claim_negated, sentence_negated = bool(NEGATION.search(claim)), bool(NEGATION.search(sentence))
    if claim_negated == sentence_negated:
        return False, False
    # Without the negations, which are content to Chinese bigrams.
    ours = {term for term, kind in tokens(NEGATION.sub("", claim)) if kind}
    theirs = {term for term, kind in tokens(NEGATION.sub("", sentence)) if kind}
    shared = len(ours & (theirs | context))
    alike = shared >= 2 and shared >= 0.9 * len(ours)
    if sentence_negated:
        # Its "not" may belong to another clause, unless it says little else.
        alike = alike and len(ours & theirs) >= 0.8 * len(theirs)
        return alike, alike
    return True, alike


def _weights(found: list[Token], index: _Index) -> dict[str, float]:
    """Weight of each distinct content term of a claim: its kind times its rarity among the evidence sentences."""
    count = len(index.sentences) + 1
    weights: dict[str, float] = {}
    for position, (term, kind) in enumerate(found):
        if not kind:
            continue
        if kind == NAME and position == 0 and (len(found) == 1 or found[1].kind != NAME):
            kind = WORD  # the first word of a sentence has a capital anyway
        rarity = math.log(count / (len(index.holders(term)) + 0.5)) + 1.0
        weights[term] = max(weights.get(term, 0.0), KIND_WEIGHT[kind] * rarity)
    return weights


def _best_sentences(weights: dict[str, float], index: _Index) -> tuple[list[int], float, float]:
    """The three sentences that hold most each, the share of the best one, and that of a greedy choice of three."""
    total = sum(weights.values())
    left = [(weight, holders) for term, weight in weights.items() if (holders := index.holders(term))]
    ranked, first, covered = [], 0.0, 0.0
    for step in range(3):
        scores: dict[int, float] = {}
        for weight, holders in left:
            for number in holders:
                scores[number] = scores.get(number, 0.0) + weight
        if not scores:
            break
        chosen = min(scores, key=lambda number: (-scores[number], number))
        covered += scores[chosen]
        if step == 0:
            ranked = sorted(scores, key=lambda number: (-scores[number], number))[:3]
            first = covered
        left = [(weight, holders) for weight, holders in left if chosen not in holders]
    return ranked, first / total, covered / total


def lexical_features(claim: str, evidence: Sequence[str]) -> tuple[tuple[float, ...], str | None]:
    """The values named by `FEATURES`, each in [0, 1], and the evidence sentence that decided (`None`: none shares a term).

    - `sentence`, `three`: share of the claim's terms, weighted by kind and rarity, that the best evidence sentence
      and the best three hold;
    - `names`, `numbers`: 1 / (1 + k) for k name terms, or numbers and months, of the claim that the evidence holds
      nowhere; a claim without names rests on its words, and `names` is `three`. A heading holds them for the sentences
      below it: it counts if one of these is among the best three;
    - `order`: share of its pairs of neighbouring content terms that the evidence holds (1 if it has none);
    - `conflict`: 1 if a sentence says the same but for a date, number, name or negation, or if the claim is
      negated and the best sentence is not; else 0.
    """
    return _features(claim, tokens(claim), _index(tuple(evidence)))[:2]


def _features(claim: str, found: list[Token], index: _Index) -> tuple[tuple[float, ...], str | None, bool, list[int]]:
    """As `lexical_features`, whether the decisive sentence contradicts the claim, and the numbers of the best sentences."""
    found = found[1:] if found and found[0].term == COMMA else found
    weights = _weights(found, index)
    if not weights:
        return (0.0,) * len(FEATURES), None, False, []
    best, first, three = _best_sentences(weights, index)
    start = 1 if len(found) > 1 and found[1].kind != NAME else 0  # the first word has a capital anyway
    names = {token.term for token in found[start:] if token.kind == NAME}
    numbers = {token.term for token in found if token.kind >= NUMBER}
    terms = [token.term for token in found if token.kind]
    pairs = set(zip(terms, terms[1:], strict=False))
    decisive, conflict, contradicted = best[0] if best else -1, False, False
    if best:
        conflicting = _conflicting(found, weights, best, index)
        if conflicting >= 0:
            decisive, conflict, contradicted = conflicting, True, True
        else:
            conflict, contradicted = _negated(claim, index.sentences[decisive], index.context(decisive))
    values = (
        first,
        three,
        1.0 / (1 + index.absent(names, best)) if names else three,
        1.0 / (1 + index.absent(numbers, best)),
        index.count_pairs(pairs) / len(pairs) if pairs else 1.0,
        float(conflict),
    )
    return values, index.sentences[decisive] if decisive >= 0 else None, contradicted, best


# A date, a number with its scale, a short name, or a word; other marks stand alone.
_PIECE = re.compile(
    rf"{SHORT_NAME}|"
    r"\d{4}-\d{1,2}-\d{1,2}|\d+(?:[.,]\d+)*(?:\s(?:hundred|thousand|million|billion|trillion)\b)?|"
    r"[^\W\d_]+(?:['’][^\W\d_]+)*|[^\w\s]"
)


def unsupported_words(claim: str, evidence: Sequence[str]) -> list[tuple[int, int]]:
    """Where a claim says what its evidence nowhere does: runs of words that occur in no passage.

    Finer than a verdict, and blind to the same things: a synonym counts as absent, and words that the evidence holds
    in another sense or place as present. Words are compared as [`lexical_features`] compares them; function words
    between two absent words, or before one, go with it, and so do marks between two. Chinese text gives no runs.

    Args:
        claim (`str`):
            A sentence.
        evidence (`Sequence[str]`):
            Passages.

    Returns:
        `list[tuple[int, int]]`: half-open character ranges of `claim`, sorted and disjoint; empty without evidence.

    Example:

        >>> claim = "Ada Hale, a poet, was born in Leeds in 1880."
        >>> [claim[a:b] for a, b in unsupported_words(claim, ["Ada Hale was born in Leeds in 1879, a poet."])]
        ['in 1880']
    """
    index = _index(tuple(evidence))
    if not index.sentences or guess_language(claim) == "zh":
        return []
    runs: list[tuple[int, int]] = []
    open_run, lead = False, None  # whether the last content word was absent; start of the function words since then
    for piece in _PIECE.finditer(claim):
        terms = [token.term for token in tokens(piece.group()) if token.kind]
        if not terms:
            is_word = piece.group()[0].isalnum()
            lead = (piece.start() if lead is None else lead) if is_word else None
            continue
        absent = not all(map(index.holders, terms))
        if absent and open_run:
            runs[-1] = (runs[-1][0], piece.end())
        elif absent:
            runs.append((piece.start() if lead is None else lead, piece.end()))
        open_run, lead = absent, None
    return runs


_HEDGED = {Label.SUPPORTED: Label.HEDGED_SUPPORTED, Label.CONTRADICTED: Label.HEDGED_CONTRADICTED}


def _around(best: Sequence[int], count: int) -> list[int]:
    """Three sentences to read closely, in the order of the text: the best ones, else their neighbours."""
    chosen = list(best[:3])
    for number in (*best, 0):
        for near in (number - 1, number + 1, number):
            if len(chosen) < 3 and 0 <= near < count and near not in chosen:
                chosen.append(near)
    return sorted(chosen)


def english_features(claim: str, evidence: Sequence[str]) -> dict[str, float]:
    """What an English claim is judged by: [`lexical_features`], and its [`Differences`] from the closest sentences."""
    index = _index(tuple(evidence))
    values, *_, best = _features(claim, tokens(claim), index)
    return _english_features(claim, values, best, index)


def _english_features(claim: str, values: Sequence[float], best: Sequence[int], index: _Index) -> dict[str, float]:
    each = _differences(claim, best, index)
    found = dict(zip(FEATURES, values, strict=True)) | each._asdict()
    # Another spelling of the same is no conflict: "25" beside "twenty-five", "1984" beside "the 1980s"; nor is a "not" that
    # the differences have looked at.
    if (
        NEGATION.search(claim)
        and not each.negated
        or not (
            each.number
            or each.number_new
            or each.number_moved
            or each.new_names
            or each.far_names
            or each.far
            or each.negated
        )
    ):
        found["conflict"] = 0.0
    return found


def _differences(claim: str, best: Sequence[int], index: _Index) -> Differences:
    chosen = _around(best, len(index.sentences))
    known = {
        word
        for heading, above, stop in index.headings
        if any(above <= number < stop for number in best)
        for word in analyse(heading).by_base
    }
    return find_differences(analyse(claim), [analyse(index.sentences[number]) for number in chosen], frozenset(known))


def _logit(weights: Mapping[str, float], intercept: float, values: Mapping[str, float]) -> float:
    return intercept + sum(weight * values[name] for name, weight in weights.items())


class LexicalJudge:
    """Judge by the words, numbers, negations, quantifiers and roles of a claim and of the evidence that is closest to it.

    Implements [`~hf_factuality.verifiers.base.Judge`]. Deterministic. English, and Chinese by character bigrams; see the
    module for what it cannot do.

    Labels: `NO_FACT` for questions and talk about the answer itself; `UNVERIFIABLE` without evidence; `CONTRADICTED`
    if a sentence says otherwise: another number, date or name in the same place, the opposite, a "not", exchanged
    roles, fewer than "all"; else `SUPPORTED` from `threshold` on and `UNVERIFIABLE` below. A claim in the words of a
    sentence of the evidence is supported. A claim with a hedge ("perhaps", 可能) that its evidence does not have gets
    `HEDGED_SUPPORTED` or `HEDGED_CONTRADICTED`. A claim in a language that it does not read is not judged: its label is
    `None`, and the reason says so.

    The score is the probability of "supported" of a logistic regression on [`lexical_features`] and on the differences
    of [`english_features`]; `None` for `NO_FACT`, without evidence, and where the claim is not judged.

    Args:
        threshold (`float`, *optional*, defaults to `0.5`):
            Score from which a claim counts as supported, in [0, 1].

    Raises:
        `ValueError`: `threshold` is not in [0, 1].
    """

    limits = (
        "judged by 'lexical': words, numbers, negations and roles are compared, what only follows is missed; 'small' "
        "and 'best' are stronger (docs/verifiers.md)"
    )

    def __init__(self, threshold: float = 0.5):
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold is a probability in [0, 1], got {threshold!r}")
        self.threshold = threshold

    def config(self) -> dict[str, float]:
        """Arguments that make this judge again."""
        return {"threshold": self.threshold}

    @property
    def revision(self) -> str:
        """Digest of the lexicon and of the code with its weights and rules: other rules give other verdicts."""
        return _revision()

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order; `evidence` is the decisive sentence."""
        readings = [read_words(item) for item in inputs]
        return [
            verdict(item, found, self.threshold) if isinstance(found, WordReading) else found
            for item, found in zip(inputs, readings, strict=True)
        ]


class WordReading(NamedTuple):
    """What the words of a claim and of its evidence say.

    Args:
        score (`float`):
            Probability of support.
        against (`bool`):
            Whether a sentence that is about the same says otherwise.
        copied (`bool`):
            Whether the claim stands in the evidence word for word.
        sentence (`str`, *optional*):
            The decisive sentence.
        features (`dict[str, float]`):
            Of an English claim, those of [`english_features`]; else empty.
        closest (`tuple[str, ...]`):
            Up to three sentences of the evidence, in the order of the text.
        sentences (`int`):
            How many the evidence has.
    """

    score: float
    against: bool
    copied: bool
    sentence: str | None
    features: dict[str, float]
    closest: tuple[str, ...]
    sentences: int


def read_words(item: JudgeInput) -> WordReading | Judgement:
    """Compare the words of a claim and its evidence; the judgement, where there is nothing to compare."""
    found = tokens(item.claim)
    if states_nothing(item.claim, found):
        return Judgement(Label.NO_FACT)
    index = _index(tuple(item.evidence))
    if not index.sentences:
        return Judgement(Label.UNVERIFIABLE)
    values, sentence, against, best = _features(item.claim, found, index)
    copied = any(_stands_at(item.claim, number, index) for number in best)
    named: dict[str, float] = {}
    if guess_language(item.claim) == "zh":
        score = sigmoid(
            _logit(dict(zip(FEATURES, WEIGHTS, strict=True)), INTERCEPT, dict(zip(FEATURES, values, strict=True)))
        )
    elif not copied and (language := _foreign(item)):
        return Judgement(None, reason=NOT_READ.format(language=language))
    else:
        score, against, named = _english(item.claim, values, best, index)
    if copied:
        score, against = max(score, COPIED), False
    closest = tuple(index.sentences[number] for number in _around(best, len(index.sentences)))
    return WordReading(score, against, copied, sentence, named, closest, len(index.sentences))


def verdict(item: JudgeInput, reading: WordReading, threshold: float) -> Judgement:
    """The label of a claim by its score and by what speaks against it."""
    score, sentence = reading.score, reading.sentence
    # A Chinese claim that a sentence contradicts may share enough words with it for a high score.
    if reading.against and (score < threshold or not reading.features):
        label = Label.CONTRADICTED
    else:
        label = Label.SUPPORTED if score >= threshold else Label.UNVERIFIABLE
    if label in _HEDGED and HEDGE.search(item.claim) and not (sentence and HEDGE.search(sentence)):
        label = _HEDGED[label]
    return Judgement(label, score, sentence)


@lru_cache(maxsize=1)
def _revision() -> str:
    return digest_of_rules(Path(__file__).parent)


def digest_of_rules(folder: Path) -> str:
    """Of the code in a folder, in which weights and rules stand, and of the lexicon beside it."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".py", ".gz"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


_ENGLISH = frozenset("the of and is with by for from that his her which who".split())


def _foreign(item: JudgeInput) -> str | None:
    """The language of a claim that is not English, nor its evidence: a sentence with a French title in it is English."""
    language = segmentation_language(item.claim)
    if (
        language == "en"
        or len(_ENGLISH.intersection(item.claim.lower().split())) > 1
        or segmentation_language(" ".join(item.evidence)[:2000]) == "en"
    ):
        return None
    return language


def _english(
    claim: str, values: Sequence[float], best: Sequence[int], index: _Index
) -> tuple[float, bool, dict[str, float]]:
    """The score of an English claim, whether a sentence that is about the same speaks against it, and its features."""
    named = _english_features(claim, values, best, index)
    length = len(claim.split())
    long = _logit(LONG, LONG_INTERCEPT, named)
    if length <= COPY_LENGTH and max(named["far"], named["words"]) <= COPY_MISSING:
        long += COPY_WEIGHT * sum(SHORT.get(name, 0.0) * named[name] for name in COPY_DIFFERENCES)
    share = sigmoid((length - LENGTH) / LENGTH_SCALE)
    logit = (1 - share) * _logit(SHORT, SHORT_INTERCEPT, named) + share * long
    same = named["words"] < 0.25
    against = (
        # A "not" denies what a sentence says only where both speak of the same.
        named["conflict"] > 0
        and (same or not NEGATION.search(claim))
        or same
        and named["far"] < 0.35
        and any(named[name] >= 1.0 for name in AGAINST)
    )
    return sigmoid(logit), against, named


def _stands_at(claim: str, number: int, index: _Index) -> bool:
    """Whether a claim is, word for word, a sentence of the evidence, or with those around it the sentence that was cut there."""
    wanted = _spelt(claim)
    for start in range(max(0, number - 3), number + 1):
        if not wanted.startswith(_spelt(index.sentences[start].partition(" ")[0])):  # the first word, a cheap look
            continue
        found = ""
        for stop in range(start, len(index.sentences)):
            found += _spelt(index.sentences[stop])
            if found == wanted and number <= stop:
                return True
            if not wanted.startswith(found):
                break
    return False


# Marks that say nothing; signs, units and the points within numbers do.
_UNSAID = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|[^\w.,%‰+\-−–$€£¥°<>=≥≤≠/]")


@lru_cache(maxsize=1 << 12)
def _spelt(text: str) -> str:
    return _UNSAID.sub("", numbers_in_digits(in_one_spelling(text).lower()))


class LexicalVerifier(VerifierPipeline):
    """Sentences of the completion, judged against the row's evidence by [`LexicalJudge`]; needs nothing else.

    Args:
        language (`str`, *optional*):
            Language of the completions for [`SentenceExtractor`]; `None` decides per completion.
        threshold (`float`, *optional*, defaults to `0.5`):
            See [`LexicalJudge`].
    """

    def __init__(self, language: str | None = None, threshold: float = 0.5):
        super().__init__(SentenceExtractor(language), LexicalJudge(threshold))
