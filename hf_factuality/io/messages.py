"""Chat messages as text: what the assistant said, its reasoning put back, and what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def message_text(message: Mapping[str, Any]) -> str:
    """The content of a message; of a list of parts the texts, joined. Empty if it has none."""
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        blocks = [
            block if isinstance(block, str) else block.get("text") or block.get("refusal")
            for block in content
            if _is_block(block)
        ]
        content = "".join(text for text in blocks if isinstance(text, str))
    return content if isinstance(content, str) and content else spoken_text(message)


def spoken_text(message: Mapping[str, Any]) -> str:
    """What a message without content says, as OpenAI writes it: a refusal, or the words of an answer in sound."""
    sound = message.get("audio")
    for text in (message.get("refusal"), sound.get("transcript") if isinstance(sound, Mapping) else None):
        if isinstance(text, str) and text:
            return text
    return ""


def _thoughts(message: Mapping[str, Any]) -> str:
    """The reasoning that a message holds beside its text, or as blocks of its own."""
    for name in ("reasoning_content", "thinking"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    content = message.get("content")
    blocks = content if isinstance(content, (list, tuple)) else ()
    kinds = ("thinking", "reasoning")
    found = [it.get(it.get("type")) for it in blocks if isinstance(it, Mapping) and it.get("type") in kinds]
    return "".join(text for text in found if isinstance(text, str))


def _is_block(block: Any) -> bool:
    return isinstance(block, (str, Mapping))


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages, each with a role."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(it, Mapping) and isinstance(it.get("role"), str) for it in value)
    )


def completion_text(completion: Any) -> tuple[str, bool]:
    """The text of a completion (text or messages, of which those of the assistant are joined), and whether its reasoning was
    split off and has been put back."""
    if isinstance(completion, str):
        return completion, False
    messages = [completion] if isinstance(completion, Mapping) else completion
    parts, split = [], False
    for message in messages if isinstance(messages, (list, tuple)) else ():
        if not isinstance(message, Mapping) or message.get("role", "assistant") != "assistant":
            continue
        content = message_text(message)
        reasoning = _thoughts(message)
        # Some servers report the reasoning a second time, next to content that still has it.
        if reasoning and "</think>" not in content:
            content, split = f"<think>{reasoning}</think>{content}", True
        parts.append(content)
    return "\n".join(parts), split


def last_answer(messages: Sequence[Mapping[str, Any]]) -> tuple[str | None, list[Mapping[str, Any]]]:
    """The last turn of the assistant as text, and the messages before it; `None` and all of them if it said nothing."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.get("role") == "assistant":
            text = completion_text(message)[0]
            return None if message.get("content") is None and not text else text, list(messages[:place])
    return None, list(messages)


def asked(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """What the user said last; `None` if nothing."""
    return next((message_text(it) for it in reversed(messages) if it.get("role") == "user"), None)
