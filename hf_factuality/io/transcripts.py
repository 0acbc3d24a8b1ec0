"""Conversations with tools as turns: what the assistant stated, and what tools and documents had told it by then.

Five shapes are read: OpenAI's chat completions, Anthropic's messages, chats of transformers, messages of LangChain (plain or
serialised) and samples of an Inspect log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hf_factuality.errors import DataError
from hf_factuality.io.messages import completion_text, spoken_text
from hf_factuality.io.rows import is_missing
from hf_factuality.io.tool_results import (
    DOCUMENTS,
    WITHOUT_TEXT,
    block_text,
    document_text,
    kind_of,
    read_result,
    texts_of,
)


@dataclass(frozen=True)
class SourcedPassage:
    """A passage, and where it is from: a tool and the place of its message, or a document."""

    text: str
    source: str


@dataclass(frozen=True)
class TranscriptTurn:
    """Something that the assistant stated.

    Args:
        text (`str`):
            What it said, its reasoning before it in think tags.
        question (`str`, *optional*):
            What the user said last.
        passages (`tuple[SourcedPassage, ...]`):
            What tools had returned and what was marked as evidence, before this turn.
        number (`int`), message (`int`):
            The number of the turn, from 1, and the place of its message in the list, from 0.
        row (`str`):
            The row of the conversation, in words.
    """

    text: str
    question: str | None
    passages: tuple[SourcedPassage, ...]
    number: int
    message: int
    row: str = ""


@dataclass
class Transcript:
    """The turns of a conversation, and what was left out: parts without text, failures of tools, and passages in which a tool
    gave back what it was called with."""

    turns: list[TranscriptTurn] = field(default_factory=list)
    without_text: int = 0
    failed: int = 0
    echoed: int = 0


# Names of roles in the exports of LangChain.
_LANGCHAIN = {
    "human": "user", "HumanMessage": "user", "HumanMessageChunk": "user",
    "ai": "assistant", "AIMessage": "assistant", "AIMessageChunk": "assistant",
    "system": "system", "SystemMessage": "system", "SystemMessageChunk": "system",
    "tool": "tool", "ToolMessage": "tool", "ToolMessageChunk": "tool",
    "function": "tool", "FunctionMessage": "tool",
}  # fmt: skip
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system", "tool": "tool"}
_ROLES |= {"function": "tool", "ipython": "tool"}
_CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "server_tool_call", "function_call"))
_THOUGHTS = frozenset(("thinking", "reasoning", "redacted_thinking"))
# Besides those that end in "_call" or "_call_output".
_OF_RESPONSES = frozenset(
    ("message", "reasoning", "item_reference", "mcp_list_tools", "mcp_approval_request", "compaction")
)
# As Hermes, Qwen and others write a call in the text, where nobody has parsed it.
_WRITTEN_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_READS = (
    "`verify` reads OpenAI chat completions, Anthropic messages, chats of transformers, LangChain messages and samples of an "
    "Inspect log (docs/transcripts.md)"
)


def read_transcript(messages: Any, place: str, documents: Any = None, sample: bool = False) -> Transcript | None:
    """The turns of a conversation; `None` if it is a plain chat, in which no tool is called and nothing is marked as evidence.

    Args:
        messages (`Any`):
            The list of messages, in one of the five shapes.
        place (`str`):
            The row in words, for errors.
        documents (`Any`, *optional*):
            Documents that the conversation was given, as chat templates take them: texts, or objects with `text` and `title`.
        sample (`bool`, *optional*, defaults to `False`):
            Whether this is a sample of a log of agents, read by turns whether it calls tools or not.

    Raises:
        `DataError`: it is in another shape; the message names the place, the shape where it is known, and the fix.
    """
    _check_list(messages, place)
    given = _documents(documents, place)
    read = [_unwrapped(message, f"{place}, messages[{number}]") for number, message in enumerate(messages)]
    if not (given or sample or any(map(_is_langchain, messages)) or any(map(_has_tools, read))):
        return None
    return _Reader(place, given).read(read)


def passages_before(messages: Any, place: str) -> tuple[list[tuple[SourcedPassage, ...]], list[str]]:
    """What tools had returned before each of these messages, and after the last one: a tuple more than messages. And all that they
    returned, each once, in order, by which numbered passages are cited; blank where a passage only repeats its call.

    `DataError`: as for [`read_transcript`].
    """
    _check_list(messages, place)
    reader = _Reader(place, ())
    known: list[tuple[SourcedPassage, ...]] = [()]
    for number, message in enumerate(messages):
        reader.take(number, _unwrapped(message, f"{place}, messages[{number}]"))
        known.append(reader.known)
    return known, [text if counts else "" for text, counts in reader.shown.items()]


def _check_list(messages: Any, place: str) -> None:
    """Refuse what is no list of objects, and say what it seems to be."""
    fix = f"; {_READS}"
    form = f"{place}: 'messages' must be a list of messages, each with role and content"
    if isinstance(messages, str):
        raise DataError(f"{form}; it is text, so decode it with json.loads first: got {messages!r:.60}")
    if isinstance(messages, Mapping):
        inner = next((key for key in ("messages", "values", "data") if key in messages), None)
        hint = f"give the list under {inner!r}" if inner else "give a list, also of one message"
        raise DataError(f"{form}; it is an object with the keys {sorted(map(str, messages))[:8]}, so {hint}{fix}")
    if not isinstance(messages, (list, tuple)) or not messages:
        raise DataError(f"{form}; got {messages!r:.100}{fix}")
    for number, message in enumerate(messages):
        where = f"{place}, messages[{number}]"
        if isinstance(message, (list, tuple)):
            raise DataError(f"{where} is a list; give one conversation per row, with its messages in one list{fix}")
        if not isinstance(message, Mapping):
            raise DataError(
                f"{where} is {type(message).__name__} {message!r:.60}, and must be an object with a role{fix}"
            )


def _is_langchain(message: Mapping[str, Any]) -> bool:
    return "lc" in message or "role" not in message and message.get("type") in (*_LANGCHAIN, "chat")


def _unwrapped(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message with a role of ours, whatever its shape."""
    kind = None
    if "lc" in message:
        kwargs, name = message.get("kwargs"), message.get("id")
        if not isinstance(kwargs, Mapping):
            raise DataError(
                f"{where} is a serialised LangChain object without 'kwargs' (type {message.get('type')!r}); export the "
                "messages with messages_to_dict or dumpd"
            )
        kind = kwargs.get("type") or (name[-1] if isinstance(name, (list, tuple)) and name else None)
        message = kwargs
    elif _is_langchain(message):
        kind = message["type"]
        if isinstance(message.get("data"), Mapping):
            message = message["data"]
    if isinstance(kind, str) and kind in _LANGCHAIN:
        role = _LANGCHAIN[kind]
    else:
        role = _role(message, kind, where)
    if role == "tool" and not {"content", "error", "artifact"} & set(message):
        raise DataError(f"{where} is the result of a tool and has no 'content' (keys {sorted(map(str, message))[:8]})")
    return {**message, "role": role}


