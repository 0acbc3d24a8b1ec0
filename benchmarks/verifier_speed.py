"""Speed and memory of the verifiers, each as a ratio in one run.

    python benchmarks/verifier_speed.py --data ../shared/data --out verifier_speed.json
    python benchmarks/verifier_speed.py --parts llm --vllm_python PATH_OF_A_PYTHON_WITH_VLLM
    python benchmarks/verifier_speed.py --parts llm --base_url http://localhost:8000/v1 --model NAME

What is reported, by part:

- `nli`: [`NLIJudge`] over one pair per call, which is how the released FSPO code judges: a call of the tokenizer and of
  the model for each sentence. Cross-encoders of several sizes with random weights and one WordPiece tokenizer trained
  on the texts, so both do the same arithmetic on the same pairs, and their probabilities are compared. Settings: ten
  evidence sentences as ten premises; the ten joined into one; and eight completions of a question with five sentences
  each, drawn from ten, so that pairs repeat as they do within a group of rollouts (the released way judges repeats again).
- `dtype`: the same models and texts, ten passages each, with int8 weights on a CPU or in bfloat16 on a GPU, over float32, and
  by how much the probabilities differ.
- `llm`: [`LLMJudge`] with 32 requests under way over one at a time, on the same server without cache, and a first run
  over a second one that finds its answers in the cache. Without `--base_url` or `--vllm_python` the server is a stub that
  takes a fixed time for an answer: that checks the client, and says nothing about a real server.
- `memory`: resident memory after 100,000 claims over that after 10,000, in a process of its own per case.

Claims a second of the lexical judge are a figure of `lexical_verifier.py`.

The arms of a ratio alternate, as the speed of a shared machine drifts, and each pair of runs gives one ratio. NLI is timed
in processor time of one thread on a CPU, everything else in wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


os.environ.setdefault("CI", "1")

from _peaks import summary
from _verifier_memory import MEMORY_CASES, Row, made_rows, memory

from hf_factuality.generation.client import ChatClient
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.llm import LLMJudge
from hf_factuality.verifiers.judges.nli import NLIJudge


SIZES = {
    "32x2": (32, 2, 2),
    "64x2": (64, 2, 2),
    "128x2": (128, 2, 2),
    "256x4": (256, 4, 4),
    "384x6": (384, 6, 12),
    "768x12": (768, 12, 12),
}
"""Width x layers -> width, layers, attention heads. 128x2 and 256x4 are BERT-tiny and BERT-mini, 768x12 is BERT-base."""
PARTS = ("nli", "dtype", "llm", "memory")


def read_rows(data: Path | None, count: int) -> list[Row]:
    """WiCE development claims with the first ten sentences of their page, if `data` is given, else made ones."""
    if data is None:
        return made_rows(count)
    with (data / "wice/claim-dev.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    found = [(row["claim"], tuple(text for text in row["evidence"] if text.strip())[:10]) for row in rows]
    # All ten must fit a window of 512 tokens with the claim, so that both arms judge the same pairs.
    return [
        (claim, texts)
        for claim, texts in found
        if len(texts) == 10 and len(claim.split()) + len(" ".join(texts).split()) < 250
    ][:count]


def alternate(arms: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each arm, in turns; the order turns around every time."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(repeats):
        for name in sorted(arms, reverse=bool(turn % 2)):
            seconds[name].append(arms[name]())
    return seconds


def ratios(seconds: dict[str, list[float]], slow: str, fast: str) -> dict[str, Any]:
    return summary([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])


# -- NLI --------------------------------------------------------------------------------------------------------------


def cross_encoder(size: str, tokenizer: Any, device: str) -> Any:
    """BERT with three classes and random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    width, layers, heads = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, id2label={0: "entailment", 1: "neutral", 2: "contradiction"},
        initializer_range=0.1,
    )  # fmt: skip
    return BertForSequenceClassification(config).eval().to(device)


