"""Claims beside their evidence: labelled ones from files, and synthetic ones made from passages by named edits."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset

from hf_factuality.data.labelled_claims import read_claim
from hf_factuality.data.reading import Rows
from hf_factuality.errors import DataError
from hf_factuality.methods.verifier.edits import EDITS, REWRITES, Stock
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.verifiers.base import evidence_passages


SUPPORTED, NOT_SUPPORTED = "supported", "not_supported"
PASSAGE_COLUMNS = ("passage", "text", "knowledge", "evidence")
SAME, ELSEWHERE, SPANS = "same", "elsewhere", "wice_spans"
_MIN_WORDS = 5


def read_labelled_claims(parts: Iterable[tuple[str, Rows]], seed: int = 0) -> list[dict[str, Any]]:
    """Claims with evidence and label, each with a `kind`, a `topic` and its `source`.

    Args:
        parts (`Iterable[tuple[str, Rows]]`):
            Name and numbered rows of each file, as [`~hf_factuality.data.reading.read_parts`] gives them. A row has `claim`,
            `evidence` (a text or several), `label` (as [`~hf_factuality.data.labelled_claims.claim_label`] reads it; rows with
            `None` are left out) and maybe `kind`, `topic`, `source` and `window`, the text of the evidence that training
            reads. Rows as WiCE publishes them are read too: the sentences of a page, which are one passage, and of those
            with `non_supported_spans` the pair of [`span_pair`].
        seed (`int`, *optional*, defaults to `0`):
            Of those pairs.

    Raises:
        `DataError`: a file without rows, a row without claim or evidence, an unknown label.
    """
    found: list[dict[str, Any]] = []
    for name, rows in parts:
        if not rows:
            raise DataError(f"{name} has no rows; each needs 'claim', 'evidence' and 'label'")
        source, rng = name.replace("\\", "/").rpartition("/")[2], random.Random(f"spans {seed}")
        for number, row in rows:
            place = f"{name}, row {number}"
            if isinstance(row, Mapping) and "non_supported_spans" in row and "claim_tokens" in row:
                evidence = _evidence(row, place)
                pair = span_pair(row["claim_tokens"], row["non_supported_spans"], rng)
                window = _around(evidence, row.get("supporting_sentences"))
                same = {"evidence": [" ".join(evidence)], "window": window, "topic": evidence[0], "source": source}
                found += [
                    {"claim": claim, "label": label, "kind": SPANS, **same}
                    for claim, label in zip(pair, (SUPPORTED, NOT_SUPPORTED), strict=False)
                ]
                continue
            if isinstance(row, Mapping):
                if "label" in row and row["label"] is None:
                    continue
                label = row.get("label")
                kind = row.get("kind") or row.get("error") or (label if isinstance(label, str) else "")
                row = {**row, "kind": str(kind), "group": None}
            read = read_claim(row, place)
            evidence = _evidence(row, place)
            if "supporting_sentences" in row:
                evidence = [" ".join(evidence)]
            found.append(
                {"claim": read.input.completion, "evidence": evidence, "window": row.get("window"),
                 "label": SUPPORTED if read.supported else NOT_SUPPORTED, "kind": read.kind or "",
                 "topic": str(row.get("topic") or evidence[0]), "source": row.get("source") or source}
            )  # fmt: skip
    return found


def span_pair(tokens: Sequence[str], unsupported: Sequence[bool], rng: random.Random) -> tuple[str, ...]:
    """Two claims of one length from a claim whose tokens without support are marked: the first without these, which is supported,
    the second without as many others, which is not. Empty where too little would be left of the claim."""
    right = [place for place, wrong in enumerate(unsupported) if not wrong]
    if not any(unsupported) or len(right) < max(4, sum(unsupported) + 3):
        return ()
    start = rng.randrange(len(right))
    dropped = {right[(start + step) % len(right)] for step in range(sum(unsupported))}
    return " ".join(tokens[place] for place in right), " ".join(
        token for place, token in enumerate(tokens) if place not in dropped
    )


def read_passages(parts: Iterable[tuple[str, Rows]]) -> list[str]:
    """The passages of files: rows that are texts, or the first of [`PASSAGE_COLUMNS`] that a row has.

    Raises:
        `DataError`: a file without rows, or a row without text.
    """
    found = []
    for name, rows in parts:
        if not rows:
            raise DataError(f"{name} has no rows; each needs one of {list(PASSAGE_COLUMNS)}")
        for number, row in rows:
            text = row
            if isinstance(row, Mapping):
                text = next((row[column] for column in PASSAGE_COLUMNS if row.get(column)), None)
            text = " ".join(text) if isinstance(text, list) and all(isinstance(one, str) for one in text) else text
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"{name}, row {number}: a passage is a text in one of {list(PASSAGE_COLUMNS)}, got {row!r:.80}"
                )
            found.append(text)
    return found


def synthetic_claims(
    passages: Sequence[str],
    count: int,
    seed: int = 0,
    edits: Sequence[str] | None = None,
    max_words: int = 40,
) -> list[dict[str, Any]]:
    """About `count` claims made from English passages, about half of them supported, with their kinds.

    Of a sentence of a passage come four claims: the sentence (half of the time by a rewrite, whose name is the kind, else
    `"same"`), which is supported; an edited sentence, which is not; and, with the edited sentence in the passage, the same
    two the other way round. So no claim shows by itself whether it was edited. A phrase more (`"detail"`) has no other way
    round: the shorter sentence is supported by the longer one. One sentence in four is asked of another passage
    (`"elsewhere"`). The kinds of edits are as frequent as the sentences allow.

    Args:
        passages (`Sequence[str]`):
            Texts; each is the topic of its claims.
        count (`int`), seed (`int`, *optional*, defaults to `0`):
            The same seed and passages give the same claims.
        edits (`Sequence[str]`, *optional*):
            Names of [`~hf_factuality.methods.verifier.edits.EDITS`]; `None`: all.
        max_words (`int`, *optional*, defaults to `40`):
            Of a sentence that is edited. Sentences around it are shown as evidence too, until half as many more are reached.

    Raises:
        `DataError`: no edit applies to any sentence. `ValueError`: an unknown edit, or less than 5 `max_words`.
    """
    chosen = list(EDITS if edits is None else edits)
    if unknown := [name for name in chosen if name not in EDITS]:
        raise ValueError(f"edits={unknown} are unknown; choose from {[*EDITS]}")
    if max_words < _MIN_WORDS:
        raise ValueError(f"max_words={max_words} must be at least {_MIN_WORDS}")
    texts = [list(dict.fromkeys(passage[a:b].strip() for a, b in sentence_offsets(passage))) for passage in passages]
    stock, rng = Stock.of(sentence for text in texts for sentence in text), random.Random(f"claims {seed}")
    usable = [
        (number, place)
        for number, text in enumerate(texts)
        for place, sentence in enumerate(text)
        if _MIN_WORDS <= len(sentence.split()) <= max_words and sentence[-1] in ".!?"
    ]
    rng.shuffle(usable)
    rows: list[dict[str, Any]] = []
    made: Counter[str] = Counter()
    for number, place in usable:
        if len(rows) >= count:
            break
        text, sentence = texts[number], texts[number][place]
        near = Stock.of(text)
        # The rarest kind first, so that none crowds out the others.
        for kind in sorted(chosen, key=lambda name: (made[name], rng.random())):
            edited = EDITS[kind](sentence, stock if rng.random() < 0.5 or kind == "detail" else near, rng)
            if edited is not None and edited != sentence and edited not in text:
                break
        else:
            continue
        made[kind] += 1
        window = _neighbours(text, place, max_words * 3 // 2, rng)
        passage, changed = " ".join(window), " ".join(edited if one == sentence else one for one in window)
        own, own_kind = _rewritten(sentence, near, rng)
        other, other_kind = _rewritten(edited, near, rng)
        if own_kind == "clause" and not _keeps(own, sentence, edited):
            own, own_kind = sentence, SAME
        if other_kind == "clause" and not _keeps(other, edited, sentence):
            other, other_kind = edited, SAME
        made_here = [(own, passage, SUPPORTED, own_kind), (other, passage, NOT_SUPPORTED, kind)]
        if kind == "detail":
            made_here.append((own, changed, SUPPORTED, "clause"))
            second = EDITS[kind](sentence, stock, rng)
            if second is not None and second != edited:
                made_here.append((second, changed, NOT_SUPPORTED, kind))
        else:
            made_here += [(other, changed, SUPPORTED, other_kind), (own, changed, NOT_SUPPORTED, kind)]
        foreign = texts[rng.randrange(len(texts))]
        if rng.random() < 0.25 and foreign and foreign is not text:
            made_here.append((rng.choice(foreign), passage, NOT_SUPPORTED, ELSEWHERE))
            again, again_kind = _rewritten(rng.choice(window), near, rng)
            made_here.append((again, passage, SUPPORTED, again_kind))
        rows += [
            {"claim": claim, "evidence": [evidence], "window": None, "label": label, "kind": name,
             "topic": f"passage {number}", "source": "synthetic"}
            for claim, evidence, label, name in made_here
        ]  # fmt: skip
    if not rows:
        raise DataError(f"no edit of {chosen} applies to a sentence of {len(texts)} passages; give English prose")
    return rows


def _rewritten(sentence: str, stock: Stock, rng: random.Random) -> tuple[str, str]:
    """A sentence, half of the time by the first rewrite that applies, and the name of that."""
    names = rng.sample([*REWRITES], len(REWRITES)) if rng.random() < 0.5 else []
    for name in names:
        found = REWRITES[name](sentence, stock, rng)
        if found is not None and found != sentence:
            return found, name
    return sentence, SAME


def _keeps(shorter: str, sentence: str, edited: str) -> bool:
    """Whether a sentence that lost a clause still has the words by which it differs from its edit, and those beside them."""
    words, others = sentence.split(), edited.split()
    start = len(os.path.commonprefix([words, others]))
    end = len(os.path.commonprefix([words[: start - 1 : -1] if start else words[::-1], others[::-1]]))
    piece = words[max(start - 1, 0) : len(words) - min(end, len(words) - start) + 1]
    return f" {' '.join(piece[1:-1] if len(piece) > 2 else piece)}" in f" {shorter}"


def _neighbours(text: Sequence[str], place: int, most: int, rng: random.Random) -> list[str]:
    """The sentence with up to three that stand around it, as far as they have at most so many words together."""
    start, end, words = place, place + 1, len(text[place].split())
    for _ in range(rng.randrange(4)):
        before = start > 0 and (end == len(text) or rng.random() < 0.5)
        one = text[start - 1] if before else text[end] if end < len(text) else None
        if one is None or words + len(one.split()) > most:
            break
        words += len(one.split())
        start, end = (start - 1, end) if before else (start, end + 1)
    return list(text[start:end])


def _evidence(row: Mapping[str, Any], place: str) -> list[str]:
    found = evidence_passages(row.get("evidence"))
    if not found:
        raise DataError(
            f"{place}: 'evidence' must be text or a list of texts, and not blank, got {row.get('evidence')!r:.80}"
        )
    return list(found)


def _around(evidence: Sequence[str], supporting: Any) -> str | None:
    """The sentences that support a claim with their neighbours, where they are named."""
    try:
        places = {place + step for place in supporting[0] for step in (-1, 0, 1)}
    except (TypeError, IndexError, KeyError):
        return None
    return " ".join(evidence[place] for place in sorted(places) if 0 <= place < len(evidence)) or None


def claims_dataset(rows: Sequence[Mapping[str, Any]], description: str = "") -> Dataset:
    """The rows as a `Dataset`, with a line for the card that says where they are from."""
    dataset = Dataset.from_list([dict(row) for row in rows])
    dataset.info.description = description
    return dataset