def _role(message: Mapping[str, Any], kind: Any, where: str) -> str:
    role = message.get("role")
    parts = message.get("content")
    if isinstance(parts, (list, tuple)) and any(
        isinstance(it, Mapping) and "type" not in it and {"toolUse", "toolResult"} & set(it) for it in parts
    ):
        raise DataError(
            f"{where} is a message of Amazon Bedrock's Converse ('toolUse', 'toolResult'); write its parts as blocks with a "
            f"type ('tool_use', 'tool_result'); {_READS}"
        )
    if isinstance(role, str) and role in _ROLES:
        return _ROLES[role]
    for known, shape, fix in (
        ({"from", "value"}, "ShareGPT ('from', 'value')", "rename them to role and content, and gpt to assistant"),
        ({"parts"}, "Gemini ('parts')", "write role 'assistant' for 'model', and 'content' for 'parts'"),
    ):
        if known <= set(message):
            raise DataError(f"{where} is in the shape of {shape}; {fix}; {_READS}")
    item = message.get("type")
    if role is None and isinstance(item, str) and (item in _OF_RESPONSES or item.endswith(("_call", "_call_output"))):
        raise DataError(
            f"{where} is an item of OpenAI's Responses API (type {item!r}); write 'function_call' as an assistant "
            f"message with tool_calls, and 'function_call_output' as a message of the role 'tool'; {_READS}"
        )
    if role is None and not isinstance(kind or message.get("type"), str):
        keys = sorted(map(str, message))[:8]
        raise DataError(f"{where} has neither 'role' nor a LangChain 'type' (keys {keys}); {_READS}")
    named = f"role {role!r}" if role is not None else f"type {kind or message.get('type')!r}"
    raise DataError(f"{where} has the {named}; write one of {', '.join(_ROLES)}; {_READS}")


