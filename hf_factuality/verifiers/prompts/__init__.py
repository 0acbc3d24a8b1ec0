"""Prompts are text files beside this one; what a model wrote goes into them as data.

A template names its values as `{{claim}}`. They are put in by one pass over the *template*: braces, percent signs or
placeholders inside a value stay what they are. Each value stands between marks that carry a code which occurs in none
of the values, so that no text can end its own block; `{{claim|plain}}` leaves the marks out, for published prompts
that a model was trained on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path


_PLACEHOLDER = re.compile(r"\{\{(\w+)(\|plain)?\}\}")
# Control characters (but tab and line feed) and lone surrogates: no text, and some servers choke on them.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# What could be read as a special token or role mark once the chat template is filled: "<|im_start|>", "</s>",
# "<start_of_turn>", "[INST]". A space after the bracket makes it plain text.
_SPECIAL = re.compile(
    r"<(?=[^\s\d=<-])|\[(?=/?[A-Za-z_]{0,24}(?:INST|MASK|PROMPT|TOOL|RESULT|ARGS|TOKEN)[A-Z_0-9]{0,24}\])"
)


def as_data(text: str) -> str:
    """`text` so that a chat template and a tokenizer can only take it for text.

    Line ends become line feeds, control characters and lone surrogates U+FFFD, and a space follows each opening bracket
    that could begin a special token or a role mark. Nothing else changes.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _SPECIAL.sub(lambda match: match.group() + " ", _UNPRINTABLE.sub("\ufffd", text))


class Prompt:
    """A template that may use the names `fields`, and must use those that are `required` (`None`: all of them).

    `name` is for error messages; `ValueError` if the template uses another name, or lacks a required one.
    """

    def __init__(self, text: str, fields: Iterable[str], required: Iterable[str] | None = None, name: str = "prompt"):
        fields = set(fields)
        used = {match[1] for match in _PLACEHOLDER.finditer(text)}
        if used - fields:
            raise ValueError(f"{name} uses {sorted(used - fields)}; it can use {sorted(fields)}")
        missing = (fields if required is None else set(required)) - used
        if missing:
            raise ValueError(f"{name} lacks a place for {sorted(missing)}")
        self.text = text
        self.name = name

    def fill(self, values: Mapping[str, str | None]) -> str:
        """The template with `values` in place of their names; `None` reads "(none)"."""
        data = {field: None if value is None else as_data(value) for field, value in values.items()}
        code = _unused_code([value for value in data.values() if value])

        def block(match: re.Match) -> str:
            field, plain = match[1], match[2]
            value = data[field]
            if value is None:
                return "(none)"
            mark = f"{field.upper()} {code}"
            return value if plain else f"[BEGIN {mark}]\n{value}\n[END {mark}]"

        return _PLACEHOLDER.sub(block, self.text)


def load_prompt(name: str | Path, fields: Iterable[str], required: Iterable[str] | None = None) -> Prompt:
    """A [`Prompt`] by its name in this package (`"judge"`), or from a path that ends in `.txt`; see there for the rest.

    Raises `FileNotFoundError` if there is no such prompt, and what [`Prompt`] raises.
    """
    path = Path(name)
    if path.suffix != ".txt":
        path = Path(__file__).parent / f"{name}.txt"
        if not path.is_file():
            known = sorted(file.stem for file in path.parent.glob("*.txt"))
            raise FileNotFoundError(f"no prompt {str(name)!r}; give a path to a .txt file, or one of {known}")
    return Prompt(path.read_text(encoding="utf-8").strip(), fields, required, name=path.name)


def _unused_code(values: list[str]) -> str:
    """Eight hexadecimal digits that occur in none of the values; the same for the same values."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.encode("utf-8") + b"\0")
    while True:
        code = digest.hexdigest()[:8]
        if not any(code in value for value in values):
            return code
        digest.update(b"again")
