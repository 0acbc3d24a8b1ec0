"""A chat server on this machine that can be slow, busy, broken, ignorant, dead, and back again."""

import asyncio
import json
import math
import threading
import time
from collections import Counter
from dataclasses import replace

from aiohttp import web

from hf_factuality.generation.client import PROBE_MESSAGES, ChatClient, RetryPolicy


PROBE, SCORE_PROBE = PROBE_MESSAGES[0][1], "Hello."
# Waits short enough for tests, and patience long enough for a busy machine, or short enough to see its end.
FAST = RetryPolicy(retries=3, backoff=0.01, max_backoff=0.05, breaker_failures=3, give_up_after=60.0)
HASTY = replace(FAST, give_up_after=1.0)


class FakeServer:
    """Answers `reply(prompt, body)` after `delay` seconds: a text, or a tuple with its reason to end and further choices;
    as a classifier, a list of numbers.

    `choice_field`: the name under which it knows constrained choice, `None` to ignore all; `strict`: answers 422 to
    fields it does not know. `logprobs`: whether it gives them (for the words of the answer). `trouble(prompt, count)`:
    per request, `None`, an HTTP status, `(status, headers)`, `"drop"`, `"garbage"` or `"hang"`. `limit`: requests at
    once, more get 429.
    """

    def __init__(self, reply=lambda prompt, body: "ok", **settings):
        self.reply = reply
        self.delay = 0.0
        self.choice_field = None
        self.strict = False
        self.logprobs = False
        self.trouble = lambda prompt, count: None
        self.limit = math.inf
        self.key = None
        self.model = "fake"
        self.retry_after = None
        for name, value in settings.items():
            getattr(self, name)
            setattr(self, name, value)
        self.received: Counter = Counter()
        self.answered: Counter = Counter()
        self.bodies: list[dict] = []
        self.paths: list[str] = []
        self.now = self.most = 0
        self.dying = False
        self.dies_at = math.inf
        self.port = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def start(self):
        self.dying = False
        self._call(self._start())

    async def _start(self):
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_post("/classify", self._handle)
        app.router.add_get("/v1/models", self._models)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self.runner.addresses[0][1]

    def die_at(self, count, back_after=None):
        """Die as answer number `count` goes out, and come back after some seconds; the thread that does both."""
        self.dies_at = count
        reached = self.reached = threading.Event()

        def die():
            reached.wait(300)
            self.stop()
            if back_after is not None:
                time.sleep(back_after)
                self.start()

        thread = threading.Thread(target=die, daemon=True)
        thread.start()
        return thread

    def stop(self):
        """Drop what is under way and the port with it."""
        self.dying = True
        if self.runner is not None:
            self._call(self._stop())

    async def _stop(self):
        await asyncio.sleep(0.02)  # answers that were written reach the client
        await self.runner.cleanup()
        self.runner = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, **kwargs) -> ChatClient:
        kwargs = {"cache": False, "retry": FAST, "timeout": 60.0, **kwargs}
        return ChatClient(self.url, "fake", **kwargs)

    async def _models(self, request):
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": f"wrong key: {request.headers.get('Authorization')}"}, status=401)
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _handle(self, request):
        if self.dying:
            if request.transport is not None:  # the client may have left
                request.transport.abort()
            return web.Response()
        body = json.loads(await request.read())
        prompt = body["messages"][-1]["content"] if "messages" in body else body["input"]
        self.bodies.append(body)
        self.paths.append(request.path)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response(
                {"error": f"Incorrect API key: {request.headers.get('Authorization')}"}, status=401
            )
        if body["model"] != self.model:
            return web.json_response({"error": {"message": f"The model `{body['model']}` does not exist"}}, status=404)
        unknown = set(body) - {"model", "messages", "temperature", "top_p", "max_tokens", "seed", "logprobs"}
        unknown -= {"top_logprobs", self.choice_field}
        if self.strict and unknown:
            return web.json_response({"detail": f"Unexpected fields in the request: {unknown}"}, status=422)
        if self.now >= self.limit:
            headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
            return web.json_response({"error": "slow down"}, status=429, headers=headers)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.received[prompt] += 1
            trouble = self.trouble(prompt, self.received[prompt])
            for _ in range(math.ceil(self.delay / 0.02)):
                await asyncio.sleep(min(self.delay, 0.02))
                if self.dying:
                    trouble = "drop"
                    break
            if trouble == "hang":
                while not self.dying:
                    await asyncio.sleep(0.02)
                trouble = "drop"
            if trouble == "drop":
                if request.transport is not None:  # the client may have left
                    request.transport.abort()
                return web.Response()
            if trouble == "garbage":
                return web.Response(text='{"choices": [{"message": ', content_type="application/json")
            if trouble is not None:
                status, headers = trouble if isinstance(trouble, tuple) else (trouble, {})
                return web.json_response({"error": "trouble"}, status=status, headers=headers)
            answer = self._score if request.path == "/classify" else self._answer
            response = web.json_response(answer(prompt, body))
            await response.prepare(request)
            if prompt not in (PROBE, SCORE_PROBE):
                self.answered[prompt] += 1  # before the client can see it
                if sum(self.answered.values()) == self.dies_at:
                    self.dying = True  # nothing that is under way comes to its end
                    self.reached.set()
            await response.write_eof()
            return response
        finally:
            self.now -= 1

    def _score(self, prompt, body):
        numbers = [0.5] if prompt == SCORE_PROBE else self.reply(prompt, body)
        item = {"index": 0, "label": "LABEL_0", "probs": numbers, "num_classes": len(numbers)}
        return {"id": "x", "object": "list", "created": 0, "model": self.model, "data": [item], "usage": {}}

    def _answer(self, prompt, body):
        text = "Hello there." if prompt == PROBE else self.reply(prompt, body)
        finish, others = "stop", ()
        if isinstance(text, tuple):
            text, finish, *others = text
        if self.choice_field is not None and body.get(self.choice_field) is not None:
            choices = body[self.choice_field]
            choices = choices["choice"] if isinstance(choices, dict) else choices
            text = text if text in choices else choices[0]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        if self.logprobs and body.get("logprobs"):
            choice["logprobs"] = {"content": self.logprobs(text) if callable(self.logprobs) else split_logprobs(text)}
        others = [{"message": {"role": "assistant", "content": other}, "finish_reason": "stop"} for other in others]
        return {"id": "x", "object": "chat.completion", "model": self.model, "choices": [choice, *others]}


def split_logprobs(text, alternatives=()):
    """Two tokens for the first word, one for the rest; the first has `alternatives` (token, probability) beside it."""
    head, rest = text[:4], text[4:]
    first = [(head, 0.9), *alternatives]
    tokens = [{"token": head, "logprob": math.log(0.9), "top_logprobs": top(first)}]
    if rest:
        tokens.append({"token": rest, "logprob": 0.0, "top_logprobs": top([(rest, 1.0)])})
    return tokens


def top(pairs):
    return [{"token": token, "logprob": math.log(probability)} for token, probability in pairs]