def _has_tools(message: Mapping[str, Any]) -> bool:
    if (
        message["role"] == "tool"
        or message.get("tool_calls")
        or message.get("function_call")
        or message.get("evidence")
    ):
        return True
    blocks = message.get("content")
    return isinstance(blocks, (list, tuple)) and any(
        isinstance(it, Mapping) and (_is_call(it) or _is_result(it) or kind_of(it) in DOCUMENTS or it.get("evidence"))
        for it in blocks
    )


def _is_call(block: Any) -> bool:
    return kind_of(block) in _CALLS


def _is_result(block: Any) -> bool:
    return kind_of(block).endswith(("tool_result", "server_tool_call_result"))


def _documents(given: Any, place: str) -> list[SourcedPassage]:
    if is_missing(given):
        return []
    texts = []
    for number, it in enumerate(given if isinstance(given, (list, tuple)) else [given]):
        text = it if isinstance(it, str) else document_text(it) if isinstance(it, Mapping) else None
        if text is None:
            raise DataError(
                f"{place}, documents[{number}] has no text; write a text, or an object with 'text' and 'title', got {it!r:.60}"
            )
        if text.strip():
            texts.append(SourcedPassage(text, f"documents[{number}]"))
    return texts


class _Call(NamedTuple):
    """The name of a tool, and the texts among the arguments of a call."""

    name: str
    given: tuple[str, ...]


