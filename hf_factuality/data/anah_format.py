"""Mask-DPO's released form of pairs, `sents` and `type`, read into labelled characters and written from them.

A line of the released code's file has `prompt`, `chosen` and `rejected` (lists of messages), and `chosen_item` and
`rejected_item`: the sentences of the response as text, `sents`, and a type for each, `type`. Sentences are text there, and
joined they need not be the response, since ANAH's splitter puts spaces back; here they are found in it again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapidfuzz import fuzz

from hf_factuality.data.pairs import hallucination_free_share
from hf_factuality.data.preferences import pair_features
from hf_factuality.data.reading import messages_of
from hf_factuality.errors import DataError
from hf_factuality.functional.preference import FREE_OF_HALLUCINATION
from hf_factuality.io.files import writing
from hf_factuality.io.rows import read_rows
from hf_factuality.spans import ANAH_LABELS, Label, LabeledSpan


if TYPE_CHECKING:
    from datasets import Dataset


_TYPES: Mapping[str, Label] = {
    # Two types in place of four: "hallucination" is contradictory or unverifiable, "no_hallucination" ok or nofact.
    "hallucination": Label.CONTRADICTED,
    "no_hallucination": Label.SUPPORTED,
    **ANAH_LABELS,
}
_WRITTEN: Mapping[str, Mapping[Label, str]] = {
    "mask_dpo": {label: "no_hallucination" if label in FREE_OF_HALLUCINATION else "hallucination" for label in Label},
    "anah": {
        **{label: name for name, label in ANAH_LABELS.items()},
        Label.HEDGED_SUPPORTED: "ok",
        Label.HEDGED_CONTRADICTED: "contradictory",
    },
}
# Likeness, of 100, that an aligned stretch must have with its sentence.
_LIKENESS = 85.0
_SIDES = ("chosen", "rejected")


@dataclass
class ANAHReport:
    """What became of the sentences, in numbers."""

    pairs: int = 0
    sentences: int = 0
    exact: int = 0  # found as they are
    spaced: int = 0  # but for white space
    aligned: int = 0
    unplaced: int = 0
    unknown_types: Counter = field(default_factory=Counter)  # types that are none; such sentences have no label


def place_sentences(
    sentences: Sequence[str], text: str, report: ANAHReport | None = None
) -> list[tuple[int, int] | None]:
    """Where each of the sentences of a text stands in it: ranges in order without overlap, `None` for one not found."""
    report = ANAHReport() if report is None else report
    found: list[tuple[int, int] | None] = []
    end = 0
    for sentence in map(str.strip, sentences):
        report.sentences += 1
        place, how = _place(sentence, text, end) if sentence else (None, "unplaced")
        setattr(report, how, getattr(report, how) + 1)
        found.append(place)
        end = place[1] if place else end
    return found


def read_anah(source: str | os.PathLike | Iterable[Mapping[str, Any]], report: ANAHReport | None = None) -> Dataset:
    """Pairs in the released form as a dataset for [`~hf_factuality.MaskDPOTrainer`].

    `hallucination` becomes `contradicted` and `no_hallucination` `supported`; ANAH's own types `ok`, `contradictory`,
    `unverifiable` and `nofact` are read as well. Text that should hold sentences which were not found becomes a span
    without label, which no mask counts on either side.

    Args:
        source (`str`, `PathLike` or `Iterable[Mapping]`):
            A file (JSON Lines, a JSON list, Parquet), or its rows.
        report ([`ANAHReport`], *optional*):
            Is added to.

    Returns:
        `datasets.Dataset`: columns of [`~hf_factuality.data.pair_features`]; `id` is the row's own or its number, scores
        are shares of sentences without hallucination.

    Raises:
        `DataError`: names the row that is not of this form.
        `OSError`: the file cannot be read.
    """
    from datasets import Dataset

    report = ANAHReport() if report is None else report
    path = isinstance(source, (str, os.PathLike))
    name = Path(source).name if path else "the rows"
    rows = []
    for number, row in read_rows(source) if path else enumerate(source):
        place = f"{name}, row {number}"
        prompt = messages_of(row.get("prompt")) if isinstance(row, Mapping) else None
        if not prompt:
            raise DataError(f"{place} has no 'prompt' (a list of messages): {row!r:.100}")
        topic = row.get("topic")
        pair: dict[str, Any] = {
            "id": str(row.get("id", len(rows))),
            "prompt": prompt,
            "topic": None if topic is None else str(topic),
        }
        for side in _SIDES:
            content, sents, types = _side(row, side, place)
            spans = _spans(sents, types, content, report)
            pair[side] = [{"role": "assistant", "content": content}]
            pair[f"{side}_spans"] = [span.to_dict() for span in spans]
            pair[f"{side}_score"] = hallucination_free_share(spans)
        rows.append(pair)
    if not rows:
        raise DataError(f"{name}: there are no pairs")
    report.pairs += len(rows)
    return Dataset.from_list(rows, features=pair_features())


def write_anah(
    pairs: Iterable[Mapping[str, Any]], path: str | os.PathLike, types: str = "mask_dpo", unjudged: str = "masked"
) -> int:
    """Write pairs in the released form, JSON Lines that its training code reads.

    Scores, claims and evidence have no place there; `id` and `topic` are written beside.

    Args:
        pairs (`Iterable[Mapping]`):
            Rows with the columns of [`~hf_factuality.data.pair_features`].
        path (`str` or `PathLike`):
            The file.
        types (`str`, *optional*, defaults to `"mask_dpo"`):
            `"mask_dpo"` writes `hallucination` and `no_hallucination`, all that the released training code knows; `"anah"`
            writes `ok`, `contradictory`, `unverifiable` and `nofact`.
        unjudged (`str`, *optional*, defaults to `"masked"`):
            Of sentences without a label, which the form does not know. `"masked"` writes the type that the released code
            masks on this side, so that it learns nothing from them; `"null"` writes `null`, which [`read_anah`] reads as
            unjudged again and the released code would learn from.

    Returns:
        `int`: pairs written.

    Raises:
        `DataError`: names the pair whose spans overlap, or whose columns are others.
        `ValueError`: another word for `types` or `unjudged`.
    """
    if types not in _WRITTEN or unjudged not in ("masked", "null"):
        raise ValueError(f"types is 'mask_dpo' or 'anah' and unjudged 'masked' or 'null', got {types!r}, {unjudged!r}")
    count = 0
    path = Path(path)
    with writing(path) as partial, partial.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
        for number, pair in enumerate(pairs):
            row = {"prompt": pair["prompt"]}
            for side in _SIDES:
                if len(pair[side]) != 1:
                    raise DataError(f"pair {number}: {side} must be one message, it is {len(pair[side])}")
                row |= {side: pair[side], f"{side}_item": _item(pair, side, types, unjudged, number)}
            row |= {name: pair[name] for name in ("id", "topic") if pair.get(name) is not None}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _item(pair: Mapping[str, Any], side: str, types: str, unjudged: str, number: int) -> dict[str, list]:
    content, names, end = pair[side][0]["content"], _WRITTEN[types], 0
    # What does not count on this side: a false sentence of the chosen, a true one of the rejected.
    masked = names[Label.CONTRADICTED if side == "chosen" else Label.SUPPORTED] if unjudged == "masked" else None
    spans = sorted(map(LabeledSpan.from_dict, pair[f"{side}_spans"]), key=lambda span: (span.start, span.end))
    for span in spans:
        if span.start < end or span.end > len(content):
            raise DataError(
                f"pair {number}: the span [{span.start}, {span.end}) of {side} overlaps another or ends after the text; "
                "this form holds sentences one after the other"
            )
        end = span.end
    labels = [masked if span.label is None else names[span.label] for span in spans]
    return {"sents": [span.text(content) for span in spans], "type": labels}


def _side(row: Mapping[str, Any], side: str, place: str) -> tuple[str, list[str], list[Any]]:
    messages, item = messages_of(row.get(side)), row.get(f"{side}_item")
    if len(messages) != 1:
        raise DataError(f"{place}: '{side}' must be a list of one message, got {row.get(side)!r:.100}")
    sents, types = (item.get("sents"), item.get("type")) if isinstance(item, Mapping) else (None, None)
    if not isinstance(sents, list) or not isinstance(types, list) or not all(isinstance(s, str) for s in sents):
        raise DataError(f"{place}: '{side}_item' must hold the lists 'sents' (texts) and 'type', got {item!r:.100}")
    if len(sents) != len(types):
        raise DataError(f"{place}: '{side}_item' has {len(sents)} sentences and {len(types)} types")
    return messages[0]["content"], sents, types


def _spans(sents: list[str], types: list[Any], text: str, report: ANAHReport) -> list[LabeledSpan]:
    spans: list[LabeledSpan] = []
    end, missing = 0, False
    for place, name in zip(place_sentences(sents, text, report), types, strict=True):
        label = _TYPES.get(" ".join(name.split()).lower()) if isinstance(name, str) else None
        if label is None and name is not None:
            report.unknown_types[str(name)] += 1
        if place is None:
            missing = True
            continue
        if missing:
            spans += _gap(text, end, place[0])
        spans.append(LabeledSpan(*place, label))
        end, missing = place[1], False
    return [*spans, *(_gap(text, end, len(text)) if missing else [])]


def _gap(text: str, start: int, end: int) -> list[LabeledSpan]:
    return [LabeledSpan(*_stripped(text, start, end))] if any(map(str.isalnum, text[start:end])) else []


def _place(sentence: str, text: str, begin: int) -> tuple[tuple[int, int] | None, str]:
    """Its very characters, else the same but for white space. Letters before that are tried first, by the stretch of them that
    is most like it, so that a short sentence that was rewritten is not found far away."""
    start = text.find(sentence, begin)
    if start >= 0:
        place, how = (start, start + len(sentence)), "exact"
    else:
        place = _despaced(sentence, text, begin)
        how = "spaced" if place else "unplaced"
    stop = place[0] if place else min(len(text), begin + 2 * len(sentence) + 200)
    if any(map(str.isalnum, text[begin:stop])):
        aligned = _aligned(sentence, text, begin, stop)
        if aligned:
            return aligned, "aligned"
    return place, how


def _despaced(sentence: str, text: str, begin: int) -> tuple[int, int] | None:
    """The same characters but for white space, which ANAH's splitter puts in and takes out."""
    pattern = r"\s*".join(map(re.escape, "".join(sentence.split())))
    match = re.compile(pattern).search(text, begin)
    return match.span() if match else None


def _aligned(sentence: str, text: str, begin: int, stop: int) -> tuple[int, int] | None:
    """The stretch most like the sentence, of whole words, with the mark that ends it."""
    found = fuzz.partial_ratio_alignment(sentence, text[begin:stop], score_cutoff=_LIKENESS)
    # A stretch much shorter than the sentence is like a part of it only.
    if found is None or found.src_end - found.src_start < 0.8 * len(sentence):
        return None
    start, end = begin + found.dest_start, begin + found.dest_end
    while begin < start and _within_word(text, start):
        start -= 1
    while end < stop and _within_word(text, end):
        end += 1
    if end < stop and text[end] in ".!?。！？；;":
        end += 1
    return _stripped(text, start, end)


def _within_word(text: str, place: int) -> bool:
    return text[place - 1].isalnum() and text[place].isalnum() and text[place].isascii()


def _stripped(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A range without white space at its ends; `None` if nothing is left."""
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    return (start, start + len(inside.strip())) if inside.strip() else None
