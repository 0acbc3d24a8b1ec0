"""How requests reach a server that may be slow, busy, restarted or gone: retries, rate limit, circuit breaker.

Everything here runs on an event loop in a daemon thread, so that synchronous callers share one bound on the requests
under way and one view of whether the server is there.

The retries of the `openai` client (3.52) do not do: each request retries by itself, a number of times whatever the reason,
at most 8 seconds apart. Enough of them to outlast a server that loads its model for minutes are too many for a request that
always fails, and a rate limit uses them up. A `Retry-After` of more than two minutes ends a request, and an answer that is
no JSON is not asked for again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import queue
import random
import re
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from hf_factuality.errors import JudgingError
from hf_factuality.io.secrets import redact


logger = logging.getLogger(__name__)

# Bytes of an answer; more is no answer.
MAX_REPLY = 16 * 1024**2
_REJECTED = {400, 413, 422}  # the fault of this very request
_LATER = {408, 409, 425, 429}  # and everything from 500 on: try again
# What reading an answer raises where there is none to read.
_NO_ANSWER = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
_KINDS = {
    aiohttp.ClientSSLError: "refused",
    aiohttp.ClientConnectorError: "down",
    aiohttp.ConnectionTimeoutError: "down",
}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class ServerError(JudgingError):
    """The server is gone, or refuses every request; the message names it and its last error."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often to try again.

    Args:
        retries (`int`, *optional*, defaults to `5`):
            Further attempts for a request that reached the server and failed there, within `give_up_after` seconds.
            Waiting for a server that is down or busy costs none.
        backoff (`float`, *optional*, defaults to `0.5`):
            Seconds before the second attempt, doubled for each further one; half of it is random.
        max_backoff (`float`, *optional*, defaults to `30.0`):
            Most seconds between two attempts, unless the server itself asks for more (`Retry-After`).
        breaker_failures (`int`, *optional*, defaults to `8`):
            Requests in a row that failed, or attempts that found no server, after which requests are held back until the
            server has answered a short probe. If it does, these requests failed by their own fault.
        give_up_after (`float`, *optional*, defaults to `240.0`):
            Seconds without any answer, to probes neither, after which the batch ends with [`ServerError`]. Less than the
            timeout of a guard around the verifier, so that the error is the clear one.
    """

    retries: int = 5
    backoff: float = 0.5
    max_backoff: float = 30.0
    breaker_failures: int = 8
    give_up_after: float = 240.0

    def __post_init__(self):
        if self.retries < 0 or self.breaker_failures < 1:
            raise ValueError(f"retries must be >= 0 and breaker_failures >= 1, got {self!r}")
        if not (self.backoff > 0 and self.max_backoff > 0 and self.give_up_after > 0):
            raise ValueError(f"backoff, max_backoff and give_up_after are positive seconds, got {self!r}")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after failure number `attempt` (from 0), half of them random."""
        longest = min(self.max_backoff, self.backoff * 2 ** min(attempt, 30))
        return longest * (0.5 + 0.5 * random.random())


class Failure(Exception):
    """An attempt without answer, and the seconds that the server asks to wait.

    `kind`: `"rejected"` (the fault of this request), `"refused"` (every request would be), `"down"` (the server was not
    reached), `"busy"` (it asks to wait), `"failed"` (reached, but no answer). `reason`: in a line, without secrets.
    """

    def __init__(self, kind: str, reason: str, after: float | None = None):
        super().__init__(reason)
        self.kind, self.reason, self.after = kind, reason, after


