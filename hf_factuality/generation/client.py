"""Client of an OpenAI-compatible chat server: synchronous to its caller, concurrent inside, patient with the server.

Batch in, list out. What fails for one request is said in its answer; what fails for the whole server ends the batch
with a [`ServerError`] once waiting is pointless, and what was answered until then is in the cache.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hf_factuality.generation.base import Backend, ChatAnswer, ChatRequest, TokenLogprobs, cut
from hf_factuality.generation.cache import AnswerCache, content_key
from hf_factuality.generation.transport import Failure, RetryPolicy, ServerError, Transport


logger = logging.getLogger(__name__)

# How servers call a list of allowed answers: vLLM since 0.12 (which silently ignores the older name), and before.
CHOICE_FIELDS = {"structured_outputs": lambda choices: {"choice": list(choices)}, "guided_choice": list}
# Asked once per client to see whether the server keeps to a list of allowed answers: no free answer is among these.
PROBE_MESSAGES = (("user", "Say hello."),)
PROBE_CHOICES = ("quartz-seven", "velvet-nine")
# Alternatives per token to fall back to where a server refuses more.
_FEW_LOGPROBS = 5
# Requests in hand per request under way: the others wait for their turn, or to try again.
WORKERS_PER_SLOT = 16
_RESERVED = {"model", "messages", "stream", "n"}
# Fields of a request that limit its answer.
_LIMITS = ("max_tokens", "max_completion_tokens")
_UNKNOWN: Any = object()


@dataclass
class ClientStats:
    """Counts since the client was made: requests sent (attempts and probes), answers, answers from the cache, attempts
    after the first, requests without an answer, answers that ended at the limit of tokens; and tokens of prompts and answers,
    as far as the server counts them."""

    sent: int = 0
    answered: int = 0
    cached: int = 0
    retried: int = 0
    failed: int = 0
    cut: int = 0
    tokens: int = 0


class ChatClient(Backend):
    """Sends chat requests to one model on one server.

    Constrained choice and log-probabilities are used where the server has them. Servers differ, and several ignore what
    they do not know without a word, so the first request that wants either is preceded by up to four tiny probes.

    Identical requests of a batch are sent once, and none that the cache knows. An answer that was cut at its length, or is
    otherwise not whole, is not kept: it is asked for again. A client may be used from several threads; they share the bound on concurrency. It survives a fork, and pickling unless it has a key that was given as
    argument.

    Args:
        base_url (`str`):
            Address of the API, as in `"http://localhost:8000/v1"`.
        model (`str`):
            Name of the model on the server.
        revision (`str`, *optional*):
            Its revision, for the cache and for reports; the API cannot ask for one.
        api_key (`str`, *optional*):
            Bearer token. `None`: the environment variable `api_key_env`, if set.
        api_key_env (`str`, *optional*, defaults to `"HF_FACTUALITY_API_KEY"`):
            Not `OPENAI_API_KEY` by default, so that this key goes to no other server by accident.
        concurrency (`int`, *optional*, defaults to `32`):
            Requests under way at once.
        timeout (`float`, *optional*, defaults to `120.0`):
            Seconds for one attempt.
        retry ([`RetryPolicy`], *optional*):
            How long and how often to try again.
        cache ([`AnswerCache`], `str`, `Path` or `bool`, *optional*, defaults to `True`):
            Where answers are kept: an object, a file, `True` for
            [`~hf_factuality.generation.cache.default_cache_path`], `False` for nowhere.
        max_prompt_chars (`int`, *optional*, defaults to `400_000`):
            Longer prompts are not sent: some servers would run out of memory instead of refusing.
        extra_body (`Mapping[str, Any]`, *optional*):
            Further fields of every request, such as `{"chat_template_kwargs": {"enable_thinking": False}}`; a `None`
            takes a field out (`{"max_tokens": None, "max_completion_tokens": 64}`). Part of the cache's key.
        keep_cut (`bool`, *optional*, defaults to `False`):
            Whether the cache keeps answers that are not whole too: for samples of a model, which are what they are.

    Raises:
        `ValueError`: an argument is out of range, or the address is none or holds a login.

    Example:

        >>> client = ChatClient("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")
        >>> client.chat([ChatRequest((("user", "Is water wet? Answer yes or no."),), choices=("yes", "no"))])[0].text
        'yes'
    """

    # What a client of another endpoint replaces, with `_body` and `_read`; the last is what any server answers.
    _path: ClassVar[str] = "/chat/completions"
    _models_path: ClassVar[str] = "/models"
    _hello: ClassVar[ChatRequest] = ChatRequest(PROBE_MESSAGES, max_new_tokens=16)

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        revision: str | None = None,
        api_key: str | None = None,
        api_key_env: str = "HF_FACTUALITY_API_KEY",
        concurrency: int = 32,
        timeout: float = 120.0,
        retry: RetryPolicy | None = None,
        cache: AnswerCache | str | Path | bool = True,
        max_prompt_chars: int = 400_000,
        extra_body: Mapping[str, Any] | None = None,
        keep_cut: bool = False,
    ):
        if not model:
            raise ValueError("model must name the model on the server")
        if max_prompt_chars < 1:
            raise ValueError(f"max_prompt_chars must be positive, got {max_prompt_chars!r}")
        taken = _RESERVED & set(extra_body or ())
        if taken:
            raise ValueError(f"extra_body cannot set {sorted(taken)}")
        self._settings = {
            "base_url": base_url,
            "api_key_env": api_key_env,
            "concurrency": concurrency,
            "timeout": timeout,
            "retry": retry or RetryPolicy(),
        }
        self.model = model
        self.revision = revision
        self.extra_body = dict(extra_body or {})
        self.max_prompt_chars = max_prompt_chars
        self.keep_cut = keep_cut
        if isinstance(cache, bool):
            self.cache = AnswerCache() if cache else None
        else:
            self.cache = cache if isinstance(cache, AnswerCache) else AnswerCache(cache)
        key = api_key if api_key is not None else os.environ.get(api_key_env) or None
        self._own_key = key != (os.environ.get(api_key_env) or None)
        self._transport = Transport(base_url, key, timeout, concurrency, self._settings["retry"])
        self.stats = ClientStats()
        self._choice_field: str | None = _UNKNOWN
        self._top_logprobs: int = _UNKNOWN
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r}, {self.model!r}, revision={self.revision!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._own_key:
            name = self._settings["api_key_env"]
            raise ValueError(f"a key given in code is not sent to other processes; set {name} there and here instead")
        own = {
            name: getattr(self, name) for name in ("model", "revision", "extra_body", "max_prompt_chars", "keep_cut")
        }
        return {**self._settings, **own, "cache": False if self.cache is None else self.cache}

    def __setstate__(self, state: Mapping[str, Any]):
        self.__init__(**state)

    @property
    def server(self) -> str:
        """Address of the server."""
        return self._transport.server

    def models(self) -> list[str]:
        """Names of the models that the server has; [`ServerError`] if it does not say so within ten seconds."""
        read = self._transport.ask(self._models_path, lambda answer: [str(model["id"]) for model in answer["data"]])
        return self._transport.call(read)

    def check(self) -> None:
        """[`ServerError`] if the server does not have the model or does not answer a short request. One that does is waited
        for from now on, also while something else answers in its place that refuses requests."""
        served = self.models()
        if self.model not in served:
            others = self._transport.clean(", ".join(served)) or "nothing"
            raise ServerError(f"{self.server} does not serve {self.model} but {others}")
        self._transport.call(self._transport.ask(self._path, self._read, self._body(self._hello)))

    def close(self):
        """Close connections, thread and cache; they open again by themselves."""
        self._transport.close()
        if self.cache is not None:
            self.cache.close()

    def key(self, request: ChatRequest) -> str:
        """What the cache knows the answer by: everything that decides it, and not the server."""
        fields = ("messages", "choices", "logprobs", "temperature", "top_p", "seed")
        extra = {**_fields(request), **self.extra_body}
        parts = {"model": self.model, "revision": self.revision, "extra_body": extra}
        parts["max_tokens"] = request.max_new_tokens
        return content_key({**parts, **{name: getattr(request, name) for name in fields}})

    def stream(self, requests: Sequence[ChatRequest]) -> Iterator[tuple[int, ChatAnswer]]:
        """Number of a request and its [`ChatAnswer`], as they come. [`ServerError`]: the server is gone or refuses every
        request; what was answered until then was given, and the cache has it too."""
        numbers: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            numbers.setdefault(self.key(request), []).append(number)
        done = 0
        try:
            for key, answer in self._found(numbers, requests):
                for number in numbers[key]:
                    done += answer.error is None
                    yield number, _ended(answer, requests[number])
        except ServerError as error:
            kept = f"; the cache {self.cache.path} keeps them" if self.cache is not None and done else ""
            raise ServerError(f"{error}; {done} of {len(requests)} requests were answered{kept}") from None

    def _found(
        self, numbers: Mapping[str, Sequence[int]], requests: Sequence[ChatRequest]
    ) -> Iterator[tuple[str, ChatAnswer]]:
        """The answers that the cache has, and those of the server."""
        known = {} if self.cache is None else self.cache.get_many(numbers)
        missing = {}
        for key, (first, *_) in numbers.items():
            answer = ChatAnswer.from_dict(known[key]) if key in known else None
            if answer is not None and self._final(answer):
                self.stats.cached += len(numbers[key])
                yield key, answer
            else:
                missing[key] = requests[first]
        if missing:
            yield from self._transport.iterate(lambda give: self._run(missing, give))

    async def _run(self, missing: Mapping[str, ChatRequest], give: Callable[[tuple[str, ChatAnswer]], Any]):
        """Give the answers; workers take requests from one iterator. Those that wait to try again hold back few others."""
        todo = iter(missing.items())

        async def work(epoch: int):
            for key, request in todo:
                try:
                    answer = await self._answer(request, epoch)
                except Failure as failure:
                    self.stats.failed += 1
                    give((key, ChatAnswer(error=failure.reason)))
                    continue
                self.stats.answered += 1
                self.stats.cut += answer.was_cut
                # An empty answer may be the server's failure.
                if self.cache is not None and answer.text and self._final(answer):
                    self.cache.put(key, answer.to_dict())
                give((key, answer))

        with self._transport.gate.batch() as epoch:
            count = min(WORKERS_PER_SLOT * self._settings["concurrency"], len(missing))
            workers = [asyncio.create_task(work(epoch)) for _ in range(count)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def _final(self, answer: ChatAnswer) -> bool:
        """Whether there is nothing to gain by asking again. The limit of a request is part of the key, but the context of the
        server, which may cut as well, is not."""
        return answer.complete or self.keep_cut

    async def _answer(self, request: ChatRequest, epoch: int) -> ChatAnswer:
        length = sum(len(content) for _, content in request.messages)
        if length > self.max_prompt_chars:
            raise Failure("rejected", f"not sent: the prompt has {length} characters, more than max_prompt_chars")
        if request.choices and self._choice_field is _UNKNOWN or request.logprobs and self._top_logprobs is _UNKNOWN:
            async with self._transport.once:
                await self._probe(request, epoch)
        field = self._choice_field if request.choices else None
        logprobs = min(request.logprobs, self._top_logprobs) if request.logprobs else 0
        answer = await self._send(request, field, logprobs, epoch)
        said = answer.text.strip()
        if field is not None and answer.was_cut:
            # `max_new_tokens` was just enough for an allowed answer, and the server allows nothing after it.
            if [choice for choice in request.choices if choice.startswith(said)] == [said]:
                answer = replace(answer, finish_reason="stop")
        if field is not None and said not in request.choices and answer.finish_reason == "stop":
            self._warn(f"an answer outside the allowed ones although the server has {field}")
        if logprobs and answer.logprobs is None:
            self._warn("an answer without log-probabilities although the server has them")
        return answer

    async def _probe(self, request: ChatRequest, epoch: int):
        """Find out what the server makes of constrained choice and log-probabilities."""
        most = max(request.max_new_tokens, 16)
        probe = replace(request, messages=PROBE_MESSAGES, choices=PROBE_CHOICES, max_new_tokens=most)

        async def said(field: str | None, logprobs: int = 0) -> ChatAnswer | None:
            try:
                return await self._send(probe, field, logprobs, epoch)
            except Failure:
                return None

        if request.choices and self._choice_field is _UNKNOWN:
            found = None
            for field in CHOICE_FIELDS:
                answer = await said(field)
                if answer is not None and answer.text.strip() in PROBE_CHOICES:
                    found = field
                    break
            self._choice_field = found
            logger.info("%s: %s", self.server, f"constrained choice by {found}" if found else "no constrained choice")
        if request.logprobs and self._top_logprobs is _UNKNOWN:
            found = 0
            for count in dict.fromkeys((request.logprobs, min(request.logprobs, _FEW_LOGPROBS))):
                answer = await said(self._choice_field if request.choices else None, count)
                if answer is not None:
                    found = count if answer.logprobs is not None else 0
                    break
            self._top_logprobs = found
            logger.info("%s: %s", self.server, f"{found} log-probabilities" if found else "no log-probabilities")

    async def _send(self, request: ChatRequest, field: str | None, logprobs: int, epoch: int) -> ChatAnswer:
        body, hello = self._body(request, field, logprobs), self._body(self._hello)
        limit = next((body[name] for name in _LIMITS if isinstance(body.get(name), int)), None)

        def read(payload: Any) -> ChatAnswer:
            answer = self._read(payload)
            self.stats.tokens += _tokens_of(payload, "total_tokens")
            # A server that gives no reason still counts tokens.
            if answer.finish_reason is None and limit is not None and _tokens_of(payload) >= limit:
                return replace(answer, finish_reason="length")
            return answer

        return await self._transport.post(self._path, body, hello, epoch, read, self.stats)

    def _body(self, request: ChatRequest, field: str | None = None, logprobs: int = 0) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": role, "content": content} for role, content in request.messages],
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_tokens": request.max_new_tokens,
            "seed": request.seed,
        }
        if field is not None:
            body[field] = CHOICE_FIELDS[field](request.choices)
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        body |= {**_fields(request), **self.extra_body}
        return {name: value for name, value in body.items() if value is not None}

    def _read(self, payload: Any) -> ChatAnswer:
        """The one choice of a chat completion; raises what [`Transport.post`] takes for no answer."""
        choice, *others = payload["choices"]
        content, reason = _read_content(choice), choice.get("finish_reason")
        if any(_read_content(other).strip() != content.strip() for other in others):  # one was asked for
            reason = "ambiguous"
        return ChatAnswer(content, reason if isinstance(reason, str) else None, _read_logprobs(choice.get("logprobs")))

    def _warn(self, what: str):
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s gave %s; such answers are parsed strictly", self.server, what)


def _fields(request: ChatRequest) -> dict[str, Any]:
    """Fields for what only some requests want, most of them beyond the protocol of OpenAI."""
    fields: dict[str, Any] = {}
    if request.prefilled:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.stop:
        fields["stop"] = list(request.stop)
    for name in ("top_k", "min_p", "chat_template_kwargs"):
        if value := getattr(request, name):
            fields[name] = value
    return fields


def _ended(answer: ChatAnswer, request: ChatRequest) -> ChatAnswer:
    """The answer without what a server that does not know `stop` has added."""
    if not request.stop:
        return answer
    text, stopped = cut(answer.text, request.stop)
    return replace(answer, text=text, finish_reason="stop") if stopped else answer


def _tokens_of(payload: Any, what: str = "completion_tokens") -> int:
    """How many tokens the answer has, or what else of its `usage`, as the server counts them; 0 if it does not say."""
    usage = payload.get("usage") if isinstance(payload, dict) else None
    count = usage.get(what) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


def _read_content(choice: Any) -> str:
    content = choice["message"].get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content


def _read_logprobs(value: Any) -> tuple[TokenLogprobs, ...] | None:
    try:
        tokens = []
        for token in value["content"]:
            candidates = {str(token["token"]): float(token["logprob"])}
            for other in token.get("top_logprobs") or ():
                candidates.setdefault(str(other["token"]), float(other["logprob"]))
            usable = tuple((text, number) for text, number in candidates.items() if math.isfinite(number))
            tokens.append(TokenLogprobs(str(token["token"]), usable))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return tuple(tokens) or None