class _Reader:
    """Goes through the messages in order, and keeps what is known by then."""

    def __init__(self, place: str, given: Sequence[SourcedPassage]):
        self._place = place
        self._found = Transcript()
        self._known: dict[str, SourcedPassage] = {it.text: it for it in given}
        self.shown: dict[str, bool] = {}  # what tools returned, and whether it is more than what they were called with
        self._calls: dict[str, _Call] = {}
        self._waiting: list[_Call] = []  # calls of the message at `_calling` that have no answer yet, in their order
        self._calling: int | None = None
        self._question: str | None = None
        self._number = 0

    def read(self, messages: Sequence[Mapping[str, Any]]) -> Transcript:
        for number, message in enumerate(messages):
            self.take(number, message)
        return self._found

    def take(self, number: int, message: Mapping[str, Any]) -> None:
        """The next message, by its place in the list."""
        self._number, role = number, message["role"]
        if role == "tool":
            self._result(message, message.get("content"))
        elif role == "assistant":
            self._assistant(message)
        else:
            self._asked(message, role)

    @property
    def known(self) -> tuple[SourcedPassage, ...]:
        return tuple(self._known.values())

    @property
    def _where(self) -> str:
        return f"messages[{self._number}]"

    def _keep(self, passages: Sequence[str], source: str) -> None:
        for text in passages:
            self._known.setdefault(text, SourcedPassage(text, source))

    def _result(self, result: Mapping[str, Any], content: Any) -> None:
        """A message or a block with what a tool returned."""
        found = read_result(content)
        self._found.without_text += found.without_text
        if found.failed or result.get("error") or result.get("is_error") or result.get("status") == "error":
            self._found.failed += 1  # what is said of a failure is no evidence: it often repeats what was asked
            return
        name, given = self._answered(result)
        passages = [text for text in found.passages if not any(text in argument for argument in given)]
        self.shown |= {text: text in passages or self.shown.get(text, False) for text in found.passages}
        self._found.echoed += len(found.passages) - len(passages)
        self._keep(passages, f"{name}, {self._where}")

    def _answered(self, result: Mapping[str, Any]) -> _Call:
        """The name of the tool whose result it is, and what the assistant called it with."""
        keys = (result.get(name) for name in ("tool_call_id", "tool_use_id", "id"))
        call = next((self._calls[key] for key in keys if isinstance(key, str) and key in self._calls), None)
        named = next(
            (it for it in map(result.get, ("name", "tool_name", "function")) if isinstance(it, str) and it), None
        )
        if call is None and self._waiting:
            call = next((it for it in self._waiting if it.name == named), self._waiting[0])
        call = call or _Call("tool", ())
        self._waiting = [it for it in self._waiting if it is not call]
        return _Call(named or call.name, call.given)

    def _call(self, call: Any) -> None:
        if not isinstance(call, Mapping):
            raise DataError(f"{self._place}, {self._where}: a tool call must be an object, got {call!r:.60}")
        function = call.get("function", call.get("custom"))
        told = function if isinstance(function, Mapping) else call
        name = function if isinstance(function, str) else told.get("name")
        given = next((told[key] for key in ("arguments", "args", "input") if told.get(key) is not None), None)
        made = _Call(name if isinstance(name, str) and name else "tool", tuple(texts_of(given)))
        if self._calling != self._number:  # what an earlier message called and nobody answered is answered no more
            self._calling, self._waiting = self._number, []
        self._waiting.append(made)
        if isinstance(call.get("id"), str) and call["id"]:
            self._calls[call["id"]] = made

    def _calls_of(self, message: Mapping[str, Any]) -> Iterator[Any]:
        calls = message.get("tool_calls")
        if is_missing(calls) or calls == []:
            calls = _get(message.get("additional_kwargs"), "tool_calls")  # where LangChain had them first
        if is_missing(calls):
            calls = []
        if not isinstance(calls, (list, tuple)):
            raise DataError(f"{self._place}, {self._where}: 'tool_calls' must be a list of calls, got {calls!r:.60}")
        yield from calls
        if message.get("function_call"):
            yield message["function_call"]

    def _blocks(self, content: Any) -> list[Any]:
        """The content as blocks; a text is one."""
        if is_missing(content):
            return []
        blocks = [content] if isinstance(content, (str, Mapping)) else content
        if not isinstance(blocks, (list, tuple)) or not all(isinstance(it, (str, Mapping)) for it in blocks):
            raise DataError(
                f"{self._place}, {self._where}: 'content' must be text or a list of blocks, got {content!r:.60}"
            )
        return list(blocks)

    def _asked(self, message: Mapping[str, Any], role: str) -> None:
        """What the user or the system prompt says: a question, and evidence where it is marked or a document."""
        said = []
        for block in self._blocks(message.get("content")):
            kind = kind_of(block)
            if _is_result(block):
                self._result(block, block.get("content"))
            elif kind in DOCUMENTS:
                text = document_text(block)
                self._found.without_text += text is None
                self._keep([text] if text else [], f"{kind}, {self._where}")
            elif (text := block_text(block)) is None:
                self._found.without_text += 1
            elif message.get("evidence") or isinstance(block, Mapping) and block.get("evidence"):
                self._keep(read_result(text).passages, f"{role}, {self._where}")
            else:
                said.append(text)
        text = "".join(said)
        if role == "user" and text.strip():
            self._question = text

    def _assistant(self, message: Mapping[str, Any]) -> None:
        """What it says is a turn, unless it only calls tools; results within the message are known to what follows them."""
        more = message.get("additional_kwargs")
        thought = next(
            (
                it
                for it in (
                    *map(message.get, ("reasoning_content", "reasoning", "thinking")),
                    _get(more, "reasoning_content"),
                )
                if isinstance(it, str)
            ),
            "",
        )
        said: list[str] = []
        called = False
        for block in self._blocks(message.get("content")):
            kind = kind_of(block)
            if _is_call(block):
                self._call(block)
                called = True
                if block.get("result") is not None or block.get("error"):  # a tool of the server, as Inspect writes it
                    self._turn(said, thought, True)
                    said, thought = [], ""
                    self._result(block, block.get("result"))
            elif _is_result(block):
                self._turn(said, thought, True)
                said, thought = [], ""
                self._result(block, block.get("content", block.get("output")))
            elif kind in _THOUGHTS:
                text = block.get(kind)
                thought += text if isinstance(text, str) and not block.get("redacted") else ""
            elif kind in WITHOUT_TEXT or (text := block_text(block)) is None:
                self._found.without_text += 1
            else:
                said.append(text)
        if not said and (spoken := spoken_text(message)):
            said = [spoken]
        for written in _WRITTEN_CALL.findall("".join(said)):
            self._call(_call_in(written))
            called = True
        said = [_WRITTEN_CALL.sub("", "".join(said))]
        for call in self._calls_of(message):
            self._call(call)
            called = True
        self._turn(said, thought, called)

    def _turn(self, said: Sequence[str], thought: str, called: bool) -> None:
        content = "".join(said)
        if not content.strip() and (called or not thought):
            return
        text = completion_text({"role": "assistant", "content": content, "reasoning_content": thought or None})[0]
        number = len(self._found.turns) + 1
        self._found.turns.append(TranscriptTurn(text, self._question, self.known, number, self._number, self._place))


def _call_in(written: str) -> Mapping[str, Any]:
    """A call that stands in the text: JSON, or else in a form of the model's own."""
    try:
        call = json.loads(written)
    except (ValueError, RecursionError):
        call = None
    return call if isinstance(call, Mapping) else {"arguments": written}


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
