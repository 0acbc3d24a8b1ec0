"""Conversations with tools: thirty of five shapes, their turns and evidence written down by hand, and what is refused."""

import copy
import json
import random
from pathlib import Path

import pytest

from hf_factuality.errors import DataError
from hf_factuality.io.rows import read_rows
from hf_factuality.io.tool_results import read_result
from hf_factuality.io.transcripts import passages_before, read_transcript
from tests.conftest import searched


FOLDER = Path(__file__).resolve().parents[1] / "cases" / "transcripts"
SHAPES = ("openai", "anthropic", "transformers", "langchain", "inspect")


def cases():
    for shape in SHAPES:
        found = json.loads((FOLDER / f"{shape}.json").read_text(encoding="utf-8"))
        if shape == "inspect":
            found = [{"row": row, **it} for row, it in zip(found["log"]["samples"], found["expected"], strict=True)]
        for case in found:
            yield pytest.param(case, id=f"{shape}: {case['about'][:50]}")


def test_there_are_six_of_each_shape():
    assert len(list(cases())) == 30 == 6 * len(SHAPES)


@pytest.mark.parametrize("case", cases())
def test_turns_and_their_evidence(case):
    row = case["row"]
    found = read_transcript(row["messages"], "a.jsonl, line 1", row.get("documents"), sample="epoch" in row)
    # The column of evidence is joined by who reads the row.
    own = row.get("evidence", [])
    turns = [
        {
            "text": turn.text,
            "question": turn.question,
            "message": turn.message,
            "evidence": own + [it.text for it in turn.passages],
            "from": ["evidence"] * len(own) + [it.source for it in turn.passages],
        }
        for turn in found.turns
    ]
    assert turns == case["turns"]
    assert [turn.number for turn in found.turns] == list(range(1, len(turns) + 1))
    expected = {name: case.get(name, 0) for name in ("failed", "without_text", "echoed")}
    assert expected == {name: getattr(found, name) for name in expected}


def test_a_log_is_read_by_its_samples(tmp_path):
    log = json.loads((FOLDER / "inspect.json").read_text(encoding="utf-8"))["log"]
    path = tmp_path / "2026-03-02_assistant.json"
    for indent in (None, 2):
        path.write_text(json.dumps(log, indent=indent), encoding="utf-8")
        assert list(read_rows(path)) == list(enumerate(log["samples"]))
    path.write_text(json.dumps({**log, "samples": None}, indent=2), encoding="utf-8")
    with pytest.raises(DataError, match="a log of Inspect without samples"):
        list(read_rows(path))
    (tmp_path / "a.eval").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="`inspect log convert`"):
        list(read_rows(tmp_path / "a.eval", any_name=True))


def test_one_conversation_over_several_lines_is_a_row(tmp_path):
    path = tmp_path / "a.json"
    for text, rows in (
        ('{\n "messages": [],\n "a": 1\n}', [(0, {"messages": [], "a": 1})]),
        ('{"a": 1}\n{"a": 2}', [(1, {"a": 1}), (2, {"a": 2})]),
        ('{"samples": [1], "a": 1}', [(1, {"samples": [1], "a": 1})]),
        ('\ufeff\n{"messages":\n[]}', [(0, {"messages": []})]),
    ):
        path.write_text(text, encoding="utf-8")
        assert list(read_rows(path)) == rows
    for text in ('{"a": 1,\n"b"}', '{\n"a": 1}', '{\n"messages": 1}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="line 1 is not JSON"):
            list(read_rows(path))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Hello."}],
        [{"role": "assistant", "content": "Hello.", "tool_calls": []}],
    ],
)
def test_a_plain_chat_is_none(messages):
    assert read_transcript(messages, "line 1") is None
    assert len(read_transcript(messages, "line 1", sample=True).turns) == 1


def test_a_tool_of_the_server_has_its_result_in_the_call():
    """As Inspect writes it: a block with both."""
    ran = {"type": "tool_use", "tool_type": "web_search", "id": "1", "name": "search", "arguments": '{"q": "Ulm"}'}
    content = [
        {"type": "text", "text": "Let me see."},
        {**ran, "result": '[{"title": "Ulm", "url": "u"}]', "error": None},
        {"type": "text", "text": "Ulm."},
        {**ran, "result": "", "error": "rate limit"},
        {"type": "text", "text": "Again."},
    ]
    found = read_transcript([{"role": "assistant", "content": content}], "line 1")
    assert [(turn.text, [it.text for it in turn.passages]) for turn in found.turns] == [
        ("Let me see.", []),
        ("Ulm.", ["title: Ulm; url: u"]),
        ("Again.", ["title: Ulm; url: u"]),
    ]
    assert found.failed == 1


