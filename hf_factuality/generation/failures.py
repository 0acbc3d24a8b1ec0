"""The rules for waiting and for giving up, for judges, builders and `evaluate` alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from hf_factuality.errors import JudgingError


logger = logging.getLogger(__name__)
Result = TypeVar("Result")

GIVE_UP_AFTER = 128
"""Failures in a row after which who is asked is taken to be down."""


@dataclass
class Failures:
    """Counts what was asked and what failed. Who asks gives up after `GIVE_UP_AFTER` failures in a row, and in the end if all
    has failed."""

    sent: int = 0
    failed: int = 0  # of those that were sent
    failed_in_a_row: int = 0  # since something last worked; several of one prompt count once
    reason: str | None = None  # of the last of these failures
    first_reason: str | None = None  # of the first failure of all
    known: int = 0  # what worked before
    last_key: Hashable = None

    @property
    def all_failed(self) -> bool:
        """Whether something was sent and nothing worked, now or before."""
        return self.failed == self.sent > 0 and not self.known

    def count(self, reason: str | None, key: Hashable = None) -> None:
        """Count an answer, or its failure for a reason; `key` tells prompts apart."""
        self.sent += 1
        if reason is None:
            self.failed_in_a_row, self.reason, self.last_key = 0, None, None
            return
        self.failed += 1
        self.failed_in_a_row += key is None or key != self.last_key
        self.reason, self.last_key = reason, key
        self.first_reason = self.first_reason or reason

    def check(self, what: str, told: str = "", limit: int = GIVE_UP_AFTER) -> None:
        """`JudgingError`, which says `what` is wrong, after too many failures in a row."""
        if self.failed_in_a_row >= limit:
            raise JudgingError(f"{what}: {told or self._told()}")

    def end(self, who: str, told: str) -> None:
        """`JudgingError` if all has failed."""
        if self.all_failed:
            raise JudgingError(f"{who} failed on all {self.sent} {told}: {self.first_reason}")

    def _told(self) -> str:
        return f"it failed {self.failed_in_a_row} times in a row; the first: {self.first_reason}"


def patiently(
    call: Callable[[], Result], patience: float, what: str, stopped: Callable[[], bool] = lambda: False
) -> Result:
    """The result of `call`; while a server is down, tries again until `patience` seconds are over, or `stopped`."""
    start, delay = time.monotonic(), 2.0
    while True:
        try:
            return call()
        except (JudgingError, OSError) as error:
            waited = time.monotonic() - start
            if stopped():
                raise
            if waited >= patience:
                raise JudgingError(
                    f"{what} has failed for {waited:.0f} seconds: {error}; what is done is kept: start the run again to go on"
                ) from error
            logger.warning("%s failed, trying again in %.0f seconds: %s", what, delay, error)
            time.sleep(min(delay, patience - waited))
            delay = min(2 * delay, 60.0)
