"""A judge that is a language model on another server, behind `hf-factuality serve`."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import hf_factuality
from hf_factuality.verifiers import load_verifier
from tests.generation.fake_server import PROBE, FakeServer
from tests.server.running import call, process, verify


pytest.importorskip("mcp")

KEY = "secret-of-the-judge"


def judged(prompt, body):
    """True what names Leeds; no verdict for what names York."""
    said = json.dumps(body["messages"])  # of which the last may ask again
    return "supported" if "Leeds" in said else "perhaps" if "York" in said else "contradicted"


def rows(count):
    towns = ("Leeds", "Bath", "York")
    return [
        {"id": at, "completion": f"Ada {at} was born in {towns[at % 3]}.", "evidence": ["Ada was born in the town."]}
        for at in range(count)
    ]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The address of a server whose judge is `fake`, made with these settings."""
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))

    def start(fake, *flags):
        environment = {"HF_FACTUALITY_CACHE": str(tmp_path / "of-server"), "HF_FACTUALITY_API_KEY": KEY}
        return process("--verifier", "llm:fake", "--verifier_base_url", fake.url, *flags, environment=environment)

    return start


@pytest.mark.slow
def test_thirty_clients_get_what_verify_says(served, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", KEY)
    with FakeServer(judged, key=KEY, delay=0.05) as fake, served(fake) as (_, address):
        with ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(lambda row: verify(address, row), rows(60)))
        direct = hf_factuality.verify(rows(60), verifier=load_verifier("llm:fake", base_url=fake.url))
    assert [status for status, *_ in answers] == [200] * 60
    found = [answer["rows"][0] for _, answer, _ in answers]
    assert [row["id"] for row in found] == list(range(60))
    labels = [[span["label"] for span in row["verification"]["spans"]] for row in found]
    assert labels == [["supported"], ["contradicted"], [None]] * 20
    assert labels == [[span.label for span in row.verification.spans] for row in direct.rows]
    assert KEY not in json.dumps([answer for _, answer, _ in answers])


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [500, "garbage", 401])
def test_a_judge_that_fails_is_no_verdict_and_says_so(served, trouble):
    with FakeServer(judged, trouble=lambda prompt, count: None if prompt == PROBE else trouble) as fake:
        with served(fake, "--request_timeout", "20") as (_, address):
            begun = time.monotonic()
            status, answer, _ = verify(address, rows(1)[0], timeout=90)
            assert time.monotonic() - begun < 60
            told = json.dumps(answer)
            assert status == 200
            assert [span["label"] for span in answer["rows"][0]["verification"]["spans"]] == [None]
            assert answer["summary"]["claims"] == {
                "supported": 0,
                "contradicted": 0,
                "unverifiable": 0,
                "not_judged": 1,
            }
            assert KEY not in told and "Traceback" not in told
            assert call(address, "GET", "/v1/health")[0] == 200
