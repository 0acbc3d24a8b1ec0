"""`hf_factuality.serve` and the command: what is refused before anything listens, and how a process ends."""

import importlib.util
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.server import KEY_VARIABLE
from hf_factuality.server.serve import read_server_key


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def installed():
    pytest.importorskip("mcp")


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "mcp" else found(name, *rest))
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "hf-factuality: the server needs mcp: pip install hf_factuality[serve]\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "needs a key"),
        ({"host": "::"}, "needs a key"),
        ({"host": ""}, "needs a key"),
        ({"host": "no such host"}, "is no address of this machine"),
        ({"port": 65536}, "`port` must be between 0 and 65535, got 65536"),
        ({"port": -1}, "`port`"),
        ({"mcp": "sse"}, "`mcp` must be one of http, stdio, off, got 'sse'"),
        ({"max_rows": 0}, "`max_rows` must be at least 1, got 0"),
        ({"max_requests": -5}, "`max_requests`"),
        ({"request_timeout": 0.0}, "`request_timeout`"),
        ({"request_timeout": float("inf")}, "`request_timeout`"),
        ({"request_timeout": float("nan")}, "`request_timeout`"),
        ({"verifier": "nonsense", "port": 0}, "unknown verifier 'nonsense'"),
        ({"mcp": "stdio", "key_file": "x"}, "`key_file` is not used"),
    ],
)
def test_wrong_arguments_are_refused(installed, given, told):
    with pytest.raises(ValueError) as refused:
        hf_factuality.serve(**given)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "key", ["", "  \n", "short", "a key with spaces in it", "k" * 40 + "ü", "two\nlines of a key file"]
)
def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path, monkeypatch, key):
    (tmp_path / "key").write_text(key)
    monkeypatch.setenv(KEY_VARIABLE, key)
    for path in (tmp_path / "key", None):
        with pytest.raises(ValueError, match="at least 16 ASCII characters") as refused:
            read_server_key(path)
        assert not key.strip() or key.strip() not in str(refused.value)


def test_where_the_key_comes_from(tmp_path, monkeypatch):
    assert read_server_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, "k" * 32)
    (tmp_path / "key").write_text("f" * 32 + "\n")
    assert read_server_key(None) == "k" * 32 and read_server_key(tmp_path / "key") == "f" * 32
    (tmp_path / "key").write_bytes(b"\xff" * 32)
    with pytest.raises(ValueError, match="is not text"):
        read_server_key(tmp_path / "key")
    with pytest.raises(OSError):
        read_server_key(tmp_path / "none")


def test_the_command_ends_in_one_line(installed, tmp_path, capsys):
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    told = capsys.readouterr().err
    assert (
        told.startswith("hf-factuality: --host 0.0.0.0 can be reached from other machines") and told.count("\n") == 1
    )
    assert "--key_file" in told and KEY_VARIABLE in told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"hf-factuality: cannot listen at --host 127.0.0.1, --port {port}: Address already in use\n"
    )
    assert main(["serve", "--key_file", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_process_answers_what_is_in_flight_and_ends_at_sigterm(installed):
    from tests.server.running import process, verify

    with process("--verifier", "tests.server.verifiers:Slow") as (server, address), ThreadPoolExecutor(8) as clients:
        judged = [clients.submit(verify, address, {"completion": "x"}) for _ in range(4)]
        time.sleep(0.5)  # the first is judged, the others wait
        server.send_signal(signal.SIGTERM)
        statuses = sorted(done.result()[0] for done in judged)
        assert server.wait(20) == 0 and statuses == [200, 503, 503, 503]
        assert "Traceback" not in server.stderr.read()


@pytest.mark.slow
def test_a_process_ends_while_its_verifier_hangs_and_a_body_is_slow(installed):
    from tests.server.running import process, verify

    with (
        process("--verifier", "tests.server.verifiers:Hanging") as (server, address),
        ThreadPoolExecutor(2) as clients,
    ):
        hangs = clients.submit(verify, address, {"completion": "hang"})
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"POST /v1/verify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.5)
            server.send_signal(signal.SIGTERM)
            start = time.monotonic()
            assert slow.recv(4096).startswith(b"HTTP/1.1 503")
            assert hangs.result()[:2] == (503, {"error": "the server is ending"})
        assert server.wait(30) == 0 and time.monotonic() - start < 20


@pytest.mark.slow
def test_ctrl_c_ends_a_process(installed):
    from tests.server.running import process, verify

    with process() as (server, address):
        assert verify(address, {"completion": "Ulm is.", "evidence": "Ulm is."})[0] == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130 and server.stderr.read().endswith("hf-factuality: ended by SIGINT\n")


@pytest.mark.slow
def test_elsewhere_with_a_key_that_is_never_printed(installed, tmp_path):
    from tests.server.running import call, process, verify

    (tmp_path / "key").write_text("k" * 32)
    row = {"completion": "Ulm is.", "evidence": "Ulm is."}
    with process("--host", "0.0.0.0", "--key_file", str(tmp_path / "key")) as (server, address):
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert verify(address, row)[0] == 401
        headers = {"Authorization": "Bearer " + "k" * 32, "Host": "judge.example"}
        assert verify(address, row, headers=headers)[0] == 200
        assert "kkkk" not in json.dumps(call(address, "GET", "/v1/verifiers", headers=headers)[1])
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0 and "kkkk" not in server.stderr.read()


@pytest.mark.slow
def test_fifty_clients_lose_nothing_and_memory_stays(installed):
    """Twenty rounds of fifty clients, then fifty with the largest body: what the process holds does not grow."""
    import psutil

    from tests.server.running import process, verify
    from tests.server.test_http import verification_of

    rows = [
        {
            "completion": f"Person {n} was born in {1900 + n}. Person {n} lives in Ulm.",
            "evidence": [f"Person {n} was born in {1900 + n % 7}.", f"Person {n} lives in Ulm."],
        }
        for n in range(50)
    ]
    expected = [found.verification for found in hf_factuality.verify(rows).rows]
    large = {"completion": "Ulm lies on the Danube.", "evidence": ["Ulm lies on the Danube. " * 40] * 1000}

    def round_of(address, requests):
        start = threading.Barrier(50)

        def client(row):
            start.wait()
            return verify(address, row, timeout=120)

        with ThreadPoolExecutor(50) as clients:
            return list(clients.map(client, requests))

    with process() as (server, address):
        held = psutil.Process(server.pid).memory_info
        round_of(address, rows)
        before = held().rss
        for _ in range(20):
            answers = round_of(address, rows)
            assert [status for status, *_ in answers] == [200] * 50
            assert [verification_of(it["rows"][0]["verification"]) for _, it, _ in answers] == expected
        after = held().rss
        assert {status for status, *_ in round_of(address, [large] * 50)} <= {200, 503}
        largest = held().rss
        print(
            f"RSS in MB: {before / 1e6:.0f} before, {after / 1e6:.0f} after 1000 requests, {largest / 1e6:.0f} after 50 MB"
        )
        assert after - before < 50e6 and largest - before < 300e6
