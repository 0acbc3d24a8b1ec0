"""Tools of a rollout under limits: one that raises, hangs or returns a megabyte ends nothing."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_factuality.io.secrets import redact
from hf_factuality.retrieval.pages import encodable
from hf_factuality.verifiers.guard import MAX_TIMEOUTS_IN_A_ROW, TimedOut, Worker, answer_of


logger = logging.getLogger(__name__)

TOOL_TIMEOUT = 60.0
"""Seconds that a call of a tool may take."""
TOOL_CHARACTERS = 20_000
"""Characters of what a call returns that the policy reads, at most."""


class ToolGuard:
    """Calls tools for TRL, which tells the policy what they raise.

    A call runs on a thread of its own and has `timeout` seconds (`None`: for ever, on the calling thread). After two calls in a
    row that took longer, a tool is not called for the rest of the batch. What hangs cannot be killed: its thread is left behind.
    Text is cut at `characters`, and loses the special tokens of the tokenizer, with which a page could end the tool's turn and
    speak as somebody else; a list becomes JSON.
    """

    def __init__(self, special: Sequence[str], timeout: float | None, characters: int):
        self.special = [token for token in special if token.strip()]
        self.timeout, self.characters = timeout, characters
        self.counts: Counter[str] = Counter()
        self.hanging: list[Any] = []  # objects whose method was left behind
        self._in_a_row: Counter[str] = Counter()
        self._told: set[str] = set()
        self._worker: Worker | None = None

    def begin(self) -> None:
        """A batch begins: what hung in the last one is tried again."""
        self.counts.clear()
        self._in_a_row.clear()
        self.hanging.clear()

    def guarded(self, tool: Callable[..., Any]) -> Callable[..., Any]:
        """The tool, called under the limits."""
        name = tool.__name__
        if inspect.iscoroutinefunction(tool):

            @functools.wraps(tool)
            async def waited(*args: Any, **kwargs: Any) -> Any:
                self._refuse_hanging(name)
                try:
                    return self._returned(name, await asyncio.wait_for(tool(*args, **kwargs), self.timeout))
                except TimeoutError:
                    raise self._timed_out(name, tool) from None
                except BaseException as error:
                    raise self._failed(name, error) from error

            return waited

        @functools.wraps(tool)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._refuse_hanging(name)
            try:
                return self._returned(name, self._answer(lambda: tool(*args, **kwargs)))
            except TimedOut:
                raise self._timed_out(name, tool) from None
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise self._failed(name, error) from error

        return called

    def _answer(self, call: Callable[[], Any]) -> Any:
        if self.timeout is None:
            return call()
        self._worker = self._worker or Worker("tool")
        try:
            return answer_of(self._worker.submit(call), self.timeout)
        except (TimedOut, KeyboardInterrupt):
            self._worker.close()  # it ends by itself if the call ever returns
            self._worker = None
            raise

    def _refuse_hanging(self, name: str) -> None:
        if self._in_a_row[name] >= MAX_TIMEOUTS_IN_A_ROW:
            self.counts["failed"] += 1
            raise TimeoutError(f"{name} does not answer")

    def _timed_out(self, name: str, tool: Callable[..., Any]) -> TimeoutError:
        self.counts["timeouts"] += 1
        self._in_a_row[name] += 1
        self.hanging.append(getattr(tool, "__self__", None))
        self._tell(name, f"took longer than {self.timeout:g} s")
        return TimeoutError(f"{name} did not answer within {self.timeout:g} s")

    def _failed(self, name: str, error: BaseException) -> Exception:
        self.counts["failed"] += 1
        self._in_a_row[name] = 0
        error = error.__cause__ if isinstance(error.__cause__, (SystemExit, GeneratorExit)) else error
        said = redact(str(error))[: self.characters]
        self._tell(name, f"failed: {type(error).__name__}: {said}")
        return RuntimeError(self._clean(said))

    def _tell(self, name: str, what: str) -> None:
        """TRL counts failures and says nothing of them: a tool that never works is told of once."""
        if name not in self._told:
            self._told.add(name)
            logger.warning(f"the tool {name!r} {what:.500}; the policy is told so, and the run goes on")

    def _returned(self, name: str, result: Any) -> Any:
        self._in_a_row[name] = 0
        # TRL shows an object as Python does, and gives lists to chat templates, most of which leave them out.
        if isinstance(result, (list, tuple)) or isinstance(result, Mapping) and len(str(result)) > self.characters:
            result = json.dumps(result, ensure_ascii=False, default=str)
        return self._clean(str(result))

    def _clean(self, text: str) -> str:
        if len(text) > self.characters:
            self.counts["cut"] += 1
            text = text[: self.characters]
        for token in self.special:
            text = text.replace(token, "")
        return encodable(text)  # a tokenizer refuses what is no text
