"""The one way to talk to a model: messages in, answers out, batch in, list out.

Backends: [`~hf_factuality.generation.client.ChatClient`] (a server), [`~hf_factuality.generation.local.LocalChat`] (transformers in
this process), [`~hf_factuality.generation.vllm.VLLMChat`] (vLLM in this process).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hf_factuality.generation.sampling import SamplingConfig


# What servers call an answer that ended at a limit: OpenAI and vLLM, Anthropic and Gemini, Mistral, and a full context.
_CUT = frozenset(
    "length max_tokens max_output_tokens max_completion_tokens model_length max_length context_length token_limit "
    "model_context_window_exceeded".split()
)
# Reasons to end that make an answer less than what the model had to say. The last is ours: several choices that differ.
_INCOMPLETE = _CUT | {"content_filter", "abort", "error", "ambiguous"}


class ChatModel(Protocol):
    """What judges, extractors and samplers ask."""

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """One answer per request, in order; a request that failed alone has an `error`."""


class Backend:
    """A [`ChatModel`] that gives its answers as they come: on a server, in this process, by vLLM."""

    def stream(self, requests: Sequence[ChatRequest]) -> Iterator[tuple[int, ChatAnswer]]:
        """Number of a request and its answer, in any order, so that a run that dies keeps what it had."""
        raise NotImplementedError

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """One [`ChatAnswer`] per request, in order."""
        answers = dict(self.stream(requests))
        return [answers[number] for number in range(len(requests))]


@dataclass(frozen=True)
class ChatRequest(SamplingConfig):
    """One chat completion to ask for: messages, and how it is sampled. Equal requests have one answer.

    Args:
        messages (`tuple[tuple[str, str], ...]`):
            (role, content) in order. A last one of the assistant is the beginning of the answer, which goes on from it
            (of servers, vLLM and SGLang know how).
        choices (`tuple[str, ...]`, *optional*):
            The only answers wanted. A server that knows no such constraint is asked without; check the answer.
        logprobs (`int`, *optional*, defaults to `0`):
            Alternatives per token whose log-probabilities are wanted.
        **settings:
            Those of [`SamplingConfig`] but `num_samples`, which is 1. `temperature` is 0 by default.
    """

    messages: tuple[tuple[str, str], ...]
    choices: tuple[str, ...] = ()
    logprobs: int = 0
    temperature: float = field(default=0.0, kw_only=True)
    num_samples: int = field(default=1, init=False)

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]], config: SamplingConfig, seed: int | None) -> ChatRequest:
        """A sample of the settings."""
        settings = {name: value for name, value in vars(config).items() if name not in ("num_samples", "seed")}
        return cls(tuple((message["role"], message["content"]) for message in messages), seed=seed, **settings)

    @property
    def prefilled(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return bool(self.messages) and self.messages[-1][0] == "assistant"


@dataclass(frozen=True)
class TokenLogprobs:
    """A token of the answer and the log-probabilities of what could have stood there, itself included."""

    token: str
    candidates: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ChatAnswer:
    """What came back.

    Args:
        text (`str`):
            The message; empty if there is none.
        finish_reason (`str`, *optional*):
            `"stop"`, `"length"`, ... as the server says; `"ambiguous"` if it gave several answers that differ.
        logprobs (`tuple[TokenLogprobs, ...]`, *optional*):
            Per token; `None` if not asked for or not given.
        error (`str`, *optional*):
            Why there is no answer.
        cached (`bool`, *optional*, defaults to `False`):
            Whether it came from the cache.
    """

    text: str = ""
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    cached: bool = field(default=False, compare=False)

    @property
    def complete(self) -> bool:
        """Whether this is one whole answer: not cut short, filtered, or one of several that differ."""
        return self.error is None and (self.finish_reason or "").lower() not in _INCOMPLETE

    @property
    def was_cut(self) -> bool:
        """Whether it ended at a limit of tokens, before the model had said all. This is the only place that knows it: what
        was cut is no verdict, and may be whole with a larger limit."""
        return self.error is None and ended_at_limit(self.finish_reason)

    def to_dict(self) -> dict[str, Any]:
        """As the cache stores it."""
        tokens = None if self.logprobs is None else [[token.token, token.candidates] for token in self.logprobs]
        return {"text": self.text, "finish_reason": self.finish_reason, "logprobs": tokens}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChatAnswer | None:
        """Inverse of [`ChatAnswer.to_dict`]; `None` if `data` is nothing of the kind."""
        try:
            tokens = data["logprobs"]
            if tokens is not None:
                tokens = tuple(TokenLogprobs(t, tuple((str(c), float(p)) for c, p in found)) for t, found in tokens)
            text, reason = data["text"], data["finish_reason"]
        except (KeyError, TypeError, ValueError):
            return None
        if not isinstance(text, str) or not (reason is None or isinstance(reason, str)):
            return None
        return cls(text, reason, tokens, cached=True)


def ended_at_limit(finish_reason: str | None) -> bool:
    """Whether a reason to end, as a server or a file of answers spells it, is a limit of tokens."""
    return (finish_reason or "").lower() in _CUT


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first of the texts that end it, and whether there is one."""
    places = [place for place in map(text.find, stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)
