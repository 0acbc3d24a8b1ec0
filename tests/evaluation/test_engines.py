"""Answers from a file and from a server."""

import json
from types import SimpleNamespace

import pytest

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.engines import FileEngine, Request, ServerEngine
from hf_factuality.evaluation.journal import Journal
from hf_factuality.evaluation.run import answer_items
from hf_factuality.generation.client import ServerError
from hf_factuality.generation.sampling import SamplingConfig
from tests.evaluation.conftest import write_rows
from tests.generation.fake_server import FAST, FakeServer


def item(name, *extra, choices=()):
    return BenchmarkItem(name, ({"role": "user", "content": f"Q{name}"}, *extra), f"Q{name}", choices=choices)


ITEMS = [item("a"), item("b"), item("c")]
GENERATION = SamplingConfig(max_new_tokens=16, top_p=0.9, num_samples=2, seed=5, stop=("END",))


def texts(engine, items):
    found = engine.generate([Request(x) for x in items], SamplingConfig(max_new_tokens=1, seed=0))
    return {request.item.id: None if it.error else it.text for request, it in found}


@pytest.fixture
def joined(tmp_path):
    """Makes an engine of rows, joined with items."""

    def make(rows, items=ITEMS):
        engine = FileEngine(write_rows(tmp_path / "a.jsonl", rows))
        engine.join(items)
        return engine

    return make


@pytest.mark.parametrize("column", ["completion", "answer", "text", "output"])
def test_rows_join_by_id_and_by_order(joined, column):
    by_id = joined([{"id": n, column: n.upper()} for n in "cab"])
    by_order = joined([{column: n.upper()} for n in "abc"])
    assert texts(by_id, ITEMS) == texts(by_order, ITEMS) == {"a": "A", "b": "B", "c": "C"}


def test_missing_and_several_answers(joined):
    engine = joined([{"id": "a", "text": None}, {"id": "b", "text": "B"}])
    assert texts(engine, ITEMS) == {"a": None, "b": "B", "c": None} and engine.samples(ITEMS) == 1
    engine = joined([{"id": n, "completions": ["x", n]} for n in "abc"])
    assert engine.samples(ITEMS) == 2
    assert [it.text for _, it in engine.generate([Request(ITEMS[0], 1)], GENERATION)] == ["a"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([{"question": "?"}], "line 1 has no answer .*completion"),
        ([{"text": 3}], "line 1: an answer is text or null"),
        ([["text"]], "line 1 has no answer"),
        ([{"id": 1, "text": "a"}, {"text": "b"}], "give every row one"),
        ([{"text": "a"}, {"id": "b", "text": "b"}, {"id": "c", "text": "c"}], "give every row one"),
        ([{"id": 1, "text": "a"}, {"id": 1, "text": "b"}], "two rows have the id 1"),
        ([{"id": 7, "text": "a"}], "'7'.*'a'"),
        ([{"text": "a"}], "1 rows and the benchmark 3 items"),
        ([{"id": "a", "completions": ["x"]}, {"id": "b", "completions": ["x", "y"]}], "1 to 2 completions"),
    ],
)
def test_bad_files(joined, rows, message):
    with pytest.raises(DataError, match=message):
        joined(rows).samples(ITEMS)


def test_rows_of_no_item_are_told(tmp_path, caplog):
    engine = FileEngine(write_rows(tmp_path / "a.jsonl", [{"id": n, "text": n} for n in ("a", "bb", "d")]))
    engine.join(ITEMS, sample=True)
    assert not caplog.records
    engine.join(ITEMS)
    assert "a.jsonl: 2 of 3 rows have the id of no item and are not used; the first: 'bb'" in caplog.text


def test_not_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text"\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        FileEngine(tmp_path / "a.jsonl")


def test_log_likelihoods_of_a_file(joined):
    items = [item("a", choices=("x", "y"))]
    engine = joined([{"id": "a", "log_likelihoods": [-1, -2.5]}], items)
    engine.check(items, None)
    assert list(engine.log_likelihoods(items)) == [("a", [-1.0, -2.5])]
    with pytest.raises(DataError, match="a list of 2 numbers"):
        joined([{"id": "a", "log_likelihoods": [-1]}], items).check(items, None)
    with pytest.raises(DataError, match="item 'a': 2.5 is no log-likelihood"):
        joined([{"id": "a", "log_likelihoods": [1, 2.5][::-1]}], items).check(items, None)


