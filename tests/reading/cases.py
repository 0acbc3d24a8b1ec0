"""Hand-labelled texts: `⟦KIND:...⟧` around what is labelled, which is taken out before the text is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from hf_factuality.reading import read


FOLDER = Path(__file__).resolve().parent.parent / "cases" / "reading"
BLOCKS = {"heading", "item", "header", "row", "code", "math", "html", "quote", "references"}


class Case(NamedTuple):
    """A text with what was marked in it: `(kind, start, end)` in its own characters."""

    name: str
    text: str
    marked: list[tuple[str, int, int]]
    expected: dict[str, Any]

    def ranges(self, kind: str) -> list[tuple[int, int]]:
        return sorted((start, end) for it, start, end in self.marked if it == kind)


def unmarked(text: str) -> tuple[str, list[tuple[str, int, int]]]:
    """A text without its markers, and what they enclosed."""
    plain: list[str] = []
    size, opened, found, at = 0, [], [], 0
    while at < len(text):
        if text[at] == "⟦":
            colon = text.index(":", at)
            opened.append((text[at + 1 : colon], size))
            at = colon + 1
        elif text[at] == "⟧":
            kind, start = opened.pop()
            found.append((kind, start, size))
            at += 1
        else:
            plain.append(text[at])
            size, at = size + 1, at + 1
    assert not opened, text
    return "".join(plain), found


def load(name: str) -> list[Case]:
    rows = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [Case(row["name"], *unmarked(row["text"]), row) for row in rows]


def precision_and_recall(name, labelled):
    """Of declining, on `(text, declines)` pairs; printed."""
    said = [(read(text).declines, declines) for text, declines in labelled]
    right = sum(got and wanted for got, wanted in said)
    precision, recall = right / sum(got for got, _ in said), right / sum(wanted for _, wanted in said)
    print(f"{name}: precision {precision:.3f}, recall {recall:.3f} of {len(said)}")
    return precision, recall
