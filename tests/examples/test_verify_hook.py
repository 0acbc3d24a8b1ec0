"""The hook decides on what agents send, and lets them go on where it cannot ask."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


HOOK = REPOSITORY / "examples" / "hooks" / "verify_hook.py"
WRONG, RIGHT, READ = "Ulm lies on the Rhine.", "Ulm lies on the Danube.", "Ulm lies on the Danube."


def run(hook, *flags, **environment):
    """The decision, and what is on the error stream."""
    env = {name: value for name, value in os.environ.items() if name != "HF_FACTUALITY_SERVER_KEY"} | environment
    text = hook if isinstance(hook, bytes) else json.dumps(hook).encode()
    done = subprocess.run([sys.executable, HOOK, *flags], input=text, capture_output=True, env=env, timeout=120)
    assert done.returncode == 0
    return json.loads(done.stdout), done.stderr.decode()


def transcript(path, answer, *results, tail=b""):
    """As Claude Code writes it."""
    lines = [
        {"type": "summary", "summary": "x"},
        {"type": "user", "message": {"role": "user", "content": "Where is Ulm?"}},
        {"type": "assistant", "message": {"role": "assistant", "content": [
            {"type": "thinking", "thinking": WRONG}, {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "1", "name": "Read", "input": {"file_path": "ulm.txt"}}]}},
        *({"type": "user", "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": result}]}} for result in results),
        {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": answer}]}},
        {"type": "assistant", "message": {"role": "assistant", "content": [
            {"type": "tool_use", "id": "2", "name": "Read", "input": {}}]}},
    ]  # fmt: skip
    path.write_bytes(b'cut off"}\n' + b"".join(json.dumps(line).encode() + b"\n" for line in lines) + tail)
    return str(path)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("mcp")
    from hf_factuality import load_verifier
    from tests.server.running import running

    with running(load_verifier("lexical"), key="k" * 32) as server:
        yield server.address


def ask(server, hook):
    decision, told = run(hook, "--server", server, HF_FACTUALITY_SERVER_KEY="k" * 32)
    assert told == ""
    return decision


@pytest.mark.parametrize("form", ["text", "blocks"])
def test_an_answer_that_tools_contradict_is_sent_back(server, tmp_path, form):
    result = READ if form == "text" else [{"type": "text", "text": READ}, {"type": "image", "source": {}}]
    hook = {"hook_event_name": "Stop", "transcript_path": transcript(tmp_path / "t.jsonl", WRONG, "[]", result)}
    decision = ask(server, hook)
    assert decision["decision"] == "block" and f'"{WRONG}" (evidence: "' in decision["reason"]
    assert "\n" not in decision["reason"]
    # The agent has been sent back once: it is told, and may stop.
    assert set(ask(server, {**hook, "stop_hook_active": True})) == {"systemMessage"}
    assert ask(server, {**hook, "last_assistant_message": RIGHT}) == {}


def test_an_answer_that_tools_support_passes(server, tmp_path):
    path = transcript(tmp_path / "t.jsonl", RIGHT, READ, tail=b'{"half')
    assert ask(server, {"hook_event_name": "Stop", "transcript_path": path}) == {}


def test_the_result_of_the_tool_that_has_just_run(server, tmp_path):
    path = transcript(tmp_path / "t.jsonl", WRONG)
    hook = {"hook_event_name": "PostToolUse", "transcript_path": path, "tool_name": "Read"}
    for response in (READ, {"type": "text", "file": {"content": READ}}, [{"type": "text", "text": READ}]):
        decision = ask(server, {**hook, "tool_response": response})
        assert decision["hookSpecificOutput"]["hookEventName"] == "PostToolUse"
        assert WRONG in decision["hookSpecificOutput"]["additionalContext"]


def test_texts_that_are_long_or_half_a_character(server, tmp_path):
    results = ["乌尔姆" * 5000] * 40 + ["\ud800\n" + READ]
    path = transcript(tmp_path / "t.jsonl", WRONG + " \udfff", *results)
    assert ask(server, {"hook_event_name": "Stop", "transcript_path": path})["decision"] == "block"
    answer = WRONG + " \ud800"
    assert (
        ask(server, {"hook_event_name": "Stop", "transcript_path": path, "last_assistant_message": answer})["decision"]
        == "block"
    )


def test_what_a_tool_says_of_its_failure_contradicts_nothing(server, tmp_path):
    path = tmp_path / "t.jsonl"
    transcript(path, WRONG, READ)
    path.write_bytes(path.read_bytes().replace(b'"tool_use_id"', b'"is_error": true, "tool_use_id"'))
    assert ask(server, {"hook_event_name": "Stop", "transcript_path": str(path)}) == {}


@pytest.mark.parametrize("evidence", [{"text": READ}, [{"text": READ}], [{"title": "Ulm", "body": READ}], [[READ]]])
def test_evidence_in_objects_is_read(server, evidence):
    assert ask(server, {"completion": WRONG, "evidence": evidence})["decision"] == "block"


def test_the_generic_form(server):
    assert ask(server, {"completion": RIGHT, "evidence": [READ]}) == {"decision": "allow"}
    assert ask(server, {"completion": WRONG, "evidence": READ})["decision"] == "block"


@pytest.mark.parametrize(
    "hook",
    [
        {"hook_event_name": "Stop"},
        {"hook_event_name": "Stop", "transcript_path": "/nowhere"},
        {"hook_event_name": "Stop", "last_assistant_message": WRONG},  # no tool has returned anything
        {"completion": "", "evidence": [READ]},
        {},
    ],
)
def test_where_there_is_nothing_to_check_nobody_is_asked(hook):
    assert run(hook, "--server", "http://127.0.0.1:9") == ({}, "")


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ({"completion": WRONG, "evidence": READ}, "refused"),
        (b"not JSON", "JSONDecodeError"),
        (b"[]", "AttributeError"),
        ({"completion": 3, "evidence": READ}, "AttributeError"),
    ],
)
def test_it_fails_open_in_one_line(hook, told):
    decision, line = run(hook, "--server", "http://127.0.0.1:9")
    assert decision == {} and line.startswith("verify_hook: the answer was not checked: ")
    assert told in line and line.count("\n") == 1


def test_a_server_that_refuses_fails_open(server):
    decision, line = run({"completion": WRONG, "evidence": READ}, "--server", server)
    assert decision == {} and "401" in line and line.count("\n") == 1


@pytest.mark.slow
def test_with_the_library():
    flags = ("--verifier", "lexical")
    environment = {"PYTHONPATH": str(REPOSITORY)}
    assert run({"completion": WRONG, "evidence": READ}, *flags, **environment)[0]["decision"] == "block"
