"""Somebody's text in the Markdown of a card, as text: one way to write it for all cards."""

from __future__ import annotations

import re
import unicodedata
from typing import Any


_MARKUP = re.compile(r"[\\`*\[\]<~#]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_JOINERS = "\u200c\u200d"  # words of some languages are written with them


def one_line(value: Any) -> str:
    """On one line, and without characters that are not seen: some of them turn round the text that follows."""
    text = " ".join(str(value).encode("utf-8", "replace").decode().split())
    return "".join(char for char in text if char in _JOINERS or unicodedata.category(char) not in ("Cc", "Cf"))


def escaped(value: Any) -> str:
    """On one line, without the meaning that Markdown and HTML give it; bars stay, see [`cell`]."""
    text = _MARKUP.sub(r"\\\g<0>", one_line(value))
    return re.sub(r"^(?:(?=[-+=>])|(\d+)(?=[.)]))", r"\1\\", text)


def unescaped(text: str) -> str:
    """What [`escaped`] was given."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


def cell(markdown: Any) -> str:
    """Markdown in a cell of a table."""
    return one_line(markdown).replace("|", "\\|")


def code(value: Any) -> str:
    """Between backticks, where Markdown and HTML mean nothing."""
    return f"`{one_line(value).replace('`', chr(39))}`"