def wordpiece(texts: list[str]) -> Any:
    """A tokenizer as BERT's, trained on `texts`."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    trained = BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(texts, vocab_size=8000, show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        trained.save_model(folder)
        return BertTokenizerFast(os.path.join(folder, "vocab.txt"), model_max_length=512)


def one_by_one(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> list[float]:
    """P(entailment) of (premise, claim) pairs as the released FSPO code gets it: one call of everything per pair."""
    import torch

    found = []
    for premise, claim in pairs:
        features = tokenizer([premise], [claim], return_tensors="pt", padding=True).to(model.device)
        with torch.no_grad():
            found.append(torch.softmax(model(**features).logits, dim=-1)[0, 0].item())
    return found


def nli_inputs(rows: list[Row], setting: str, count: int) -> list[JudgeInput]:
    """About `count` pairs in the setting that the docstring of this file tells."""
    if setting == "ten passages":
        return [JudgeInput(claim, texts) for claim, texts in rows[: max(1, count // 10)]]
    if setting == "one passage":
        return [JudgeInput(claim, (" ".join(texts),)) for claim, texts in rows[: max(1, count // 3)]]
    draw, found = random.Random(0), []
    for i in range(max(1, count // 40)):
        said = [claim for claim, _ in (rows * 11)[10 * i : 10 * i + 10]]
        passage = rows[i % len(rows)][1][0]
        found += [JudgeInput(claim, (passage,)) for _ in range(8) for claim in draw.sample(said, 5)]
    return found


def nli(rows: list[Row], args: argparse.Namespace) -> dict[str, Any]:
    """One pair per call over batches, by size and setting; prints a row each."""
    import torch

    torch.set_num_threads(1)
    cuda = args.device.startswith("cuda")
    tokenizer = wordpiece([text for claim, texts in rows for text in (claim, *texts)])
    rows = [row for row in rows if len(tokenizer(" ".join(row[1]), row[0], verbose=False)["input_ids"]) <= 512]
    result = {}
    for size in args.sizes:
        model = cross_encoder(size, tokenizer, args.device)
        judge = NLIJudge(model, tokenizer, batch_size=args.batch_size)
        for setting in ("ten passages", "one passage", "group of eight"):
            # The same time for all sizes, roughly.
            count = args.pairs if cuda else max(40, args.pairs * 64 // SIZES[size][0] // SIZES[size][1] * 2)
            inputs = nli_inputs(rows, setting, count)
            pairs = [(text, item.claim) for item in inputs for text in item.evidence]
            scores: dict[str, list[float]] = {}

            def timed(name: str, work: Callable[[], list[float]], scores: dict = scores) -> float:
                clock = time.perf_counter if cuda else time.process_time
                start = clock()
                scores[name] = work()
                return clock() - start

            def batched(judge: NLIJudge = judge, inputs: list[JudgeInput] = inputs) -> list[float]:
                return [verdict.score for verdict in judge.judge(inputs)]

            def single(model: Any = model, pairs: list = pairs, inputs: list[JudgeInput] = inputs) -> list[float]:
                found = iter(one_by_one(model, tokenizer, pairs))
                return [max(next(found) for _ in item.evidence) for item in inputs]

            arms = {"batched": lambda: timed("batched", batched), "single": lambda: timed("single", single)}
            alternate(arms, 1)  # memory and caches
            seconds = alternate(arms, args.repeats)
            worst = max(abs(a - b) for a, b in zip(scores["batched"], scores["single"], strict=True))
            lengths = [len(ids) for ids in tokenizer([p for p, _ in pairs], [c for _, c in pairs])["input_ids"]]
            result[f"{size}, {setting}"] = {
                "ratio": ratios(seconds, "single", "batched"),
                "pairs": len(pairs),
                "distinct_pairs": len(set(pairs)),
                "mean_tokens": statistics.mean(lengths),
                "parameters": sum(p.numel() for p in model.parameters()),
                "ms_per_pair_single": 1000 * min(seconds["single"]) / len(pairs),
                "largest_difference_of_probability": worst,
            }
            shown = f"{len(pairs)} ({len(set(pairs))}) | {statistics.mean(lengths):.0f}"
            print(f"| {size}, {setting} | {show(ratios(seconds, 'single', 'batched'))} | {shown} |", flush=True)
    return result


def dtypes(rows: list[Row], args: argparse.Namespace) -> dict[str, Any]:
    """float32 over int8 weights (bfloat16 on a GPU), by size; prints a row each."""
    import torch

    torch.set_num_threads(1)
    cuda = args.device.startswith("cuda")
    small = "bfloat16" if cuda else "int8"
    tokenizer = wordpiece([text for claim, texts in rows for text in (claim, *texts)])
    result = {}
    for size in args.sizes:
        inputs = nli_inputs(rows, "ten passages", args.pairs if cuda else max(40, args.pairs * 64 // SIZES[size][0]))
        models = {name: cross_encoder(size, tokenizer, args.device) for name in ("float32", small)}
        judges = {
            name: NLIJudge(model, tokenizer, dtype=name, batch_size=args.batch_size) for name, model in models.items()
        }
        scores: dict[str, list[float]] = {}

        def timed(name: str, judges: Any = judges, inputs: Any = inputs, scores: dict = scores) -> float:
            clock = time.perf_counter if cuda else time.process_time
            start = clock()
            scores[name] = [verdict.score or 0.0 for verdict in judges[name].judge(inputs)]
            return clock() - start

        arms = {name: functools.partial(timed, name) for name in judges}
        alternate(arms, 1)
        seconds = alternate(arms, args.repeats)
        worst = max(abs(a - b) for a, b in zip(scores["float32"], scores[small], strict=True))
        found = result[f"{size}, {small}"] = {
            "ratio": ratios(seconds, "float32", small),
            "pairs": sum(len(item.evidence) for item in inputs),
            "largest_difference_of_probability": worst,
        }
        print(f"| {size}, {small} | {show(found['ratio'])} | {found['pairs']} | {worst:.3f} |", flush=True)
    return result


# -- LLM --------------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def small_llm(folder: Path, texts: list[str], width: int) -> None:
    """A Llama of random parameters (.4 million at width 64, 3 at 256) with a byte-level tokenizer trained on `texts`."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    special = ["<s>", "</s>", "<pad>"]
    trained.train_from_iterator(texts, vocab_size=2000, special_tokens=special, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=2 * width, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@contextlib.contextmanager
def vllm(python: Path, texts: list[str], log: Path, width: int) -> Iterator[tuple[str, str]]:
    """vLLM on this machine, with a small model; yields address and name of the model."""
    with tempfile.TemporaryDirectory() as folder:
        small_llm(Path(folder), texts, width)
        port = free_port()
        command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "small",
            "--enforce-eager", "--dtype", "float32", "--max-model-len", "2048", "--host", "127.0.0.1",
            "--port", str(port),
        ]  # fmt: skip
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **os.environ}
        with log.open("w") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        try:
            for _ in range(900):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                if server.poll() is not None:
                    raise SystemExit(f"vLLM ended with status {server.returncode}; its output is in {log}")
                time.sleep(1)
            else:
                raise SystemExit(f"vLLM did not start within 15 minutes; its output is in {log}")
            yield f"http://127.0.0.1:{port}/v1", "small"
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # its workers, if they are still there
            server.wait()


