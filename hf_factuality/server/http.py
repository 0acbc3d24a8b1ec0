"""The HTTP side: what may come in, the routes, and how the server ends."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hf_factuality import __version__
from hf_factuality.server.messages import (
    RefusedRequest,
    RequestLimits,
    RequestRow,
    RequestRows,
    VerifyAnswer,
    read_request,
    to_judge,
)
from hf_factuality.server.queue import JudgedRequest, JudgingQueue
from hf_factuality.server.tools import mcp_server


logger = logging.getLogger(__name__)

HEALTH = "/v1/health"
MCP = "/mcp"
BODY_SECONDS = 10.0
"""Seconds for the head of a request, and for its body."""
GRACE = 8.0
"""Seconds that requests have to be answered once the server is told to end."""
MAX_CONNECTIONS = 512
_DISCARD_SECONDS = 2.0  # for which a body that is too large is read on, so that its sender gets to read the answer
_OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def security(hosts: Sequence[str], loopback: bool) -> TransportSecuritySettings:
    """Which values of `Host` and `Origin` are taken: a web page must not reach a server of this machine by a name of its own.

    A server elsewhere has a key, which a web page does not know; it takes any host unless `hosts` are named.
    """
    named = [*hosts, *(_OWN_HOSTS if loopback or hosts else ())]
    allowed = [form for host in named for form in (host, f"{host}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in allowed]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(named), allowed_hosts=allowed, allowed_origins=origins
    )


class Border:
    """ASGI middleware, outermost: host, key, number of requests, and a body that is read whole, in bounded size and time."""

    def __init__(
        self, app: ASGIApp, hosts: TransportSecuritySettings, key: str | None, max_requests: int, max_body_bytes: int
    ):
        self.app, self.key, self.max_requests, self.max_body_bytes = app, key, max_requests, max_body_bytes
        self._hosts = TransportSecurityMiddleware(hosts)
        self._requests = 0
        self._reading: set[asyncio.Timeout] = set()
        self._ending = False

    def close(self) -> None:
        """Refuse what comes, and what is not read yet."""
        self._ending = True
        for timeout in self._reading:
            timeout.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope)
        try:
            wrong = await self._hosts.validate_request(request)
            if wrong is not None:
                raise RefusedRequest(wrong.status_code, bytes(wrong.body).decode())
            self._check_key(request)
            if request.method in ("GET", "HEAD"):
                return await self.app(scope, receive, send)
            if self._ending:
                raise RefusedRequest(503, "the server is ending", 5)
            if self._requests >= self.max_requests:
                raise RefusedRequest(503, f"{self.max_requests} requests are waiting; try again", 1)
            self._requests += 1
            try:
                body = await self._read(request, receive)
                await self.app(scope, _replay(body, receive), send)
            finally:
                self._requests -= 1
        except RefusedRequest as refused:
            response = refusal(refused)
            response.headers["Connection"] = "close"  # its body may not have been read
            await response(scope, receive, send)

    def _check_key(self, request: Request) -> None:
        if self.key is None or request.url.path == HEALTH:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.key.encode()):
            raise RefusedRequest(401, "a key is needed: Authorization: Bearer KEY")

    async def _read(self, request: Request, receive: Receive) -> bytes:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            await _discard(receive)
            raise RefusedRequest(415, "compressed bodies are not taken; send plain JSON")
        declared = request.headers.get("content-length", "0")
        too_large = RefusedRequest(413, f"the body is too large; at most {self.max_body_bytes} bytes")
        body = bytearray()
        more = not (declared.isdecimal() and int(declared) > self.max_body_bytes)
        if not more:
            await _discard(receive)
            raise too_large
        timeout = asyncio.timeout(BODY_SECONDS)
        try:
            async with timeout:
                self._reading.add(timeout)
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedRequest(400, "the body ended early")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.max_body_bytes:
                        break
        except TimeoutError:
            if self._ending:
                raise RefusedRequest(503, "the server is ending", 5) from None
            raise RefusedRequest(408, f"the body took more than {BODY_SECONDS:g} s") from None
        finally:
            self._reading.discard(timeout)
        if len(body) > self.max_body_bytes:
            del body
            if more:
                await _discard(receive)
            raise too_large
        return bytes(body)


async def _discard(receive: Receive) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass


def _replay(body: bytes, receive: Receive) -> Receive:
    read = False

    async def replay() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def refusal(refused: RefusedRequest) -> Response:
    """The answer to a request that gets no verdict."""
    headers = {} if refused.retry_after is None else {"Retry-After": str(refused.retry_after)}
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": refused.message}, refused.status, headers)


def make_app(
    queue: JudgingQueue,
    limits: RequestLimits,
    max_requests: int,
    hosts: TransportSecuritySettings,
    key: str | None,
    with_mcp: bool,
) -> Border:
    """The ASGI application."""

    async def verify(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedRequest(415, "the body must be application/json")
        rows = read_request(await request.body(), limits)
        judged = await _unless_gone(request, queue.judge(to_judge(rows)))
        return JSONResponse(judged.content, judged.status)

    async def health(request: Request) -> Response:
        well = not (queue.hangs or queue.ending)
        return JSONResponse({"status": "ok" if well else "failing", "version": __version__}, 200 if well else 503)

    async def verifiers(request: Request) -> Response:
        guard = queue.guard
        one = {"name": queue.name, "requires_evidence": guard.requires_evidence, "notes": queue.notes}
        bounds = {**vars(limits), "max_requests": max_requests, "request_timeout": queue.timeout}
        return JSONResponse({"verifiers": [one], "limits": bounds})

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    description = openapi_description()
    routes = [
        Route("/v1/verify", verify, methods=["POST"]),
        Route(HEALTH, health, methods=["GET"]),
        Route("/v1/verifiers", verifiers, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
    ]
    tools = None
    if with_mcp:
        tools = mcp_server(queue, limits)
        # Without sessions nothing is kept between requests; answers are JSON, since nothing is streamed.
        mcp_app = tools.streamable_http_app(
            streamable_http_path=MCP,
            json_response=True,
            stateless_http=True,
            max_request_body_size=limits.max_body_bytes,
            transport_security=hosts,
        )
        routes += [
            Route(MCP, route.endpoint, methods=["POST"]) for route in mcp_app.routes if isinstance(route, Route)
        ]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with tools.session_manager.run() if tools else contextlib.nullcontext():
            yield

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedRequest)
        return refusal(error)

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": HTTPStatus(error.status_code).phrase.lower()}, error.status_code, error.headers)

    def bug(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "internal error; see the server's log"}, 500)

    handlers: dict[Any, Callable[[Request, Exception], Response]] = {
        RefusedRequest: refused,
        HTTPException: http_error,
        Exception: bug,
    }
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Border(app, hosts, key, max_requests, limits.max_body_bytes)


async def _unless_gone(request: Request, judging: Coroutine[Any, Any, JudgedRequest]) -> JudgedRequest:
    """What is judged, unless the client closes the connection before: nobody would read it."""
    task, gone = asyncio.ensure_future(judging), asyncio.ensure_future(request.receive())  # its body has been read
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedRequest(400, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def openapi_description() -> dict[str, Any]:
    """The OpenAPI document, from the classes that read requests."""
    models = (RequestRow, RequestRows, VerifyAnswer)
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )

    def holds(*names: str) -> dict[str, Any]:
        refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
        return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"oneOf": refs}}}

    plain = {"content": {"application/json": {"schema": {"type": "object"}}}}
    refused = {
        str(status): {"description": HTTPStatus(status).phrase, **plain}
        for status in (400, 401, 408, 413, 415, 422, 503)
    }
    failed = {
        str(status): {
            "description": "nothing could be judged; counts are of what is unknown",
            "content": holds("VerifyAnswer"),
        }
        for status in (502, 504)
    }
    verify = {
        "summary": "Label the sentences of one completion, or of several",
        "requestBody": {"required": True, "content": holds("RequestRow", "RequestRows")},
        "responses": {"200": {"description": "judged", "content": holds("VerifyAnswer")}, **refused, **failed},
    }

    def get(summary: str) -> dict[str, Any]:
        return {"get": {"summary": summary, "responses": {"200": {"description": "ok", **plain}}}}

    return {
        "openapi": "3.1.0",
        "info": {"title": "hf_factuality", "version": __version__},
        "paths": {
            "/v1/verify": {"post": verify},
            HEALTH: get("Whether requests are taken"),
            "/v1/verifiers": get("The verifier and the largest request"),
        },
        "components": {
            "schemas": found["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Connection(H11Protocol):
    """Closes connections whose next request does not arrive whole up to its body: uvicorn would wait for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        elif waits and self._deadline is None:
            self._deadline = self.loop.call_later(BODY_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._deadline = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class FactualityServer(uvicorn.Server):
    """Tells the queue that it ends, so that every request in flight is answered or refused."""

    def __init__(self, app: Border, queue: JudgingQueue, on_start: Callable[[], None]):
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(GRACE) + 2,
        )
        super().__init__(config)
        self.border, self.queue, self.on_start = app, queue, on_start

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_start()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self.border.close()
        self.queue.close(GRACE)
        await super().shutdown(sockets)