def test_server():
    def reply(prompt, body):
        return f"{prompt} says {body['seed']} END and more"

    prefilled = item("p", {"role": "assistant", "content": "<think>"})
    with FakeServer(reply=reply) as server:
        engine = ServerEngine("fake", server.url, template_arguments={"enable_thinking": False}, retry=FAST)
        requests = [Request(x, sample) for x in (*ITEMS, prefilled) for sample in range(2)]
        found = {(one.item.id, one.sample): it.text for one, it in engine.generate(requests, GENERATION)}
        bodies = server.bodies
    assert len(found) == 8 and len(bodies) == 8
    for request in requests:
        prompt = request.item.messages[-1]["content"]
        assert found[request.item.id, request.sample] == f"{prompt} says {request.seed(5)} "
    assert len({body["seed"] for body in bodies}) == 8
    for body in bodies:
        continued = body["messages"][-1]["role"] == "assistant"
        assert body.get("continue_final_message", False) is continued
        assert body.get("add_generation_prompt", True) is not continued
        assert (body["max_tokens"], body["temperature"], body["top_p"], body["stop"]) == (16, 1.0, 0.9, ["END"])
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_server_that_dies_gives_what_it_answered():
    trouble = lambda prompt, count: None if prompt == "Qa" else (429, {"Retry-After": "86400"})  # noqa: E731
    with FakeServer(trouble=trouble, reply=lambda prompt, body: "yes") as server:
        engine = ServerEngine("fake", server.url, concurrency=1, retry=FAST)
        found = []
        with pytest.raises(ServerError):
            for it in engine.generate(
                [Request(x) for x in ITEMS], SamplingConfig(max_new_tokens=16, temperature=0.0, seed=0)
            ):
                found.append(it)
    assert [(request.item.id, it.text) for request, it in found if it.text] == [("a", "yes")]


def test_a_server_is_asked_nothing_twice_after_a_kill(tmp_path, monkeypatch):
    """The journal has each answer as soon as it is there: what is lost is what was under way."""
    task = SimpleNamespace(items=[item(str(n)) for n in range(40)], generation=SamplingConfig(seed=0))
    add, added = Journal.add, []

    def killed(journal, rows):
        add(journal, rows)
        added.append(rows)
        if len(added) == 9:
            raise KeyboardInterrupt

    with FakeServer(reply=lambda prompt, body: f"says {prompt}", delay=0.05) as server:
        engine = ServerEngine("fake", server.url, concurrency=2, retry=FAST)
        journal = Journal(tmp_path / "a.jsonl", {})
        monkeypatch.setattr(Journal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            answer_items(engine, task, journal)
        monkeypatch.undo()
        journal.close()
        again = Journal(tmp_path / "a.jsonl", {})
        assert len(again.answers) == 9
        answer_items(ServerEngine("fake", server.url, concurrency=2, retry=FAST), task, again)
        assert {name: it["completions"][0]["text"] for name, it in again.answers.items()} == {
            str(n): f"says Q{n}" for n in range(40)
        }
        assert all(server.received[f"Q{name}"] == 1 for name in list(again.answers)[:9])
        assert sum(server.received.values()) <= 40 + 2 * 2


def test_a_rejected_request_is_missing():
    trouble = lambda prompt, count: 400 if prompt == "Qb" else None  # noqa: E731
    with FakeServer(trouble=trouble, reply=lambda prompt, body: "yes") as server:
        engine = ServerEngine("fake", server.url, retry=FAST)
        asked = engine.generate(
            [Request(x) for x in ITEMS], SamplingConfig(max_new_tokens=16, temperature=0.0, seed=0)
        )
        found = {request.item.id: it for request, it in asked}
    assert {name: it.text for name, it in found.items() if not it.error} == {"a": "yes", "c": "yes"}
    assert "400" in found["b"].error


def test_seeds_are_of_the_item_alone():
    first = Request(ITEMS[0]).seed(0)
    assert first == Request(item("a", {"role": "assistant", "content": "x"})).seed(0)
    others = [Request(ITEMS[1]).seed(0), Request(ITEMS[0], 1).seed(0), Request(ITEMS[0]).seed(1)]
    assert len({first, *others}) == 4 and all(0 <= seed < 2**31 for seed in (first, *others))
    assert json.dumps(first)