TOOL = {"role": "tool", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("[{}]", "must be a list of messages, each with role and content; it is text, so decode it with json.loads"),
        ({"messages": []}, "so give the list under 'messages'"),
        ({"role": "user", "content": "x"}, "give a list, also of one message"),
        (3, "must be a list of messages"),
        ([[TOOL]], r"messages\[0\] is a list; give one conversation per row"),
        (["Hi"], r"messages\[0\] is str 'Hi', and must be an object with a role"),
        ([TOOL, None], r"messages\[1\] is NoneType"),
        ([{"from": "human", "value": "Hi"}], "shape of ShareGPT .*rename them to role and content"),
        ([{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "model", "parts": []}], "shape of Gemini"),
        (
            [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c", "output": "3"}],
            r"messages\[1\] is an item of OpenAI's Responses API \(type 'function_call_output'\)",
        ),
        ([{"role": "user", "content": [{"toolResult": {"toolUseId": "1"}}]}], "Amazon Bedrock's Converse"),
        ([TOOL, {"role": "bot", "content": "x"}], r"messages\[1\] has the role 'bot'; write one of user, assistant"),
        ([{"content": "x"}], r"messages\[0\] has neither 'role' nor a LangChain 'type' \(keys \['content'\]\)"),
        ([{"type": "remove", "id": "1"}], r"has the type 'remove'"),
        ([{"lc": 1, "type": "not_implemented", "id": ["a"]}], "serialised LangChain object without 'kwargs'"),
        ([{"role": "tool", "tool_call_id": "c"}], "is the result of a tool and has no 'content'"),
        ([{"role": "assistant", "tool_calls": {"name": "f"}}], r"messages\[0\]: 'tool_calls' must be a list of calls"),
        ([{"role": "assistant", "tool_calls": ["f"]}], r"messages\[0\]: a tool call must be an object, got 'f'"),
        (
            [TOOL, {"role": "assistant", "content": 3}],
            r"messages\[1\]: 'content' must be text or a list of blocks, got 3",
        ),
        ([TOOL, {"role": "assistant", "content": [3]}], r"messages\[1\]: 'content' must be text or a list of blocks"),
    ],
)
def test_another_shape_is_named_with_the_row_and_the_fix(messages, said):
    with pytest.raises(DataError, match=said) as caught:
        read_transcript(messages, "chats.jsonl, line 7", sample=True)
    assert str(caught.value).startswith("chats.jsonl, line 7") and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ["mcp_call", "custom_tool_call_output", "item_reference", "mcp_list_tools"])
def test_every_item_of_the_responses_api_is_named(kind):
    with pytest.raises(DataError, match=f"is an item of OpenAI's Responses API .type '{kind}'"):
        read_transcript([{"role": "user", "content": "x"}, {"type": kind, "id": "1"}], "line 1", sample=True)


def calls(*made):
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def function(name, said, **more):
    return {"type": "function", "function": {"name": name, "arguments": json.dumps({"q": said})}, **more}


PARIS, ROME = "It is in Paris.", "It is in Rome."


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        # Ids on one side only, empty, or none and another order: the name of the tool says whose result it is.
        ([calls(function("f", PARIS, id="a")), {"role": "tool", "name": "f", "content": PARIS}], 1),
        ([calls(function("f", PARIS, id="")), {"role": "tool", "tool_call_id": "", "content": PARIS}], 1),
        (
            [
                calls(function("f", PARIS), function("g", ROME)),
                {"role": "tool", "name": "g", "content": ROME},
                {"role": "tool", "tool_name": "f", "content": PARIS},
            ],
            2,
        ),
        # A call that nobody answered is not the one that the next message's result answers.
        ([calls(function("f", ROME)), calls(function("f", PARIS)), {"role": "tool", "content": PARIS}], 1),
        (
            [
                calls({"id": "a", "type": "custom", "custom": {"name": "sh", "input": f"echo {PARIS}"}}),
                {"role": "tool", "tool_call_id": "a", "content": PARIS},
            ],
            1,
        ),
        (
            [
                {"type": "ai", "content": "", "additional_kwargs": {"tool_calls": [function("f", PARIS, id="a")]}},
                {"type": "tool", "tool_call_id": "a", "content": PARIS},
            ],
            1,
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": f'<tool_call>{{"name": "f", "arguments": {{"q": "{PARIS}"}}}}</tool_call>',
                },
                {"role": "tool", "content": PARIS},
            ],
            1,
        ),
    ],
)
def test_an_echo_is_found_whoever_has_the_id(messages, names):
    found = read_transcript([*messages, {"role": "assistant", "content": PARIS}], "line 1")
    assert found.echoed == names
    assert [(turn.text, turn.passages) for turn in found.turns] == [(PARIS, ())]