class _Gate:
    """Circuit breaker and rate limit of one server; lives on the event loop, so no locks."""

    def __init__(self, policy: RetryPolicy, server: str):
        self.policy, self.server = policy, server
        self.missed = 0  # attempts in a row that found no server
        self.failing: set[int] = set()  # requests that it failed since it last answered one
        self.failing_since: float | None = None
        self.not_before = 0.0
        self.trying = False  # a probe is out to see whether the server is there
        self.tried = 0  # probes in a row that failed
        self.gave_up = self.ever_alive = False
        self.epoch = 0  # counts the times that it gave up
        self.batches = 0  # under way
        self.last_error = ""
        self.changed = asyncio.Event()

    @contextmanager
    def batch(self) -> Iterator[int]:
        """Around the requests of a batch; yields the epoch that they belong to."""
        if self.batches == 0 and not self.gave_up:
            self.failing_since = None  # a failure before an idle hour says nothing about now
        self.batches += 1
        try:
            yield self.epoch
        finally:
            self.batches -= 1

    def _change(self):
        self.changed.set()
        self.changed = asyncio.Event()

    async def admit(self, epoch: int) -> bool:
        """Wait until something may be sent; whether that is a probe instead of the request."""
        while True:
            if self.epoch != epoch:
                raise ServerError(self.last_error)
            wait: float | None = self.not_before - time.monotonic()
            if wait <= 0:
                # A request that fails again and again counts once, so that it is not taken for a dead server.
                if self.missed + len(self.failing) < self.policy.breaker_failures and not self.gave_up:
                    return False
                if not self.trying:
                    self.trying = True
                    return True
                wait = None
            try:
                await asyncio.wait_for(self.changed.wait(), wait)
            except TimeoutError:
                pass

    def alive(self):
        """The server answered."""
        if self.tried or self.gave_up:
            logger.warning("%s answers again", self.server)
        self.missed, self.tried, self.failing_since, self.gave_up, self.ever_alive = 0, 0, None, False, True
        self.failing.clear()
        self._change()

    def released(self, trying: bool):
        """What `admit` let through has ended."""
        if trying:
            self.trying = False
            self._change()

    def failed(self, failure: Failure, epoch: int, request: int, trying: bool):
        """Note a failure of a request, or of a probe; raises `ServerError` when waiting is over."""
        policy, now = self.policy, time.monotonic()
        self.failing_since = now if self.failing_since is None else self.failing_since
        left = self.failing_since + policy.give_up_after - now
        if failure.kind == "busy":  # it is there
            self.missed = 0
            self.failing.clear()
        elif trying:
            self.tried += 1
            self.not_before = max(self.not_before, now + min(policy.delay(self.tried - 1), max(left, 0.0)))
            if self.tried == 1:
                logger.warning("%s does not answer (%s); trying for %.0f s more", self.server, failure.reason, left)
        elif failure.kind == "down":
            self.missed += 1
        else:
            self.failing.add(request)
        if failure.after is not None:
            self.not_before = max(self.not_before, now + failure.after)
        if epoch != self.epoch:
            raise ServerError(self.last_error)
        over = left <= 0 and (trying or failure.kind in ("busy", "down"))
        if self.gave_up or over or (failure.after or 0) > policy.give_up_after:
            waited = now - self.failing_since
            self.last_error = f"{self.server} gave no answer for {waited:.0f} s; last error: {failure.reason}"
            self.gave_up, self.not_before = True, 0.0  # the next batch tries once, at once
            self.epoch += 1
            self._change()
            raise ServerError(self.last_error)
        self._change()


