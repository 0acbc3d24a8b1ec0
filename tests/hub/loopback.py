"""A Hub on this machine: what the `huggingface_hub` client asks for to publish and load, spoken over HTTP on loopback.

The client is the real one. Repositories live in memory as commits of whole trees, so that a test can look at every state
that a reader could have seen. What goes wrong on real networks is injected: see [`LoopbackHub.fail`], `cut` and `slow`.
Xet, which the client prefers where it can, is not spoken: `HF_HUB_DISABLE_XET=1`.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest


TOKEN = "hf_notARealTokenButLongEnough"
# As the .gitattributes that the Hub makes; other files go by size.
LARGE = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.npy", "*.npz", "*.parquet", "*.sqlite", "*.model", "*.zip")
ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE).encode()
WHEN = "2026-01-02T03:04:05.000Z"


@dataclass
class User:
    """Who a token belongs to; `role` is `"write"` or `"read"`."""

    name: str
    role: str = "write"
    orgs: tuple[str, ...] = ()
    may_make_private: bool = True


@dataclass(frozen=True)
class Blob:
    """A file of a commit: its bytes, and whether they came through LFS."""

    data: bytes
    large: bool = False

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass
class Commit:
    oid: str
    title: str
    files: dict[str, Blob]
    parent: str | None = None


@dataclass
class Repo:
    """A repository: its branches and pull requests are names of commits, in order of making in `log`."""

    private: bool
    sdk: str | None = None
    log: list[Commit] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)

    def commit(self, ref: str, title: str, files: dict[str, Blob], parent: str | None = None) -> Commit:
        oid = hashlib.sha1(f"{len(self.log)}{title}{sorted(files)}{os.urandom(8).hex()}".encode()).hexdigest()
        self.log.append(Commit(oid, title, files, parent))
        self.refs[ref] = oid
        return self.log[-1]

    def find(self, revision: str) -> Commit | None:
        oid = self.refs.get(revision, revision)
        return next((commit for commit in self.log if commit.oid == oid), None)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> bytes, without what the Hub itself put there."""
        commit = self.find(revision)
        assert commit is not None
        return {path: blob.data for path, blob in commit.files.items() if path != ".gitattributes"}


@dataclass
class Fault:
    method: str
    pattern: str
    times: int
    status: int = 0
    cut_after: int | None = None  # bytes of the request's body; -1: the work is done, and the answer is cut
    pause: float = 0.0  # seconds after every block that is read
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class LoopbackHub(ThreadingHTTPServer):
    """The server; `repos` is keyed by type and id: `hub.repos["model", "someone/name"]`.

    Args:
        part_size (`int`, *optional*): with it, larger files are uploaded in parts of this many bytes.
    """

    daemon_threads = True

    def __init__(self, part_size: int | None = None, large_from: int = 10_000_000):
        self.users = {TOKEN: User("someone")}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.calls: list[tuple[str, str]] = []
        self.cards: list[dict] = []  # what the validator was asked
        self.stored: Counter[str] = Counter()  # sha256 of what was uploaded whole -> how often
        self.part_size, self.large_from = part_size, large_from
        self.parts: dict[tuple[str, int], bytes] = {}
        self.faults: list[Fault] = []
        self.connections: list[socket.socket] = []
        self.open = threading.RLock()
        from tests.hub.loopback_handler import Handler

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def get_request(self):
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def close(self):
        """Be gone, also for clients that hold a connection."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed before

    def handle_error(self, request, client_address):
        """Clients that go away are a part of the tests."""

    # ---- what a test sets up

    def add(self, repo_id: str, files: dict[str, bytes] | None = None, repo_type="model", private=False) -> Repo:
        """A repository that is there already."""
        repo = self.repos[repo_type, repo_id] = Repo(private)
        start = {".gitattributes": Blob(ATTRIBUTES)}
        repo.commit("main", "initial commit", start | {path: Blob(data) for path, data in (files or {}).items()})
        return repo

    def fail(self, method: str, pattern: str, status: int = 503, times: int = 1, body: str = "", **headers: str):
        """Answer the next requests with an error; `pattern` is a regular expression of the path with its query."""
        self.faults.append(Fault(method, pattern, times, status, headers=headers, body=body))

    def cut(self, method: str, pattern: str, after: int = 0, times: int = 1):
        """Close the connection after this many bytes of the request's body; -1: after the work, before the answer."""
        self.faults.append(Fault(method, pattern, times, cut_after=after))

    def slow(self, method: str, pattern: str, pause: float, times: int = 1 << 30):
        """Wait after every block of 64 kB of the request's body."""
        self.faults.append(Fault(method, pattern, times, pause=pause))

    def environment(self, home: Path, token: str | None = TOKEN, **more: str) -> dict[str, str]:
        """Variables of a process that knows this Hub and no other, with a cache of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        kept |= {"HF_UPDATE_DOWNLOAD_COUNTS": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        kept |= {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1", "CI": "1"}
        return kept | ({"HF_TOKEN": token} if token else {}) | more

    def count(self, method: str, pattern: str) -> int:
        return sum(1 for one, path in self.calls if one == method and re.search(pattern, path))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A [`LoopbackHub`], to which this process is logged in as `someone`; only settings of the client are changed."""
    server = LoopbackHub()
    use_in_process(server, tmp_path / "hub-home", monkeypatch)
    yield server
    server.close()


def use_in_process(server: LoopbackHub, home: Path, monkeypatch) -> None:
    """Give the client of this process what [`LoopbackHub.environment`] gives to one that starts: it reads it at import."""
    for name, value in {
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.url)  # made at import; peft asks through it
    # transformers keeps a client of its own, which would go on asking the server of an earlier test.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
