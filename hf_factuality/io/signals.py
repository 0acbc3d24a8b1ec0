"""Signals that a scheduler or a closed terminal sends, while something runs that can end better than by being killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals(names: tuple[str, ...], handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of a signal of these names (`"SIGTERM"`), once; further ones are ignored.

    A signal that is ignored, as under `nohup`, or that the program handles itself is left alone, and so are all of them
    outside the main thread, which alone may set handlers.
    """
    ours = []

    def called(number: int, _) -> None:
        for each in ours:
            signal.signal(each, lambda *_: None)
        handle(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for name in names:
                number = getattr(signal, name, None)  # there is no SIGHUP on Windows
                if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                    ours.append(number)
                    signal.signal(number, called)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