def test_a_call_in_the_text_is_no_statement():
    said = "I look it up.\n<tool_call>\n<function=f>\n<parameter=q>Ulm</parameter>\n</function>\n</tool_call>"
    messages = [{"role": "assistant", "content": said}, {"role": "tool", "content": "x"}]
    assert [turn.text.strip() for turn in read_transcript(messages, "line 1").turns] == ["I look it up."]


def test_a_page_that_a_server_fetched_is_read_as_a_document():
    def page(source):
        content = {"type": "document", "title": "Ulm", "source": source}
        found = {"type": "web_fetch_result", "url": "https://x", "content": content}
        return [{"role": "assistant", "content": [{"type": "web_fetch_tool_result", "content": found}, "Ulm."]}]

    found = read_transcript(page({"type": "text", "media_type": "text/plain", "data": "Ulm lies."}), "line 1")
    assert [it.text for it in found.turns[0].passages] == ["Ulm\nUlm lies."]
    found = read_transcript(page({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}), "line 1")
    assert (found.turns[0].passages, found.without_text) == ((), 1)


def test_words_of_an_answer_in_sound_are_a_turn():
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Ulm."}}
    assert [turn.text for turn in read_transcript([TOOL, spoken], "line 1").turns] == ["Ulm."]


def test_documents_of_another_shape_are_named():
    with pytest.raises(DataError, match=r"line 1, documents\[1\] has no text; .* got {'id': 3}"):
        read_transcript([TOOL], "line 1", ["a", {"id": 3}])


@pytest.mark.parametrize(
    ("given", "passages"),
    [
        ("", []),
        (None, []),
        ("  A plain text.\n", ["A plain text."]),
        ("{not JSON}", ["{not JSON}"]),
        ("42", ["42"]),
        (4.5, ["4.5"]),
        ({}, []),
        ("[]", []),
        ('["a", "b", 3]', ["a, b, 3"]),
        ('{"birthDate": "1815", "is_alive": false, "note": null}', ["birth date: 1815; is alive: no"]),
        ({"France": "Paris", "GDP": 3.1}, ["France: Paris; GDP: 3.1"]),
        ({"a": {"b": {"c": 1}}}, ["a b c: 1"]),
        ({"results": [{"x": 1}, {"x": 2}], "total": 2}, ["total: 2", "x: 1", "x: 2"]),
        ({"forecast": [{"day": "Mon", "high": 21}]}, ["forecast: day: Mon; high: 21"]),
        ({"false_claims": ["Bats are blind animals, it says."]}, ["false claims: Bats are blind animals, it says."]),
        ({"title": "T", "text": "Bats see well at night."}, ["title: T\nBats see well at night."]),
        ({"text": "ok"}, ["text: ok"]),
        ([[1, 2], [3]], ["1, 2", "3"]),
        ({"error": None, "data": [1]}, ["data: 1"]),
        ({"error": "partly", "data": [{"x": 1}]}, ["error: partly", "x: 1"]),
        ({"content": [{"type": "text", "text": '{"x": 1}'}], "isError": False}, ["x: 1"]),
        ([{"type": "text", "text": "a"}, "b"], ["a", "b"]),
        ([{"type": "cafe", "name": "Mo"}], ["type: cafe; name: Mo"]),
        ("Error rates rose in 2024.", ["Error rates rose in 2024."]),
        ({"error": 0.05, "mean": 3.2}, ["error: 0.05; mean: 3.2"]),
        ({"status": "failed", "name": "build 7"}, ["status: failed; name: build 7"]),
        ({"success": False, "score": 3}, ["success: no; score: 3"]),
        ("[" * 100_000, ["[" * 100_000]),
    ],
)
def test_results_become_readable(given, passages):
    found = read_result(given)
    assert (found.passages, found.failed) == (passages, False)


