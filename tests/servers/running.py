"""Servers as processes that can be killed, and a proxy in front of them that counts."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import aiohttp
from aiohttp import web

from hf_factuality.generation import ChatClient, ScoreClient


PROBES = {client._hello.messages[0][1] for client in (ChatClient, ScoreClient)}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServerProcess:
    """A chat server on this machine, in a process group of its own.

    Args:
        command (`list[str]`):
            What starts it; `{port}` stands for the port.
        log (`Path`):
            Where its output goes, one file for all its lives.
        patience (`float`):
            Seconds until it must answer.
        env (`dict[str, str]`, *optional*):
            Added to the environment.
    """

    def __init__(self, command, log, patience, env=None):
        self.port = free_port()
        self.command = [part.replace("{port}", str(self.port)) for part in command]
        self.log, self.patience = log, patience
        self.env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self.env |= env or {}
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self):
        """Start it and wait until it answers."""
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                self.command, stdout=output, stderr=output, env=self.env, start_new_session=True
            )
        deadline = time.monotonic() + self.patience
        try:
            while not self._answers():
                if self.process.poll() is not None:
                    raise AssertionError(f"the server ended with status {self.process.returncode}: {self.tail()}")
                if time.monotonic() > deadline:
                    raise AssertionError(f"the server is not up after {self.patience} s: {self.tail()}")
                time.sleep(0.1)
        except BaseException:
            self.kill()
            raise

    def _answers(self):
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{self.port}/health", timeout=30.0) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self):
        """End it and all that it started, at once."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(300)
            self.process = None

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]


def transformers_serve(model, log):
    """`transformers serve` of this installation."""
    code = "from transformers.cli.transformers import main; main()"
    options = ["serve", model, "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"]
    return ServerProcess([sys.executable, "-c", code, *options], log, 120.0, {"OMP_NUM_THREADS": "1"})


def vllm_server(python, model, log, *more):
    """vLLM's server on the CPU, with `more` options."""
    options = ["--model", model, "--served-model-name", model, "--host", "127.0.0.1", "--port", "{port}"]
    options += ["--enforce-eager", "--dtype", "float32", "--max-num-seqs", "32", "--max-model-len", "8192", *more]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return ServerProcess([python, "-m", "vllm.entrypoints.openai.api_server", *options], log, 300.0, env)


class CountingProxy:
    """Passes requests on to a server and writes down what came of each.

    `events` holds `("asked", prompt)` and `("answered", prompt)` in order; an answer counts once all of it was handed
    on. When the server drops a request so does the proxy; `stop` and `start` let the port vanish and come back.

    Args:
        target (`ServerProcess`):
            Where requests go.
    """

    def __init__(self, target):
        self.target = target
        self.port = free_port()
        self.events = []
        self.bodies = []
        self.on_answer = lambda count: None  # called with the number of answers so far
        self.on_ask = lambda count: None  # with the number of requests, before they are passed on
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.runner = None

    def __enter__(self):
        self.thread.start()
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(120)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self):
        self._call(self._start())

    def stop(self):
        if self.runner is not None:
            self._call(self._stop())

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    async def _start(self):
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600))
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_post("/classify", self._handle)
        app.router.add_get("/v1/models", self._models)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def _stop(self):
        runner, self.runner = self.runner, None
        await runner.cleanup()
        await self.session.close()

    async def _models(self, request):
        async with self.session.get(f"{self.target.url}/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)

    async def _handle(self, request):
        data = await request.read()
        body = json.loads(data)
        prompt = body["input"] if "input" in body else body["messages"][-1]["content"]
        self.bodies.append(body)
        self.events.append(("asked", prompt))
        self.on_ask(self.asked().total())
        try:
            address = self.target.url.removesuffix("/v1") + request.path
            async with self.session.post(address, data=data, headers={"Content-Type": "application/json"}) as answer:
                status, received = answer.status, await answer.read()
        except aiohttp.ClientError:
            request.transport.abort()
            return web.Response()
        response = web.Response(status=status, body=received, content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        if status == 200:
            self.events.append(("answered", prompt))
            self.on_answer(len(self.answered()))
        return response

    def asked(self):
        """How often each prompt came in, probes aside."""
        return Counter(prompt for what, prompt in self.events if what == "asked" and prompt not in PROBES)

    def answered(self, end=None):
        """How often each prompt was answered within the first `end` events, probes aside."""
        return Counter(prompt for what, prompt in self.events[:end] if what == "answered" and prompt not in PROBES)
