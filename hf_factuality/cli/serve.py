"""The command `hf-factuality serve`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_flag, whole_number
from hf_factuality.server import KEY_VARIABLE, TRANSPORTS
from hf_factuality.verifiers.registry import VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `serve` to the subparsers of the `hf-factuality` command."""
    serve = commands.add_parser(
        "serve",
        help="answer requests for verification over HTTP, and over MCP for agents",
        description="Loads the verifier once, and answers POST /v1/verify and MCP at /mcp until SIGTERM or Ctrl-C. Other "
        "machines can reach it only with a key. Every flag may be written with - for _.",
        epilog="Needs pip install hf_factuality[serve]. Exit status: 0 after SIGTERM; 2 if an argument is refused.",
    )
    flag = serve.add_argument
    add_flag(serve, "verifier", f": {VERIFIER_HELP} (default small)", default="small")
    add_flag(serve, "verifier_tokens", metavar="N")
    add_flag(serve, "verifier_base_url", metavar="URL")
    flag("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1); other machines need a key")
    add_flag(serve, "port", " (default 8321); 0 for a free one", default=8321)
    flag(
        "--allowed_hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="name besides those of this machine that clients may call the server by; may be repeated",
    )
    flag("--key_file", type=Path, metavar="FILE", help=f"file with the key of the clients (default: {KEY_VARIABLE})")
    flag(
        "--mcp",
        choices=TRANSPORTS,
        default="http",
        help="where MCP is: at /mcp (http, default), on standard input and output without HTTP (stdio), or nowhere (off)",
    )
    for name, default, what in (
        ("max_requests", 128, "requests at once, waiting ones included"),
        ("max_body_bytes", 1 << 20, "largest body of a request"),
        ("max_rows", 64, "completions in a request"),
        ("max_passages", 1000, "passages per completion"),
        ("max_characters", 50_000, "characters of a completion or question"),
        ("max_claims", 500, "sentences of a completion"),
    ):
        flag(f"--{name}", type=whole_number, default=default, metavar="N", help=f"{what} (default {default})")
    flag(
        "--request_timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="seconds that a request may take, waiting included (default 60)",
    )
    serve.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    from hf_factuality.server.serve import serve

    names = (
        "verifier", "verifier_tokens", "verifier_base_url", "host", "port", "allowed_hosts", "key_file", "mcp", "max_requests",
        "max_body_bytes", "max_rows", "max_passages", "max_characters", "max_claims", "request_timeout",
    )  # fmt: skip

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    def started(address: str) -> None:
        print(f"hf-factuality: {args.verifier} answers at {address}", file=sys.stderr, flush=True)

    serve(**{name: getattr(args, name) for name in names}, on_start=started)
    return 0
