"""`hf_factuality.serve`: the arguments, the key, and the server that they make."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hf_factuality.evaluation._shared import check_at_least_one, check_choices, check_port
from hf_factuality.hub.results import public
from hf_factuality.io.signals import on_signals
from hf_factuality.server import KEY_VARIABLE, TRANSPORTS
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.registry import load_verifier, served_arguments


_SHORTEST_KEY = 16


def serve(
    verifier: str | Verifier = "small",
    *,
    verifier_tokens: int | None = None,
    verifier_base_url: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8321,
    allowed_hosts: Sequence[str] = (),
    key_file: str | Path | None = None,
    mcp: str = "http",
    max_requests: int = 128,
    max_body_bytes: int = 1 << 20,
    max_rows: int = 64,
    max_passages: int = 1000,
    max_characters: int = 50_000,
    max_claims: int = 500,
    request_timeout: float = 60.0,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Answer requests for verification over HTTP and MCP until the process is told to end (SIGTERM, Ctrl-C).

    Needs `pip install hf_factuality[serve]`. The verifier is loaded once. Requests that wait while it is busy are judged together.

    Args:
        verifier (`str` or `Verifier`, *optional*, defaults to `"small"`):
            A name for [`load_verifier`], or a verifier.
        verifier_tokens (`int`, *optional*), verifier_base_url (`str`, *optional*):
            Room for an answer of a judge that is a language model, and the server that has it.
        host (`str`, *optional*, defaults to `"127.0.0.1"`), port (`int`, *optional*, defaults to 8321):
            Address to listen at; port 0 takes a free one. An address that other machines can reach needs a key.
        allowed_hosts (`Sequence[str]`, *optional*):
            Names besides those of this machine that clients may call the server by, such as behind a proxy.
        key_file (`str` or `Path`, *optional*):
            File with the key that clients must send, instead of the environment variable `HF_FACTUALITY_SERVER_KEY`.
        mcp (`str`, *optional*, defaults to `"http"`):
            Whether MCP is at `/mcp` (`"http"`), over standard input and output instead of HTTP (`"stdio"`), or `"off"`.
        max_requests (`int`, *optional*, defaults to 128):
            Requests that are read, wait or are judged at once; further ones are refused with status 503.
        max_body_bytes (`int`, *optional*, defaults to 1048576), max_rows (`int`, *optional*, defaults to 64):
            Largest body of a request, and completions in it.
        max_passages (`int`, *optional*, defaults to 1000), max_characters (`int`, *optional*, defaults to 50000):
            Passages per completion, and characters of a completion or question.
        max_claims (`int`, *optional*, defaults to 500):
            Sentences of a completion.
        request_timeout (`float`, *optional*, defaults to 60.0):
            Seconds that a request may take, waiting included.
        on_start (`Callable[[str], None]`, *optional*):
            Called with the address once requests are taken.

    Raises:
        `ValueError`: an argument is wrong, or the address needs a key. `ImportError`: a library is missing. `OSError`: the
        address is taken, or the key file cannot be read.
    """
    for name in ("mcp", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"the server needs {name}: pip install hf_factuality[serve]")
    check_choices({"mcp": TRANSPORTS}, {"mcp": mcp})
    check_at_least_one(
        verifier_tokens=verifier_tokens, max_requests=max_requests, max_body_bytes=max_body_bytes, max_rows=max_rows,
        max_passages=max_passages, max_characters=max_characters, max_claims=max_claims,
    )  # fmt: skip
    if not 0 < request_timeout < math.inf:
        raise ValueError(f"`request_timeout` must be a positive number of seconds, got {request_timeout:g}")
    check_port(port)

    from hf_factuality.server.messages import RequestLimits
    from hf_factuality.server.queue import JudgingQueue

    limits = RequestLimits(max_body_bytes, max_rows, max_passages, max_characters, max_claims)
    served = served_arguments(verifier_base_url, verifier_tokens) if isinstance(verifier, str) else {}
    name = public(verifier) if isinstance(verifier, str) else type(verifier).__name__

    def make_queue() -> JudgingQueue:
        return JudgingQueue(load_verifier(verifier, **served), name, request_timeout, max_claims)

    if mcp == "stdio":
        if key_file is not None:
            raise ValueError('`key_file` is not used with `mcp="stdio"`, which nobody else can reach; leave it out')
        _serve_stdio(make_queue, limits)
        return

    from hf_factuality.server.http import FactualityServer, make_app, security

    loopback = _is_loopback(host)
    key = read_server_key(key_file)
    if key is None and not loopback:
        raise ValueError(
            f"`host` {host} can be reached from other machines, which needs a key: set {KEY_VARIABLE}, or name a file with "
            "`key_file`; openssl rand -hex 32 makes one"
        )
    # Before the verifier, whose loading may take minutes.
    with contextlib.closing(_listen(host, port)) as listening:
        at = listening.getsockname()
        address = f"http://[{at[0]}]:{at[1]}" if ":" in at[0] else f"http://{at[0]}:{at[1]}"
        queue = make_queue()
        app = make_app(queue, limits, max_requests, security(allowed_hosts, loopback), key, mcp == "http")
        server = FactualityServer(app, queue, lambda: on_start(address) if on_start else None)

        def end(number: int) -> None:
            server.should_exit = True

        # uvicorn raises the signal again when all is answered; a server that was told to end has not failed.
        with on_signals(("SIGTERM",), end):
            server.run(sockets=[listening])


def _serve_stdio(make_queue: Callable[[], Any], limits: Any) -> None:
    from hf_factuality.server.tools import mcp_server

    with contextlib.redirect_stdout(sys.stderr):  # standard output is the protocol's
        server = mcp_server(make_queue(), limits)
    # The library reads standard input on a thread, for which Python's own handler of Ctrl-C would wait.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.run("stdio")


def read_server_key(path: str | Path | None) -> str | None:
    """The key that clients must send, from a file or else the environment; `None` if there is none. No error shows it."""
    where = f"`key_file` {path}" if path is not None else f"the environment variable {KEY_VARIABLE}"
    try:
        text = Path(path).read_text(encoding="utf-8") if path is not None else os.environ.get(KEY_VARIABLE)
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not text") from None
    if text is None:
        return None
    key = text.strip()
    if len(key) < _SHORTEST_KEY or not re.fullmatch(r"[!-~]+", key):
        raise ValueError(
            f"{where} must hold a key of at least {_SHORTEST_KEY} ASCII characters without spaces; openssl rand -hex 32 makes one"
        )
    return key


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address, whatever its name stands for."""
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None)
    except OSError as error:
        raise ValueError(f"`host` {host!r} is no address of this machine: {error.strerror}") from None
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise OSError(f"cannot listen at `host` {host}, `port` {port}: {why}") from None
