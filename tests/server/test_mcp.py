"""The tool over MCP, asked by the library's own client."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest


pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from hf_factuality import load_verifier
from tests.server.running import REPOSITORY, call, running
from tests.server.test_http import ROW, ROWS, assert_same
from tests.server.verifiers import Failing


def arguments(row):
    evidence = row["evidence"]
    return {**row, "evidence": [evidence] if isinstance(evidence, str) else evidence}


async def ask(server, *calls, mode="auto"):
    """The tools of a server, and the results of calls of the first, all at once."""
    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        return tools, await asyncio.gather(*(client.call_tool(tools[0].name, each) for each in calls))


def text_of(result):
    assert result.is_error
    (content,) = result.content
    return content.text


@pytest.fixture(scope="module")
def lexical():
    with running(load_verifier("lexical")) as server:
        yield server


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tool_answers_as_the_library(lexical, mode):
    tools, results = asyncio.run(ask(f"{lexical.address}/mcp", *map(arguments, ROWS), mode=mode))
    (tool,) = tools
    assert tool.name == "verify_text" and set(tool.input_schema["required"]) == {"completion", "evidence"}
    assert tool.output_schema["required"] == ["rows", "summary", "verifier", "notes"]
    for result, row in zip(results, ROWS, strict=True):
        assert not result.is_error
        assert_same(result.structured_content, [row])
        assert json.loads(result.content[0].text) == result.structured_content


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({**ROW, "evidence": []}, "tested needs evidence, and there is none"),
        ({**ROW, "evidence": ["x"] * 1001}, "evidence has 1001 passages; at most 1000"),
        ({**ROW, "evidence": ["x"], "completion": "x" * 50_001}, "completion has 50001 characters; at most 50000"),
        ({**ROW, "evidence": ["x"], "completion": "Ulm is. " * 501}, "completion has 501 sentences; at most 500"),
        ({"evidence": ["x"]}, "completion"),
        ({"completion": None, "evidence": ["x"]}, "completion"),
        ({"completion": "x", "evidence": [{"text": "x"}]}, "evidence"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(lexical, given, told):
    _, (result, good) = asyncio.run(ask(f"{lexical.address}/mcp", given, arguments(ROW)))
    assert told in text_of(result) and "/work" not in text_of(result) and not good.is_error


def test_a_verifier_that_fails_is_an_error_and_no_score():
    with running(Failing()) as server:
        _, (result,) = asyncio.run(ask(f"{server.address}/mcp", arguments(ROW)))
    assert text_of(result).endswith("nothing could be judged: the verifier failed (RuntimeError)")


def test_the_key_is_needed():
    async def with_key(address, key):
        async with create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as http:
            return await ask(streamable_http_client(address, http_client=http), arguments(ROW))

    with running(load_verifier("lexical"), key="k" * 32) as server:
        _, (result,) = asyncio.run(with_key(f"{server.address}/mcp", "k" * 32))
        assert not result.is_error
        with pytest.raises(BaseException) as refused:
            asyncio.run(with_key(f"{server.address}/mcp", "l" * 32))
        assert not isinstance(refused.value, (KeyboardInterrupt, AssertionError))


def test_without_mcp_there_is_no_such_path():
    with running(load_verifier("lexical"), mcp=False) as server:
        assert call(server.address, "POST", "/mcp", "{}")[0] == 404


@pytest.mark.slow
def test_over_standard_input_and_output(tmp_path):
    """Also with a verifier whose module prints, which must not reach the protocol."""
    (tmp_path / "printing.py").write_text(
        "from hf_factuality import LexicalVerifier\n\nprint('loading')\n\n\nclass Printing(LexicalVerifier):\n"
        "    def verify(self, inputs):\n        print('judging')\n        return super().verify(inputs)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}"}
    for verifier in ("lexical", "printing:Printing"):
        flags = ["-m", "hf_factuality", "serve", "--mcp", "stdio", "--verifier", verifier]
        server = StdioServerParameters(command=sys.executable, args=flags, env=env, cwd=REPOSITORY)
        tools, results = asyncio.run(ask(server, *map(arguments, ROWS)))
        assert [tool.name for tool in tools] == ["verify_text"]
        for result, row in zip(results, ROWS, strict=True):
            assert_same(result.structured_content, [row])


@pytest.mark.slow
def test_ctrl_c_ends_a_server_on_standard_input_while_it_judges():
    flags = ["-m", "hf_factuality", "serve", "--mcp", "stdio", "--verifier", "tests.server.verifiers:Slow"]
    started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    called = {"name": "verify_text", "arguments": {"completion": "It is.", "evidence": ["x"]}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": started},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": called},
    ]
    with subprocess.Popen(
        [sys.executable, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as server:
        try:
            server.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            server.stdin.flush()
            assert json.loads(server.stdout.readline())["id"] == 1
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == -signal.SIGINT  # its standard input is open still
        finally:
            server.kill()
