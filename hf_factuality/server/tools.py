"""The MCP side: the tool `verify_text`, which asks the same queue as HTTP."""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field, ValidationError

from hf_factuality import __version__
from hf_factuality.server.messages import RefusedRequest, RequestLimits, RequestRow, VerifyAnswer, check_size, to_judge
from hf_factuality.server.queue import JudgingQueue


_WHAT = (
    "Check a text against evidence, sentence by sentence: which statements the evidence supports, contradicts or does not "
    "mention. Give it what you are about to say and the passages that it rests on, such as results of tools. Labels: supported, "
    "contradicted, unverifiable (not in the evidence), no_fact, and null where judging failed."
)


def mcp_server(queue: JudgingQueue, limits: RequestLimits) -> MCPServer:
    """The MCP server, with its tool."""
    # Nothing here changes, so there is nothing to subscribe to, and no stream that stays open.
    server: MCPServer = MCPServer("hf_factuality", version=__version__, log_level="WARNING", subscriptions=False)

    @server.tool(description=_WHAT, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    async def verify_text(
        completion: Annotated[str, Field(description="The text to check.")],
        evidence: Annotated[list[str], Field(description="Passages to check it against.")],
        question: Annotated[str | None, Field(description="What was asked.")] = None,
    ) -> VerifyAnswer:
        try:
            rows = [RequestRow(completion=completion, evidence=evidence, question=question)]
            check_size(rows, limits)
            judged = await queue.judge(to_judge(rows))
        except RefusedRequest as refused:
            raise ToolError(refused.message) from None
        except ValidationError:
            raise ToolError("a text holds half of a surrogate pair") from None
        if "error" in judged.content:
            raise ToolError(judged.content["error"])
        return VerifyAnswer.model_validate(judged.content)

    return server