@contextlib.contextmanager
def stub(seconds: float) -> Iterator[tuple[str, str]]:
    """A server that answers "supported" after `seconds`, however many ask."""
    import asyncio
    import threading

    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.json_response({"choices": [{"message": {"content": "supported"}, "finish_reason": "stop"}]})

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "stub"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)


def llm(inputs: list[JudgeInput], address: str, model: str, repeats: int) -> dict[str, Any]:
    """32 requests under way over one, and a cold cache over a warm one."""
    labels: dict[str, list] = {}

    def judge(concurrency: int, cache: Any, name: str) -> float:
        client = ChatClient(address, model, concurrency=concurrency, cache=cache)
        judging = LLMJudge(client)
        judging.judge([JudgeInput("Warm up.", (str(random.random()),))])  # connection, and what the server can do
        start = time.perf_counter()
        found = judging.judge(inputs)
        seconds = time.perf_counter() - start
        if judging.last_report.failed:
            raise SystemExit(f"{judging.last_report.failed} requests failed: {judging.last_report.first_error}")
        labels.setdefault(name, []).append([verdict.label for verdict in found])
        client.close()
        return seconds

    gc.collect()
    gc.freeze()  # a collection of what the libraries hold takes as long as hundreds of answers from the cache
    seconds = alternate({str(n): lambda n=n: judge(n, False, str(n)) for n in (1, 32)}, repeats)
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "answers.sqlite")
            cold.append(judge(32, file, "cold"))
            warm.append(judge(32, file, "warm"))
    same = all(labels["cold"][i] == labels["warm"][i] for i in range(repeats))
    return {
        "concurrency_32_over_1": ratios(seconds, "1", "32"),
        "warm_over_cold": ratios({"cold": cold, "warm": warm}, "cold", "warm"),
        "claims": len(inputs),
        "seconds": {**seconds, "cold": cold, "warm": warm},
        "warm_labels_equal_cold": same,
        "unknown": sum(label is None for label in labels["1"][0]),
    }


