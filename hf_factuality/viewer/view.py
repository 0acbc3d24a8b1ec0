"""`hf_factuality.view`: the arguments, and the server that shows the viewer on this machine."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_factuality.evaluation._shared import check_at_least_one, check_port
from hf_factuality.io.signals import on_signals


HOST = "127.0.0.1"


def view(
    path: str | Path,
    other: str | Path | None = None,
    *,
    completion_column: str = "completion",
    rows: int = 1000,
    port: int = 7860,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Show the completions of a training run or of a file in a browser, until the process is told to end (SIGTERM, Ctrl-C).

    Needs `pip install hf_factuality[view]`. Only this machine can reach the page.

    Args:
        path (`str` or `Path`):
            Folder of a training, a file that `verify` wrote (`out`), or answers or results of `evaluate`.
        other (`str` or `Path`, *optional*):
            A second one, to stand beside the first.
        completion_column (`str`, *optional*, defaults to `"completion"`):
            Column with the completion, in a file of `verify`.
        rows (`int`, *optional*, defaults to 1000):
            Completions that are shown at once.
        port (`int`, *optional*, defaults to 7860):
            Port to listen at; 0 for a free one.
        on_start (`Callable[[str], None]`, *optional*):
            Called with the address once the page can be opened.

    Raises:
        `DataError`: nothing there can be shown. `ValueError`: an argument is wrong. `ImportError`: Gradio is missing. `OSError`:
        a file cannot be read, or the port is taken.
    """
    from hf_factuality.viewer.runs import ViewedRun

    check_at_least_one(rows=rows)
    runs = [ViewedRun(it, completion_column, rows) for it in (path, other) if it is not None]
    require_gradio()
    from hf_factuality.viewer.app import build_viewer

    serve_app(build_viewer(runs), port, on_start)


def require_gradio() -> None:
    """`ImportError` without Gradio."""
    if importlib.util.find_spec("gradio") is None:
        raise ImportError("the viewer needs gradio: pip install hf_factuality[view]")


def serve_app(app: Any, port: int, on_start: Callable[[str], None] | None = None) -> None:
    """Serve a Gradio app on this machine until a signal ends the process."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from hf_factuality.viewer.app import launch_options

    check_port(port)
    ended = threading.Event()
    # A page elsewhere that lets its own name stand for this machine reads nothing.
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST])
    app.launch(
        server_name=HOST, server_port=port or _free_port(), share=False, prevent_thread_lock=True,
        app_kwargs={"middleware": [trusted]}, **launch_options(),
    )  # fmt: skip
    try:
        with on_signals(("SIGTERM",), lambda number: ended.set()):
            if on_start:
                on_start(app.local_url)
            ended.wait()
    finally:
        app.close(verbose=False)


def _free_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind((HOST, 0))
        return bound.getsockname()[1]
