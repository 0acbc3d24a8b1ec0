"""Requests that no honest client sends: each gets one clear status, soon, and learns nothing of the machine."""

import gzip
import json
import time

import pytest


pytest.importorskip("mcp")

from hf_factuality import load_verifier
from tests.server.running import running, talk, verify


KEY = "a-key-that-nobody-may-see-0123456789"
GOOD = {"completion": "Ulm lies on the Danube.", "evidence": "Ulm lies on the Danube."}


def request(
    body=b"",
    method="POST",
    path="/v1/verify",
    kind="application/json",
    length=None,
    key=KEY,
    host="localhost",
    more="",
):
    """The bytes of a request; `length` is the declared one."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body) if length is None else length}",
    ]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [more] if more else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*chunks, path="/v1/verify"):
    head = request(path=path).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return [head, *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)]


def slowly(connection):
    """A byte now and then, until the server has enough."""
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.1)


def for_ever(connection):
    while True:
        connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def row(**changed):
    return request({**GOOD, **changed})


MCP = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
ACCEPT = "Accept: application/json, text/event-stream"
HOSTILE = {
    "empty body": (400, request()),
    "no JSON": (400, request(b"completion=Ulm")),
    "HTML": (400, request(b"<!doctype html><script>alert(1)</script>")),
    "binary": (400, request(bytes(range(256)))),
    "half a JSON": (400, request(b'{"completion": "Ulm')),
    "two JSONs": (400, request(json.dumps(GOOD).encode() * 2)),
    "UTF-16": (400, request(json.dumps(GOOD).encode("utf-16"))),
    "bytes that are no UTF-8": (400, request(b'{"completion": "\xff\xfe"}')),
    "a half surrogate in UTF-8": (400, request(b'{"completion": "\xed\xa0\x80"}')),
    "a half surrogate, escaped": (422, request(b'{"completion": "\\ud800", "evidence": "x"}')),
    "a half surrogate as a key": (422, request(b'{"completion": "x", "\\udfff": "x"}')),
    "NaN": (400, request(b'{"completion": NaN}')),
    "Infinity": (400, request(b'{"completion": "x", "evidence": -Infinity}')),
    "a number without end": (400, request(b'{"completion": ' + b"9" * 100_000 + b"}")),
    "deep lists": (400, request(b"[" * 200_000)),
    "deep objects": (400, request(b'{"rows":' * 100_000)),
    "a key twice": (400, request(b'{"completion": "x", "completion": "y"}')),
    "null": (422, request(b"null")),
    "a list": (422, request([GOOD])),
    "a string": (422, request(b'"Ulm"')),
    "no completion": (422, request({"evidence": "x"})),
    "null as completion": (422, row(completion=None)),
    "a number as completion": (422, row(completion=1)),
    "an object as completion": (422, row(completion={"$ne": ""})),
    "null among the passages": (422, row(evidence=["x", None])),
    "an object as evidence": (422, row(evidence={"0": "x"})),
    "a list as question": (422, row(question=["x"])),
    "true as id": (422, row(id=True)),
    "unknown scope": (422, row(scope="../../etc/passwd")),
    "unknown field": (422, row(verifier="os:system")),
    "an unknown field as long as a body": (422, row(**{"x" * 500_000: 1})),
    "no rows": (422, request({"rows": []})),
    "rows that are none": (422, request({"rows": "x"})),
    "a row that is none": (422, request({"rows": [GOOD, None]})),
    "rows and a row": (422, request({"rows": [GOOD], **GOOD})),
    "65 rows": (413, request({"rows": [GOOD] * 65})),
    "100,000 passages": (413, row(evidence=["x"] * 100_000)),
    "a long completion": (413, row(completion="x" * 50_001)),
    "a long question": (413, row(question="x" * 50_001)),
    "many sentences": (413, row(completion="Ulm is. " * 600)),
    "huge body": (413, request(b" " * ((1 << 20) + 1))),
    "huge body, declared alone": (413, request(b"x", length=1 << 40)),
    "huge body in chunks": (413, *chunked(*[b" " * 65536] * 17)),
    "chunks without end": (413, *chunked(), for_ever),
    "chunks that stop": (408, *chunked(b'{"completion"')),
    "slow body": (408, request(b"{", length=1000), slowly),
    "a body that is shorter than declared": (408, request(b"{}", length=1000)),
    "no chunk sizes": (400, request().replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"), b"zz\r\n{}\r\n"),
    "two lengths": (400, request(GOOD, more="Content-Length: 3")),
    "a negative length": (400, request(b"", length=-1)),
    "a length and chunks": (400, request(GOOD, more="Transfer-Encoding: chunked"), b"zz\r\n"),
    "gzip": (415, request(gzip.compress(json.dumps(GOOD).encode()), more="Content-Encoding: gzip")),
    "gzip bomb": (415, request(gzip.compress(b" " * 100_000_000), more="Content-Encoding: gzip")),
    "no content type": (415, request(GOOD, kind=None)),
    "a form": (415, request(b"completion=Ulm", kind="application/x-www-form-urlencoded")),
    "text that is JSON": (415, request(GOOD, kind="text/plain")),
    "a file": (415, request(b"--x\r\n\r\n\r\n--x--", kind="multipart/form-data; boundary=x")),
    "GET": (405, request(method="GET")),
    "PUT": (405, request(GOOD, method="PUT")),
    "DELETE": (405, request(method="DELETE")),
    "OPTIONS": (405, request(method="OPTIONS", more="Origin: http://localhost:3000")),
    "TRACE": (405, request(method="TRACE")),
    "POST where there is only GET": (405, request(GOOD, path="/v1/health")),
    "a method of its own": (405, request(GOOD, method="HACK")),
    "elsewhere": (404, request(GOOD, path="/v1/verify/../../etc/passwd")),
    "encoded path": (404, request(GOOD, path="/v1/%2e%2e%2f%2e%2e%2fetc%2fpasswd")),
    "a slash behind": (404, request(GOOD, path="/v1/verify/")),
    "two slashes": (404, request(GOOD, path="//v1//verify")),
    "a null byte": (404, request(GOOD, path="/v1/verify%00")),
    "a whole address": (404, request(GOOD, path="http://evil.example/v1/verify")),
    "documentation": (404, request(method="GET", path="/docs")),
    "no key": (401, request(GOOD, key=None)),
    "wrong key": (401, request(GOOD, key=KEY[:-1] + "x")),
    "a beginning of the key": (401, request(GOOD, key=KEY[:-1])),
    "a key of other letters": (401, request(GOOD, key="ü" * 36)),
    "the key in the path": (401, request(GOOD, path=f"/v1/verify?key={KEY}", key=None)),
    "Host of elsewhere": (421, request(GOOD, host="evil.example")),
    "Host that begins like ours": (421, request(GOOD, host="localhost.evil.example")),
    "no Host": (400, request(GOOD).replace(b"Host: localhost\r\n", b"")),
    "two Hosts": (400, request(GOOD, more="Host: evil.example")),
    "Origin of elsewhere": (403, request(GOOD, more="Origin: https://evil.example")),
    "not HTTP": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    "a line without end": (400, b"POST /" + b"a" * 200_000),
    "a header without end": (400, request()[:-2] + b"X: " + b"a" * 200_000),
    "a websocket": (404, request(method="GET", path="/ws", more="Connection: Upgrade\r\nUpgrade: websocket")),
    "MCP: GET": (405, request(method="GET", path="/mcp", more="Accept: text/event-stream")),
    "MCP: no JSON": (400, request(b"{", path="/mcp", more=ACCEPT)),
    "MCP: huge body": (413, request(b" " * ((1 << 20) + 1), path="/mcp", more=ACCEPT)),
    "MCP: slow body": (408, request(b"{", path="/mcp", more=ACCEPT, length=1000), slowly),
    "MCP: Host of elsewhere": (421, request(MCP, path="/mcp", more=ACCEPT, host="evil.example")),
    "MCP: no key": (401, request(MCP, path="/mcp", more=ACCEPT, key=None)),
    "MCP: a form": (400, request(MCP, path="/mcp", more=ACCEPT, kind="text/plain")),
    "MCP: deep lists": (400, request(b"[" * 200_000, path="/mcp", more=ACCEPT)),
}
CLOSED = {"a head that stops": b"POST /v1/verify HTTP/1.1\r\nHost: localhost\r\n", "nothing at all": b""}


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_factuality.server.http.BODY_SECONDS", 0.5)
        patch.setattr("hf_factuality.server.http._DISCARD_SECONDS", 0.3)
        with running(load_verifier("lexical"), key=KEY) as server:
            yield server


def assert_tells_nothing(text):
    for secret in (KEY[:-1], "Traceback", 'File "', "/work", "/home/", "/usr/", "site-packages", ".py"):
        assert secret not in text, text[:2000]


@pytest.mark.parametrize("name", HOSTILE)
def test_one_clear_status(server, name, caplog):
    expected, *pieces = HOSTILE[name]
    start = time.monotonic()
    status, text = talk(server.address, *pieces)
    assert status == expected, text[:2000]
    assert text.count("HTTP/1.1 ") == 1 and len(text) < 2000 and time.monotonic() - start < 10
    assert_tells_nothing(text)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text[:3000]
    assert verify(server.address, GOOD, headers={"Authorization": f"Bearer {KEY}"})[0] == 200


@pytest.mark.parametrize("name", CLOSED)
def test_who_sends_no_whole_head_is_closed(server, name):
    start = time.monotonic()
    assert talk(server.address, CLOSED[name]) == (None, "") and time.monotonic() - start < 5


def test_a_second_request_that_stops_is_closed(server):
    start = time.monotonic()
    head = request(method="GET", path="/v1/health")

    def read_the_answer(connection):
        received = b""
        while not received.endswith(b"}"):  # head and body may come one by one
            received += connection.recv(1 << 16)

    status, _ = talk(server.address, head, read_the_answer, b"GET /v1")
    assert status is None and time.monotonic() - start < 5


def test_a_key_in_the_wrong_place_is_not_repeated(server):
    status, text = talk(server.address, request({**GOOD, "note": KEY}))
    assert status == 422
    assert_tells_nothing(text)
