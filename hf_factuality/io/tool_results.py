"""What a tool returned as passages that a judge can read: text as it is, JSON as lines of "key: value" per record.

What a tool returned is data. Nothing in it is run, followed or obeyed, and a tool that failed has returned nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ResultText:
    """The passages of a tool's result, how many parts have no text (images, audio, files), and whether the tool failed."""

    passages: list[str] = field(default_factory=list)
    without_text: int = 0
    failed: bool = False


NOTHING_FOUND = "No passages were found."
"""What a search of ours returns that finds nothing: no passage."""


def read_result(value: Any) -> ResultText:
    """A tool's result: a text, a JSON value (as text or decoded), or a list of content blocks."""
    found = ResultText()
    try:
        _read(value, found)
    except RecursionError:  # nobody nests so deep what is to be read
        found = ResultText([value] if isinstance(value, str) else [], without_text=not isinstance(value, str))
    return ResultText([] if found.failed else found.passages, found.without_text, found.failed)


def texts_of(value: Any) -> list[str]:
    """The texts in a JSON value, decoded or not."""
    if isinstance(value, str):
        decoded = _decoded(value)
        return [value.strip()] if decoded is None else texts_of(decoded)
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [text for it in values for text in texts_of(it)]


def kind_of(block: Any) -> str:
    """The type of a content block; empty if it has none."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else ""


def block_text(block: Any) -> str | None:
    """The text of a content block of any kind; `None` if it has none."""
    if isinstance(block, str):
        return block
    text = block.get("refusal") if kind_of(block) == "refusal" else block.get("text")
    return text if isinstance(text, str) and kind_of(block) not in WITHOUT_TEXT else None


WITHOUT_TEXT = frozenset(
    "image image_url input_image audio input_audio video file input_file data container_upload redacted_thinking".split()
)
"""Types of content blocks that hold no text, whatever their keys are."""
DOCUMENTS = frozenset(("document", "search_result", "web_search_result"))
"""Types of content blocks that are sources."""
_BLOCKS = frozenset(("text", "resource", "resource_link", "tool_reference")) | WITHOUT_TEXT | DOCUMENTS

# As frameworks write an exception where the shape has no field for it.
_FAILED = re.compile(
    r"\s*(?:(?:[\w.]*(?:Error|Exception)|ERROR|error|fatal)\s*[:(]|[\w.]+(?:Error|Exception)\s*$"
    r"|Traceback \(most recent call last\)|Error (?:executing|calling|invoking|running|in|\d{3}\b)|<tool_use_error>)"
)
# Beside an error these say nothing of the world: they describe it, or repeat what was asked.
_OF_ERRORS = frozenset(
    "error errors message code status statuscode success ok detail details type traceback iserror retryable errormessage "
    "errortype errorcode reason msg hint suggestion timestamp requestid traceid path url tool toolname name query q input inputs "
    "args arguments params parameters request content".split()
)

_NOTHING: tuple[Any, ...] = (None, "", [], {}, False, 0)


def _read(value: Any, found: ResultText) -> None:
    if isinstance(value, str):
        decoded = _decoded(value)
        if decoded is not None:
            _read(decoded, found)
        elif value.strip() not in ("", NOTHING_FOUND):
            found.failed |= bool(_FAILED.match(value))
            found.passages += numbered_passages(value) or [value.strip()]
    elif _is_blocks(value):
        for block in value:
            _read_block(block, found)
    elif isinstance(value, Mapping) and _is_blocks(value.get("content")) and set(value) - {"content"} <= {
        "isError", "is_error", "structuredContent", "_meta", "meta",
    }:  # as servers of the Model Context Protocol answer  # fmt: skip
        found.failed |= bool(value.get("isError") or value.get("is_error"))
        _read(value["content"], found)
    elif isinstance(value, Mapping) and _is_error(value):
        found.failed = True
    elif kind_of(value) == "web_fetch_result" and isinstance(value.get("content"), Mapping):  # of Anthropic: a page
        _read_block(value["content"], found)
    elif isinstance(value, (Mapping, list, tuple)):
        found.passages += _records(value, "")
    elif (text := _scalar(value)) is not None:
        found.passages.append(text)


_NUMBER = re.compile(r"^\[(\d{1,3})\][ \t]+", re.MULTILINE)


def numbered_passages(text: str) -> list[str]:
    """Passages of a text in which each stands behind its number in brackets, at the start of a line: "[1] Vellin is ...". Empty
    for any other text."""
    marks = list(_NUMBER.finditer(text.lstrip()))
    if not marks or marks[0].start():
        return []
    ends = [*(mark.start() for mark in marks[1:]), None]
    passages = [text.lstrip()[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    return passages if all(passages) else []


def _is_blocks(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and any(isinstance(it, Mapping) for it in value)
        and all(isinstance(it, str) or kind_of(it) in _BLOCKS for it in value)
    )


def _read_block(block: Any, found: ResultText) -> None:
    kind = kind_of(block)
    if kind in DOCUMENTS:
        text = document_text(block)
        found.without_text += text is None
        found.passages += [text] if text else []
    elif kind == "resource" and isinstance(block.get("resource"), Mapping):
        _read_block({"type": "text", "text": block["resource"].get("text")}, found)
    elif (text := block_text(block)) is None:
        found.without_text += 1
    else:
        _read(text, found)


def document_text(block: Mapping[str, Any]) -> str | None:
    """A source as one passage under its title; `None` if it has no text, such as a PDF file."""
    source = block.get("source")
    content = source.get("data", source.get("content")) if isinstance(source, Mapping) else block.get("content")
    if isinstance(source, Mapping) and source.get("type") not in ("text", "content"):
        content = None
    if isinstance(content, (list, tuple)):
        texts = [block_text(it) for it in content if isinstance(it, (str, Mapping))]
        content = "\n".join(text for text in texts if text)
    elif content is None:
        content = block.get("text")
    parts = [block.get("title"), block.get("context"), content]
    if not isinstance(content, str) or not content.strip():
        # A search engine of the API encrypts what it found, and leaves title and address.
        parts = [block.get("title"), block.get("url")] if kind_of(block) == "web_search_result" else []
    return "\n".join(text.strip() for text in parts if isinstance(text, str) and text.strip()) or None


def _is_error(value: Mapping[str, Any]) -> bool:
    """Whether an object says that something went wrong, and nothing else."""
    if str(value.get("type", "")).endswith("_error") and ("error_code" in value or "message" in value):
        return True
    if value.get("isError") is True and "content" in value:  # of the Model Context Protocol, whatever else it holds
        return True
    said = {re.sub(r"\W|_", "", str(key)).lower(): it for key, it in value.items()}
    failed = any(said.get(key) not in _NOTHING for key in ("error", "errors", "iserror", "errormessage"))
    if not failed:
        state = said.get("status")
        failed = isinstance(state, str) and state.lower() == "error" or False in (said.get("success"), said.get("ok"))
    return failed and not any(it not in _NOTHING for key, it in said.items() if key not in _OF_ERRORS)


def _decoded(text: str) -> Any:
    """The object or list that a text is as JSON; `None` if it is something else."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, (dict, list)) else None


