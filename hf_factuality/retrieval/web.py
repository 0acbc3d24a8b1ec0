"""Evidence from any search function; there is no vendor's interface here."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from hf_factuality.generation.cache import AnswerCache, content_key
from hf_factuality.io.secrets import redact
from hf_factuality.retrieval.retrievers import Claims, CountingRetriever, query_texts
from hf_factuality.verifiers.base import VerifierInput


logger = logging.getLogger(__name__)


class WebRetriever(CountingRetriever):
    """Passages from any search function, such as a client of a web search engine; implements `Retriever`.

    Queries that are equal are sent once per call. One that still fails after its retries gives no evidence and is counted
    as `failed_queries`; after `max_failures` in a row the remaining queries of the call are not sent (`unsent_queries`).

    Args:
        search (`Callable[[str], Sequence[str]]`, or an `async` one):
            Takes a query, returns passages, best first. A function that is not `async` runs in threads of its own; one
            that hangs beyond `timeout` is left behind.
        name (`str`, *optional*, defaults to `"web"`):
            Part of the key in the cache: name the engine, its settings, and a date if answers are to be fetched anew.
        top_k (`int`, *optional*, defaults to `5`):
            Passages per claim at most.
        query_columns (`Sequence[str]`, *optional*, defaults to `()`):
            Columns of the row whose text goes in front of the claim in the query.
        concurrency (`int`, *optional*, defaults to `8`), timeout (`float`, *optional*, defaults to `30.0`):
            Queries under way at a time, over all threads that use this retriever, and seconds per attempt.
        retries (`int`, *optional*, defaults to `2`), backoff (`float`, *optional*, defaults to `1.0`):
            Further attempts of a query that failed, and seconds before the first of them, doubled for each further one; half
            of the time is random.
        max_failures (`int`, *optional*, defaults to `8`):
            Failed queries in a row after which the engine is taken to be down.
        cache ([`~hf_factuality.generation.cache.AnswerCache`], *optional*):
            Answers of earlier calls and processes; failures are not kept. Any object with its `get` and `put` will do.

    Raises:
        `ValueError`: a number out of range.
    """

    def __init__(
        self,
        search: Callable[[str], Any],
        name: str = "web",
        top_k: int = 5,
        query_columns: Sequence[str] = (),
        concurrency: int = 8,
        timeout: float = 30.0,
        retries: int = 2,
        backoff: float = 1.0,
        max_failures: int = 8,
        cache: AnswerCache | None = None,
    ):
        super().__init__()
        if min(top_k, concurrency, max_failures) < 1 or min(retries, backoff) < 0 or not 0 < timeout < float("inf"):
            positive = "top_k, concurrency, max_failures and timeout must be positive"
            raise ValueError(f"{positive}, retries and backoff not negative")
        self.search_function, self.name, self.top_k, self.query_columns = search, name, top_k, tuple(query_columns)
        self.concurrency, self.timeout, self.retries, self.backoff = concurrency, timeout, retries, backoff
        self.max_failures, self.cache = max_failures, cache
        self._gates: dict[int, asyncio.Semaphore] = {}  # per process: a fork has another event loop

    def config(self) -> dict[str, Any]:
        """Raises `ValueError`: a search function cannot be described in plain values."""
        raise ValueError("WebRetriever cannot be saved, since its search is a function; make it again in your code")

    def retrieve(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[str, ...] | None]]:
        """Per input and claim, the passages, best first; empty if nothing was found, `None` if the search failed."""
        queries = query_texts(inputs, claims, self.query_columns)
        answers = {query: self._known(query) for query in dict.fromkeys(chain.from_iterable(queries))}
        answers |= self._search([query for query, passages in answers.items() if passages is None])
        problems = {
            "failed_queries": [found for found in answers.values() if isinstance(found, str)],
            "unsent_queries": [query for query, found in answers.items() if found is None],
        }
        found = {query: passages[: self.top_k] for query, passages in answers.items() if isinstance(passages, tuple)}
        results = [[found.get(query) for query in row] for row in queries]
        self.count(results, problems)
        return results

    def _known(self, query: str) -> tuple[str, ...] | None:
        if not query.strip():
            return ()
        kept = self.cache.get(self._key(query)) if self.cache is not None else None
        return _passages(kept.get("passages")) if isinstance(kept, Mapping) else None

    def _key(self, query: str) -> str:
        return content_key({"kind": "web search", "name": self.name, "query": query})

    def _keep(self, query: str, passages: tuple[str, ...]) -> None:
        try:
            if self.cache is not None:
                self.cache.put(self._key(query), {"passages": list(passages)})
        except Exception as error:  # what was found is used all the same
            logger.warning(f"{type(self.cache).__name__} did not keep an answer: {type(error).__name__}: {error}")

    def _search(self, queries: list[str]) -> dict[str, tuple[str, ...] | str | None]:
        """Per query its passages, why it failed, or `None` if it was not sent."""
        if not queries:
            return {}
        future = asyncio.run_coroutine_threadsafe(self._fetch_all(queries), _event_loop())
        try:
            return dict(zip(queries, future.result(), strict=True))
        except BaseException:  # Ctrl-C: nothing more is sent
            future.cancel()
            raise

    async def _fetch_all(self, queries: list[str]) -> list[tuple[str, ...] | str | None]:
        gate = self._gates.setdefault(os.getpid(), asyncio.Semaphore(self.concurrency))
        in_a_row = 0

        async def fetch(query: str) -> tuple[str, ...] | str | None:
            nonlocal in_a_row
            async with gate:
                if in_a_row >= self.max_failures:
                    return None
                try:
                    passages = await self._fetch(query)
                except Exception as error:
                    in_a_row += 1
                    return redact(f"{type(error).__name__}: {error} for the query {query!r:.80}")
                in_a_row = 0
            self._keep(query, passages)
            return passages

        return await asyncio.gather(*map(fetch, queries))

    async def _fetch(self, query: str) -> tuple[str, ...]:
        for attempt in range(self.retries + 1):
            try:
                found = await asyncio.wait_for(self._call(query), self.timeout)
                break
            except Exception:
                if attempt == self.retries:
                    raise
                await asyncio.sleep(self.backoff * 2**attempt * (0.5 + random.random() / 2))
        passages = _passages(found)
        if passages is None:
            raise TypeError(f"a search must return a list of texts, got {found!r:.100}")
        return passages

    async def _call(self, query: str) -> Any:
        if inspect.iscoroutinefunction(self.search_function):
            return await self.search_function(query)
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # what hangs and is left behind may still answer

        def work() -> None:
            try:
                future.set_result(self.search_function(query))
            except BaseException as error:
                # A future of asyncio takes neither StopIteration nor what would end its loop.
                plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
                future.set_exception(error if plain else RuntimeError(repr(error)))

        # Daemon threads, not asyncio.to_thread: the interpreter would wait at its exit for a search that hangs.
        threading.Thread(target=work, name="web search", daemon=True).start()
        found = await asyncio.wrap_future(future)
        return await found if inspect.isawaitable(found) else found


def _passages(found: Any) -> tuple[str, ...] | None:
    """The texts of a list that are not blank; `None` if it is no list of texts."""
    if not isinstance(found, (list, tuple)) or not all(isinstance(text, str) for text in found):
        return None
    return tuple(dict.fromkeys(text for text in found if text.strip()))


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_LOOPS_LOCK = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process for searches, in a daemon thread."""
    with _LOOPS_LOCK:
        if os.getpid() not in _LOOPS:
            loop = _LOOPS[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="web searches", daemon=True).start()
        return _LOOPS[os.getpid()]