# -- all --------------------------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> str:
    return f"{found['mean']:.2f} | {found['sd']:.2f} | {len(found['values'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with wice/claim-dev.jsonl; without it the texts are made")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["64x2", "128x2", "256x4", "384x6"])
    parser.add_argument("--pairs", type=int, default=600, help="of the smallest size; larger ones get fewer on a CPU")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--device", default="cpu", help="of the NLI models")
    parser.add_argument("--base_url", help="a server that runs already; needs --model")
    parser.add_argument("--model")
    parser.add_argument("--vllm_python", type=Path, help="a Python that has vLLM, to start it with a small model")
    parser.add_argument("--llm_widths", type=int, nargs="+", default=[64, 256], help="of the models that vLLM gets")
    parser.add_argument("--requests", type=int, default=96, help="claims of the part llm")
    parser.add_argument("--stub_seconds", type=float, default=0.05)
    parser.add_argument("--claims", type=int, default=100_000, help="of the part memory")
    parser.add_argument("--memory_cases", nargs="+", choices=MEMORY_CASES, default=list(MEMORY_CASES))
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    args = parser.parse_args()
    if args.base_url and not args.model:
        parser.error("--base_url needs --model, the name of the model on that server")
    if args.claims % 10 or args.repeats < 1:
        parser.error("--claims is a multiple of 10, --repeats at least 1")
    rows = read_rows(args.data, 350)
    result: dict[str, Any] = {"texts": "WiCE dev" if args.data else "made", "rows": len(rows)}
    if "nli" in args.parts:
        print("| NLI: one pair per call over batches | mean | sd | n | pairs (distinct) | tokens |")
        print("|---|---|---|---|---|---|")
        result["nli"] = nli(rows, args)
    if "dtype" in args.parts:
        print("\n| NLI: float32 over a smaller type | mean | sd | n | pairs | largest difference |")
        print("|---|---|---|---|---|---|")
        result["dtype"] = dtypes(rows, args)
    if "llm" in args.parts:
        inputs = [JudgeInput(claim, tuple(text[:80] for text in texts[:3])) for claim, texts in rows[: args.requests]]
        texts = [text for claim, found in rows for text in (claim, *found)]
        servers: dict[str, Any] = {"stub": stub(args.stub_seconds)}
        if args.base_url:
            servers = {"server": contextlib.nullcontext((args.base_url, args.model)), **servers}
        elif args.vllm_python:
            log = Path(tempfile.gettempdir()) / f"vllm-{os.getpid()}.log"
            servers = {f"vllm, width {n}": vllm(args.vllm_python, texts, log, n) for n in args.llm_widths} | servers
        print("\n| LLM judge | mean | sd | n |\n|---|---|---|---|")
        for name, server in servers.items():
            with server as (address, model):
                found = result.setdefault("llm", {})[name] = llm(inputs, address, model, args.repeats)
            print(f"| {name}: 32 requests under way over one | {show(found['concurrency_32_over_1'])} |")
            print(f"| {name}: warm cache over cold | {show(found['warm_over_cold'])} |", flush=True)
    if "memory" in args.parts:
        print("\n| memory | after all over after a tenth | MB after a tenth | MB per further tenth | peak MB |")
        print("|---|---|---|---|---|")
        for case in args.memory_cases:
            found = result.setdefault("memory", {})[case] = memory(case, args.claims)
            grown = f"{found['first_mb']:.0f} | {found['mb_per_tenth']:.2f} | {found['peak_mb'] or 0:.0f}"
            print(f"| {case}, {args.claims:,} claims | {found['ratio']:.3f} | {grown} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