class Transport:
    """One server, its key, and the requests under way to it from all threads.

    They run on the event loop of a daemon thread, which begins with the first call and is not carried over a fork.
    Redirects are not followed and `~/.netrc` is not read, so that the key goes nowhere else; proxies of the environment
    are used, but not for this machine.
    """

    once: asyncio.Lock  # for what is found out about the server once
    gate: _Gate

    def __init__(self, base_url: str, api_key: str | None, timeout: float, concurrency: int, policy: RetryPolicy):
        parts = urlsplit(base_url)
        if "@" in base_url or parts.query or parts.fragment:
            raise ValueError("base_url must hold no login, query or fragment; pass the key as api_key")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url must be an http(s) address such as http://localhost:8000/v1, got {base_url!r}")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a finite positive number of seconds, got {timeout!r}")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency!r}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
            raise ValueError("the API key is empty or has characters that no HTTP header can hold")
        self.server = base_url.rstrip("/")
        self.policy, self.concurrency = policy, concurrency
        self._key = api_key
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 10.0))
        local = parts.hostname in _LOOPBACK or urllib.request.proxy_bypass(parts.hostname)
        self._proxy = None if local else urllib.request.getproxies().get(parts.scheme)
        self._starting = threading.Lock()
        self._pid: int | None = None  # of the process whose thread it is
        self._end: Callable[[], Any] = lambda: None

    def call(self, coroutine: Coroutine) -> Any:
        """Result of `coroutine`, which runs on the loop of this object."""
        with self._running(coroutine) as future:
            return future.result()

    def iterate(self, work: Callable[[Callable[[Any], Any]], Coroutine]) -> Iterator[Any]:
        """What `work` gives while it runs on the loop of this object; it is called off by whoever stops asking."""
        given: queue.SimpleQueue = queue.SimpleQueue()

        async def run():
            try:
                await work(given.put)
            finally:
                given.put(given)  # the end

        with self._running(run()) as future:
            while (found := given.get()) is not given:
                yield found
            future.result()

    @contextmanager
    def _running(self, coroutine: Coroutine) -> Iterator[Future]:
        with self._starting:
            if self._pid != os.getpid():
                self._start()
            loop = self._loop
        tasks: list[asyncio.Task | None] = []
        stopped = threading.Event()

        async def run():
            tasks.append(asyncio.current_task())
            if not stopped.is_set():
                return await coroutine
            coroutine.close()

        def call_off():
            stopped.set()
            for task in tasks:
                task.cancel()

        try:
            yield asyncio.run_coroutine_threadsafe(run(), loop)
        except BaseException:  # Ctrl-C, which may come before there is anything to wait for
            loop.call_soon_threadsafe(call_off)
            raise

    def _start(self):
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="chat-client", daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), loop).result()
        self._pid, self._loop = os.getpid(), loop
        self._end = weakref.finalize(self, _end, self._pid, loop, thread, self._session)

    async def _open(self):
        self.once, self.gate = asyncio.Lock(), _Gate(self.policy, self.server)
        self._slots = asyncio.Semaphore(self.concurrency)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    def close(self):
        """End the thread and the connections; they start again by themselves."""
        with self._starting:
            self._end()
            self._pid = None

    def clean(self, text: str) -> str:
        """One short printable line without secrets, from what a server said."""
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", redact(text[:4000])).split())
        return text if len(text) <= 300 else f"{text[:300]}..."

    async def ask(self, path: str, read: Callable[[Any], Any], body: Mapping[str, Any] | None = None) -> Any:
        """What `read` makes of the answer to `body`, or of what is there within ten seconds; raises [`ServerError`]."""
        once = self._once(path, body and _encoded(body))
        try:
            answer = read(await asyncio.wait_for(once, None if body else 10.0))
        except (Failure, TimeoutError, *_NO_ANSWER) as error:
            reason = str(error) if isinstance(error, Failure) else self._named(error)
            raise ServerError(f"{self.server}{path} does not answer: {reason}") from None
        if body:
            self.gate.alive()
        return answer

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        probe: Mapping[str, Any],
        epoch: int,
        read: Callable[[Any], Any],
        stats: Any,
    ) -> Any:
        """What `read` makes of the server's answer to `body`, after as many attempts as it takes, counted in `stats`.

        `probe` is a short request to the same `path`, which any server that is there answers. A request does not outlive the
        hope of its batch for the server, which is the `epoch` that [`_Gate.batch`] gave. [`Failure`]: this request has no
        answer; [`ServerError`]: no request will have one.
        """
        gate, data = self.gate, _encoded(body)
        failures = attempts = 0
        me, patience = id(data), math.inf
        while True:
            async with self._slots:
                trying = await gate.admit(epoch)
                try:
                    stats.sent += 1
                    if not trying:
                        stats.retried += attempts > 0
                        attempts += 1
                        patience = min(patience, time.monotonic() + self.policy.give_up_after)
                    answer = read(await self._once(path, _encoded(probe) if trying else data))
                    gate.alive()
                    if trying:
                        continue
                    return answer
                except _NO_ANSWER as error:
                    failure = Failure("failed", f"no usable answer: {self._named(error)}")
                except Failure as error:
                    failure = error
                finally:
                    gate.released(trying)
            if failure.kind == "rejected":
                gate.alive()
            elif failure.kind == "refused" and not gate.ever_alive:
                raise ServerError(f"{self.server} refuses requests: {failure.reason}")
            else:
                gate.failed(failure, epoch, me, trying)
            if trying:
                continue  # the gate says when to try again
            if failure.kind == "rejected":
                raise failure
            alone = failure.kind in ("failed", "refused")
            failures += alone
            if failures > self.policy.retries or alone and time.monotonic() > patience:
                raise failure
            await asyncio.sleep(self.policy.delay(attempts - 1))

    async def _once(self, path: str, data: bytes | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        options = {"timeout": self._timeout, "proxy": self._proxy, "allow_redirects": False}
        method = "GET" if data is None else "POST"
        try:
            async with self._session.request(
                method, self.server + path, data=data, headers=headers, **options
            ) as response:
                received = bytearray()
                async for chunk in response.content.iter_chunked(65536):
                    received += chunk
                    if len(received) > MAX_REPLY:
                        raise Failure("failed", f"an answer of more than {MAX_REPLY} bytes")
                if response.status != 200:
                    raise self._failure(response.status, response.headers, bytes(received))
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                raise Failure("failed", f"no answer within {self._timeout.total:g} s") from None
            kind = next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "failed")
            raise Failure(kind, self._named(error)) from None
        return json.loads(received)

    def _named(self, error: Exception) -> str:
        return self.clean(f"{type(error).__name__}: {error}")

    def _failure(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        reason = self.clean(f"HTTP {status}: {body[:4000].decode('utf-8', 'replace')}")
        if status in _REJECTED:
            return Failure("rejected", reason)
        if status < 500 and status not in _LATER:
            return Failure("refused", reason)
        after = _retry_after(headers.get("Retry-After"))
        return Failure("busy" if status == 429 else "failed", reason, after)


def _end(pid: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread, session: aiohttp.ClientSession):
    if pid != os.getpid() or not loop.is_running() or threading.current_thread() is thread:
        return
    asyncio.run_coroutine_threadsafe(session.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5.0)
    if not thread.is_alive():
        loop.close()


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a number or a date; `None` if the header says neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