# Names that say nothing of what is in them: a text under them stands alone, a list of records has no heading.
_PROSE = frozenset(
    "content text body snippet extract page_content pagecontent summary description abstract passage".split()
)
_LISTS = frozenset(
    "results result items data documents docs hits rows records output outputs response matches organic".split()
)
_COLUMNS = ("columns", "header", "headers", "fields")


def _records(value: Any, heading: str) -> Iterator[str]:
    """A passage for the plain fields of an object, and one for each record of its lists."""
    if isinstance(value, Mapping):
        fields: list[tuple[str, str]] = []
        lists: list[tuple[str, Any]] = []
        _collect(_with_tables(value), "", fields, lists)
        if fields:
            yield _passage(fields, heading)
        for name, records in lists:
            for record in records:
                yield from _records(record, "" if name.lower() in _LISTS else name)
        return
    if not isinstance(value, (list, tuple)):
        value = [value]
    plain = [text for it in value if (text := _scalar(it)) is not None]
    if plain:
        yield _headed(", ".join(plain), heading)
    for it in value:
        if isinstance(it, (Mapping, list, tuple)):
            yield from _records(it, heading)


def _collect(value: Mapping[str, Any], path: str, fields: list[tuple[str, str]], lists: list[tuple[str, Any]]) -> None:
    for key, it in value.items():
        name = f"{path} {_words(str(key))}".strip()
        it = (_decoded(it) or it) if isinstance(it, str) else it
        if isinstance(it, Mapping):
            _collect(_with_tables(it), name, fields, lists)
        elif isinstance(it, (list, tuple)):
            plain = [text for part in it if (text := _scalar(part)) is not None]
            if plain:
                fields.append((name, ", ".join(plain)))
            nested = [part for part in it if isinstance(part, (Mapping, list, tuple))]
            if nested:
                lists.append((name, nested))
        elif (text := _scalar(it)) is not None:
            fields.append((name, text))


def _with_tables(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rows beside the names of their columns become records."""
    names = next((value[key] for key in _COLUMNS if _is_header(value.get(key))), None)
    if names is None:
        return value
    tables = {
        key: [dict(zip(names, row, strict=True)) for row in it]
        for key, it in value.items()
        if isinstance(it, list) and it and all(isinstance(row, list) and len(row) == len(names) for row in it)
    }
    if not tables:
        return value
    return {key: tables.get(key, it) for key, it in value.items() if it is not names}


def _is_header(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(it, str) for it in value)


def _passage(fields: Sequence[tuple[str, str]], heading: str) -> str:
    prose = {name for name, text in fields if name.replace(" ", "_").lower() in _PROSE and len(text.split()) > 3}
    short = "; ".join(f"{name}: {' '.join(text.split())}" for name, text in fields if name not in prose)
    return "\n".join(
        [*([_headed(short, heading)] if short else []), *(text.strip() for name, text in fields if name in prose)]
    )


def _headed(text: str, heading: str) -> str:
    return f"{heading}: {text}" if heading else text


def _words(key: str) -> str:
    """`birth_date` and `birthDate` as words."""
    if key[:1].islower():
        key = re.sub(r"(?<=[a-z0-9])([A-Z])(?=[a-z])", lambda letter: f" {letter[1].lower()}", key)
    return " ".join(key.replace("_", " ").replace("-", " ").split())


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and (isinstance(value, int) or math.isfinite(value)):
        return str(value)
    return None