@pytest.mark.parametrize(
    "given",
    [
        '{"error": "no such city: Paris has 2 million inhabitants"}',
        {"error": {"message": "x"}, "status": 500, "data": []},
        {"content": [{"type": "text", "text": "x"}], "isError": True},
        "Error: ToolException('x')\n Please fix your mistakes.",
        "requests.exceptions.ConnectionError: x",
        "Traceback (most recent call last):\n  File",
        "Error executing tool search: x",
        [{"type": "text", "text": "KeyError: 'x'"}],
        '{"status": "error", "message": "Paris has 2 million inhabitants: no such row"}',
        '{"success": false, "message": "no row"}',
        '{"error": "not found", "query": "Paris has 2 million inhabitants"}',
        '{"errorMessage": "x", "errorType": "KeyError"}',
        '{"isError": true, "content": "x"}',
        {"isError": True, "content": [], "structuredContent": {"population": "2 million"}},
        "error: no such file",
        "fatal: not a git repository",
        "Error 404: not found",
        "TimeoutError",
        "<tool_use_error>File does not exist</tool_use_error>",
    ],
)
def test_a_failure_is_no_evidence(given):
    found = read_result(given)
    assert (found.passages, found.failed) == ([], True)


def test_deep_results_end_somewhere():
    deep = {}
    for _ in range(2000):
        deep = {"a": deep}
    assert read_result(deep).passages == []


JUNK = [None, 3, "x", "", [], {}, [None], [3], [[]], {"a": 1}, True, float("nan"), "[1]", {"type": []}, {"role": 3}]
JUNK += [[{"type": "tool_result"}], [{"type": "text", "text": None}], [{"text": 3}], {"lc": 1, "kwargs": {"type": {}}}]


def broken(value, chance):
    """A copy with parts that are missing or something else."""
    if chance.random() < 0.03:
        return copy.deepcopy(chance.choice(JUNK))
    if isinstance(value, dict):
        return {key: broken(it, chance) for key, it in value.items() if chance.random() > 0.02}
    return [broken(it, chance) for it in value] if isinstance(value, list) else value


@searched(2000, 60_000)
def test_whatever_is_broken_is_read_or_named(count):
    chance, rows = random.Random(7), [case.values[0]["row"] for case in cases()]
    refused = 0
    for _ in range(count):
        row = broken(chance.choice(rows), chance)
        if not isinstance(row, dict):
            continue
        try:
            found = read_transcript(row.get("messages"), "line 1", row.get("documents"), sample=chance.random() < 0.5)
        except DataError as error:
            refused += 1
            assert str(error).startswith("line 1") and "\n" not in str(error) and len(str(error)) < 900
            continue
        for turn in found.turns if found else ():
            assert turn.text.strip() and (turn.question is None or turn.question.strip())
            assert all(it.text.strip() and it.source for it in turn.passages)
    assert count / 10 < refused < count


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        ("[1] Vellin is a town.\n[2] Ostry is a river.\nIt is long.", ["Vellin is a town.", "Ostry is a river.\nIt is long."]),
        ("[7] Vellin is a town.", ["Vellin is a town."]),
        ("See [1] Vellin.\n[2] Ostry.", ["See [1] Vellin.\n[2] Ostry."]),  # a text with citations
        ("[1]\n[2] Ostry.", ["[1]\n[2] Ostry."]),
        ("[1, 2]", ["1, 2"]),  # JSON
        ("No passages were found.", []),
    ],
)  # fmt: skip
def test_numbered_results_are_a_passage_each(text, passages):
    assert read_result(text).passages == passages


def test_what_was_known_before_each_message():
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "Vellin is a town."}}}
    messages = [
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
        {"role": "tool", "name": "search", "content": "[1] Vellin is a town.\n[2] Ostry is a river."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "search", "content": '{"error": "down"}'},
        {"role": "assistant", "content": "Ostry is a river."},
    ]
    before, shown = passages_before(messages, "row 1")
    known = [[passage.text for passage in passages] for passages in before]
    assert shown == ["", "Ostry is a river."], "passage 2 stays the second"
    # The first passage only repeats what was asked.
    assert known == [
        [],
        [],
        ["Ostry is a river."],
        ["Ostry is a river."],
        ["Ostry is a river."],
        ["Ostry is a river."],
    ]
    with pytest.raises(DataError, match="row 1"):
        passages_before([{"role": "critic", "content": "a"}], "row 1")
