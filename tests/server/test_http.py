"""Answers over HTTP are those of `hf_factuality.verify`, whatever the verifier does."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest


pytest.importorskip("mcp")

import hf_factuality
from hf_factuality import LabeledSpan, Verification, load_verifier
from hf_factuality.cli.main import _parser
from hf_factuality.server.queue import told_error
from hf_factuality.verifiers.base import REQUEST_FAILED
from tests.conftest import REPOSITORY
from tests.server.running import call, running, verify
from tests.server.verifiers import Failing, FailsOnBad, Gated, Hanging, SlowRows


ROW = {
    "completion": "Ulm lies on the Danube. Ulm lies on the Rhine.",
    "evidence": "Ulm lies on the Danube.",
    "question": "Where?",
}
ROWS = [
    ROW,
    {
        "completion": "<think>Ulm lies on the Rhine.</think>Bern is in Italy.",
        "evidence": ["Bern is in Switzerland.", ""],
    },
    {"completion": "I don't know.", "evidence": "Ulm lies on the Danube."},
    {
        "completion": "Das 中文 🙂 is a line.\n\n- Ulm lies on the Danube.\n- Bern is in Italy.",
        "evidence": ROW["evidence"],
    },
    {"completion": "   ", "evidence": "Ulm lies on the Danube."},
]


def verification_of(given):
    """Every span has its characters besides."""
    spans = {
        kind: [{name: value for name, value in span.items() if name != "text"} for span in given[kind]]
        for kind in ("spans", "claims")
    }
    return Verification.from_dict({**given, **spans})


def assert_same(answer, rows):
    found = hf_factuality.verify(rows, verifier="lexical")
    assert answer["summary"] == json.loads(json.dumps(found.summary))
    for given, row in zip(answer["rows"], found.rows, strict=True):
        assert verification_of(given["verification"]) == row.verification
        assert given["declined"] == row.declined
        for span in given["verification"]["spans"]:
            assert span["text"] == row.completion[span["start"] : span["end"]]


@pytest.fixture(scope="module")
def lexical():
    with running(load_verifier("lexical")) as server:
        yield server


def test_one_row_and_several_are_as_the_library_judges_them(lexical):
    for row in ROWS:
        status, answer, _ = verify(lexical.address, row)
        assert status == 200
        assert_same(answer, [row])
    status, answer, _ = verify(lexical.address, {"rows": [{**row, "id": n} for n, row in enumerate(ROWS)]})
    assert status == 200 and [row["id"] for row in answer["rows"]] == [*range(len(ROWS))]
    assert_same(answer, ROWS)
    assert answer["summary"]["claims"]["contradicted"] > 0 < answer["summary"]["claims"]["supported"]


def test_the_scope_is_that_of_the_row(lexical):
    _, answer, _ = verify(lexical.address, {**ROWS[1], "scope": "think"})
    assert [span["text"] for span in answer["rows"][0]["verification"]["spans"]] == ["Ulm lies on the Rhine."]


def test_rows_without_evidence(lexical):
    status, answer, _ = verify(lexical.address, {"completion": "Ulm lies on the Danube."})
    assert (status, answer) == (422, {"error": "evidence: tested needs evidence, and there is none"})
    status, answer, _ = verify(lexical.address, {"rows": [ROW, {"completion": "Ulm lies on the Danube."}]})
    assert status == 200 and answer["rows"][1]["verification"]["error"] == "no evidence"
    assert answer["summary"]["not_judged"] == 1 and answer["summary"]["precision"] == 0.5


def test_too_many_sentences(lexical):
    status, answer, _ = verify(lexical.address, {**ROW, "completion": "Ulm lies on the Danube. " * 501})
    assert (status, answer) == (413, {"error": "completion has 501 sentences; at most 500"})


def test_what_a_server_tells_of_itself(lexical):
    assert call(lexical.address, "GET", "/v1/health")[:2] == (
        200,
        {"status": "ok", "version": hf_factuality.__version__},
    )
    status, answer, _ = call(lexical.address, "GET", "/v1/verifiers")
    assert status == 200 and answer["verifiers"][0]["name"] == "tested" and answer["limits"]["max_rows"] == 64
    status, answer, _ = call(lexical.address, "GET", "/openapi.json")
    schemas = answer["components"]["schemas"]
    assert status == 200 and set(schemas["RequestRow"]["properties"]) == {
        "completion",
        "evidence",
        "question",
        "scope",
        "id",
    }
    refs = [text for text in json.dumps(answer).split('"') if text.startswith("#/components/")]
    assert refs and {ref.rpartition("/")[2] for ref in refs} <= set(schemas)


def test_the_page_shows_what_is_answered():
    page = (REPOSITORY / "docs" / "server.md").read_text(encoding="utf-8")
    (sent,) = re.findall(r"-d '(.*?)'", page)
    shown, *others = map(json.loads, re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    with running(load_verifier("small")) as server:
        _, answer, _ = verify(server.address, json.loads(sent))
    (shown_span,) = shown["rows"][0]["verification"].pop("spans")
    (span,) = answer["rows"][0]["verification"].pop("spans")
    assert {**span, "score": round(span["score"], 2)} == shown_span and answer["rows"] == shown["rows"]
    del shown["summary"]["..."]
    assert set(shown) == set(answer) and shown["summary"] == {
        name: answer["summary"][name] for name in shown["summary"]
    }
    assert (
        _parser().parse_args(others[0]["mcpServers"]["factuality"]["args"]).mcp == "stdio"
        and "Stop" in others[1]["hooks"]
    )


def test_what_waits_is_judged_together():
    gated = Gated()
    with running(gated) as server, ThreadPoolExecutor(21) as clients:
        first = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        others = [clients.submit(verify, server.address, ROWS[n % 4]) for n in range(20)]
        while len(server.queue._waiting) < 20:
            time.sleep(0.01)
        # The event loop does not wait for the verifier.
        assert call(server.address, "GET", "/v1/health", timeout=5)[0] == 200
        gated.gate.set()
        assert_same(first.result()[1], [ROW])
        for n, other in enumerate(others):
            assert_same(other.result()[1], [ROWS[n % 4]])
    assert gated.sizes == [1, 20]


@pytest.mark.slow
def test_a_slow_verifier_gets_batches_that_it_can_judge_in_time():
    """Forty at once of which a verifier can judge twenty in time: judged together, all would be too late."""
    slow = SlowRows()
    with running(slow, timeout=2.0) as server, ThreadPoolExecutor(40) as clients:
        answers = list(clients.map(lambda n: verify(server.address, {"completion": f"It is {n}."})[0], range(40)))
    assert set(answers) <= {200, 503, 504} and answers.count(200) >= 10
    assert max(slow.sizes) <= 5


def test_a_large_request_is_judged_apart():
    gated = Gated()
    gated.gate.set()
    large = {"completion": "Ulm lies on the Danube.", "evidence": ["Ulm lies on the Danube. " * 12_000]}
    with running(gated) as server, ThreadPoolExecutor(3) as clients:
        gated.gate.clear()
        first = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        others = [clients.submit(verify, server.address, row) for row in (large, ROW)]
        while len(server.queue._waiting) < 2:
            time.sleep(0.01)
        gated.gate.set()
        assert [done.result()[0] for done in (first, *others)] == [200] * 3
    assert gated.sizes == [1, 1, 1]


def test_a_verifier_that_fails_gives_no_score_and_names_no_file():
    with running(Failing()) as server:
        status, answer, _ = verify(server.address, ROW)
    assert status == 502 and answer["error"] == "nothing could be judged: the verifier failed (RuntimeError)"
    assert answer["summary"]["precision"] is None and answer["summary"]["not_judged"] == 1
    assert answer["rows"][0]["verification"]["spans"] == []
    assert "/home" not in json.dumps(answer) and "hf_abc" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("ServerError: http://10.0.0.1/v1 refuses requests: HTTP 401: bad key sk-abc in /home/x", "ServerError, HTTP 401"),
        ("ServerError: http://a/v1/models does not answer: ConnectError", "ServerError, its server does not answer"),
        ("ServerError: http://a/v1 gave no answer for 300 s; last error: HTTP 503: busy",
         "ServerError, HTTP 503, its server gave no answer for 300 s"),
        ("OSError: /home/x/model.bin", "OSError"),
        ("no class at all: /home/x", None),
    ],
)  # fmt: skip
def test_why_a_verifier_failed_is_told_without_what_it_said(error, told):
    assert told_error(error) == "the verifier failed" + (f" ({told})" if told else "")


def test_what_the_server_of_a_judge_said_of_a_claim_is_not_told():
    class Refused:
        requires_evidence = True

        def verify(self, inputs):
            reason = f"{REQUEST_FAILED}HTTP 400: no room in /home/x, at http://10.0.0.1"
            return [Verification([LabeledSpan(0, 4, None, reason=reason)]) for _ in inputs]

    with running(Refused()) as server:
        _, answer, _ = verify(server.address, ROW)
    (span,) = answer["rows"][0]["verification"]["spans"]
    assert span["reason"] == "not judged: the verifier failed (HTTP 400)"
    assert "/home" not in json.dumps(answer) and "10.0.0.1" not in json.dumps(answer)


def test_a_row_on_which_the_verifier_fails_costs_only_itself():
    with running(FailsOnBad()) as server:
        status, answer, _ = verify(server.address, {"rows": [{"completion": "good"}, {"completion": "bad"}]})
        assert verify(server.address, {"completion": "bad"})[0] == 502
    assert status == 200 and answer["summary"]["precision"] == 1.0 and answer["summary"]["not_judged"] == 1
    assert [row["verification"]["error"] for row in answer["rows"]] == [None, "the verifier failed (RuntimeError)"]


def test_a_verifier_that_hangs_is_ended_and_the_next_request_is_answered():
    hanging = Hanging()
    with running(hanging, timeout=0.5) as server:
        for _ in range(2):
            status, answer, _ = verify(server.address, {"completion": "hang"})
            assert status == 504 and answer["summary"]["precision"] is None and answer["summary"]["not_judged"] == 1
            assert answer["error"] == "nothing could be judged: timeout: no answer within 0.5 s"
            assert verify(server.address, {"completion": "good"})[0] == 200
        assert hanging.calls == 2 and len(server.queue.guard.hanging) <= 1


def test_a_verifier_that_cannot_be_ended_is_not_called_for_ever():
    hanging = Hanging(ends=False)
    with running(hanging, timeout=0.3) as server:
        assert [verify(server.address, {"completion": "hang"})[0] for _ in range(4)] == [504, 504, 503, 503]
        assert hanging.calls == 2
        assert call(server.address, "GET", "/v1/health")[0] == 503
        hanging.release.set()
        while server.queue.hangs:
            time.sleep(0.01)
        assert verify(server.address, {"completion": "good"})[0] == 200


def test_who_waits_too_long_is_told():
    gated = Gated()
    with running(gated, timeout=0.5) as server, ThreadPoolExecutor(2) as clients:
        first = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        second = clients.submit(verify, server.address, ROW)
        statuses = {first.result()[0], second.result()[0]}
        gated.gate.set()
        assert statuses <= {503, 504} and 504 in statuses


def test_more_requests_than_may_wait_are_refused_at_once():
    gated = Gated()
    with running(gated, max_requests=3) as server, ThreadPoolExecutor(3) as clients:
        taken = [clients.submit(verify, server.address, ROW) for _ in range(3)]
        while server.server.border._requests < 3:
            time.sleep(0.01)
        status, answer, headers = verify(server.address, ROW)
        assert status == 503 and headers["retry-after"] == "1" and "3 requests" in answer["error"]
        assert call(server.address, "GET", "/v1/health")[0] == 200
        gated.gate.set()
        assert [done.result()[0] for done in taken] == [200] * 3


def test_what_nobody_waits_for_is_not_judged():
    gated = Gated()
    with running(gated) as server, ThreadPoolExecutor(1) as clients:
        first = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                verify(server.address, ROW, timeout=0.1)
        while server.queue._waiting:
            time.sleep(0.01)
        gated.gate.set()
        assert first.result()[0] == 200 and verify(server.address, ROW)[0] == 200
    assert gated.sizes == [1, 1]


def test_requests_in_flight_are_answered_when_the_server_ends():
    gated = Gated()
    with running(gated) as server, ThreadPoolExecutor(4) as clients:
        judged = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        waiting = [clients.submit(verify, server.address, ROW) for _ in range(3)]
        while len(server.queue._waiting) < 3:
            time.sleep(0.01)
        server.server.should_exit = True
        refused = [done.result() for done in waiting]
        gated.gate.set()
        assert [(status, answer) for status, answer, _ in refused] == [(503, {"error": "the server is ending"})] * 3
        assert judged.result()[0] == 200


def test_a_call_that_outlasts_the_end_is_refused(monkeypatch):
    monkeypatch.setattr("hf_factuality.server.http.GRACE", 0.2)
    gated = Gated()
    with running(gated) as server, ThreadPoolExecutor(1) as clients:
        judged = clients.submit(verify, server.address, ROW)
        while not gated.entered:
            time.sleep(0.01)
        server.server.should_exit = True
        assert judged.result()[:2] == (503, {"error": "the server is ending"})
        gated.gate.set()


def test_the_key_guards_all_but_health():
    key = "k" * 32
    with running(load_verifier("lexical"), key=key) as server:
        for headers in ({}, {"Authorization": "Bearer " + "k" * 31}, {"Authorization": f"Basic {key}"}):
            for method, path in (("POST", "/v1/verify"), ("POST", "/mcp"), ("GET", "/v1/verifiers"), ("GET", "/x")):
                status, answer, given = call(server.address, method, path, "{}", headers)
                assert status == 401 and given["www-authenticate"] == "Bearer" and key[:31] not in json.dumps(answer)
        assert call(server.address, "GET", "/v1/health")[0] == 200
        assert verify(server.address, ROW, headers={"Authorization": f"Bearer {key}"})[0] == 200


def test_other_names_of_the_server_are_taken_only_if_they_are_given():
    with running(load_verifier("lexical"), hosts=["judge.example"]) as server:
        port = server.address.rpartition(":")[2]
        for host, status in (("judge.example", 200), (f"localhost:{port}", 200), ("evil.example", 421)):
            assert call(server.address, "GET", "/v1/health", headers={"Host": host})[0] == status
        for origin, status in (("https://judge.example", 200), ("https://evil.example", 403), ("null", 403)):
            assert call(server.address, "GET", "/v1/health", headers={"Origin": origin})[0] == status


def test_fifty_clients_at_once_each_get_their_own_answer(lexical):
    texts = [f"Person {n} was born in {1900 + n}. Person {n} lives in Ulm." for n in range(50)]
    rows = [
        {"completion": text, "evidence": [f"Person {n} was born in {1900 + n % 7}.", f"Person {n} lives in Ulm."]}
        for n, text in enumerate(texts)
    ]
    start = threading.Barrier(50)

    def client(row):
        start.wait()
        return verify(lexical.address, row)

    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(client, rows))
    assert [status for status, *_ in answers] == [200] * 50
    for (_, answer, _), row in zip(answers, rows, strict=True):
        assert_same(answer, [row])
