"""A server in this process or in one of its own, and clients that send what no library would."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from hf_factuality.server.http import FactualityServer, make_app, security
from hf_factuality.server.messages import RequestLimits
from hf_factuality.server.queue import JudgingQueue


REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = RequestLimits(max_body_bytes=1 << 20, max_rows=64, max_passages=1000, max_characters=50_000, max_claims=500)


class Running:
    """A server on a thread, with the verifier object `verifier`."""

    def __init__(self, verifier, key=None, limits=LIMITS, max_requests=128, timeout=30.0, hosts=(), mcp=True):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.queue = JudgingQueue(verifier, "tested", timeout, limits.max_claims)
        app = make_app(self.queue, limits, max_requests, security(hosts, True), key, mcp)
        started = threading.Event()
        self.server = FactualityServer(app, self.queue, started.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        assert started.wait(30)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(30)
        self.socket.close()
        assert not self.thread.is_alive()


@contextlib.contextmanager
def running(*arguments, **options):
    server = Running(*arguments, **options)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def process(*flags, environment=()):
    """`hf-factuality serve` in a process of its own; yields it and its address."""
    command = [sys.executable, "-m", "hf_factuality", "serve", "--port", "0", *flags]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **dict(environment)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=REPOSITORY) as server:
        try:
            told = ""
            while not (found := re.search(r"http://\S+", told)):
                line = server.stderr.readline()
                assert line, told
                told += line
            yield server, found[0]
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGKILL)


def call(address, method, path, body=None, headers=None, timeout=60):
    """Status, JSON and headers of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=timeout)
    with contextlib.closing(connection):
        given = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, body, {**given, **(headers or {})})
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None, dict(answer.headers)


def verify(address, row, **options):
    return call(address, "POST", "/v1/verify", json.dumps(row), **options)


def talk(address, *pieces, timeout=20):
    """Status and text of what a server answers to bytes; a piece that is a function is called with the socket."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as connection:
        received = b""
        try:
            for piece in pieces:
                if callable(piece):
                    piece(connection)
                else:
                    connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered before all was sent
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(1 << 16):
                received += data
                head, _, rest = received.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                if length and len(rest) >= int(length[1]):
                    break
    head, _, rest = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else None), received.decode("utf-8", "replace")
