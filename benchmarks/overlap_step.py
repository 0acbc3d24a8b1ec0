"""What a step costs whose verification overlaps generation, over the longer of the two.

    python benchmarks/overlap_step.py --policy transformers
    python benchmarks/overlap_step.py --policy server

A step is what `FactGRPOTrainer` does until the advantages are known: completions, labels, rewards. With `transformers` the
policy is a Llama of 3 million parameters with random weights on one CPU core. Each of its tokens ends the completion with
the same probability, such that a share of `--cut` reaches the limit of `--tokens`. With `server` it stands for a vLLM server that is fully used: TRL's own code of server mode asks a client
that sleeps `--seconds` for every `SLOTS` completions (fewer take as long), whose completions are drawn at random.

The verifier is an `LLMVerifier` with one request per completion. Its server, a process of its own, answers `--slots`
requests at a time and sleeps for each, so that verification takes time in proportion to the completions and none of the
processor's; the sleep is set so that verification of a batch alone takes .5, 1 or 2 times as long as generation in one
batch. In each repeat all are timed one after the other, in an order that turns around: generation in one batch and in
chunks, verification, the step in one batch, as in TRL, and the step in chunks.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


os.environ.setdefault("CI", "1")
LOADS = (0.5, 1.0, 2.0)
GROUP, SLOTS = 8, 8


def serve() -> None:
    """Answer "supported" to all; the port is printed. `POST /seconds` sets how long an answer takes."""
    import asyncio

    from aiohttp import web

    seconds, slots = 0.0, asyncio.Semaphore(int(sys.argv[2]))

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        async with slots:
            await asyncio.sleep(seconds)
        return web.json_response({"choices": [{"message": {"content": "supported"}, "finish_reason": "stop"}]})

    async def change(request: web.Request) -> web.Response:
        nonlocal seconds
        seconds = float(await request.text())
        return web.Response()

    async def main():
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        app.router.add_post("/seconds", change)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


def build(folder: str, address: str, args):
    """A trainer whose judge is on the server, and the rows of a generation batch."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from hf_factuality import FactGRPOConfig, FactGRPOTrainer, LabeledSpan
    from hf_factuality.verifiers import LLMVerifier
    from hf_factuality.worlds import build_world_model, load_world

    class Whole:
        def extract(self, inputs):
            return [[LabeledSpan(0, len(item.completion))] for item in inputs]

    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = build_world_model(size="demo")
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    policy = LlamaForCausalLM(config)
    # With random weights all tokens are about as likely.
    ends = round(len(tokenizer) * (1 - args.cut ** (1 / args.tokens)))
    policy.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(len(tokenizer) - ends + 1, len(tokenizer))]
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = FactGRPOConfig(
        folder, per_device_train_batch_size=args.batch_size, num_generations=GROUP, max_completion_length=args.tokens,
        verify_scope="completion", verifier_batch_size=args.batch_size, bf16=False, gradient_checkpointing=False,
        use_cpu=True, report_to="none", save_strategy="no", beta=0.0,
    )  # fmt: skip
    judge = LLMVerifier("stub", address, extractor=Whole(), cache=False, concurrency=4 * args.slots)
    trainer = FactGRPOTrainer(folder, None, settings, load_world(source).questions("train"), verifier=judge)
    trainer.model.train()
    if args.policy == "server":
        ask_server(trainer, args.tokens, args.seconds)
    questions = list(trainer.train_dataset.select(range(args.batch_size // GROUP)))
    return trainer, [row for row in questions for _ in range(GROUP)]


def ask_server(trainer, tokens: int, seconds: float) -> None:
    import math
    from types import SimpleNamespace

    import torch
    from trl.generation.vllm_generation import VLLMGeneration

    def generate(prompts, n, **sampling):
        count = n * len(prompts)
        time.sleep(seconds * math.ceil(count / SLOTS))
        ids = torch.randint(5, len(trainer.processing_class), (count, tokens)).tolist()
        logprobs = [[[-1.0]] * tokens] * count
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}

    own = SimpleNamespace(
        mode="server", accelerator=trainer.accelerator, vllm_client=SimpleNamespace(generate=generate), logprobs=0,
        sync_weights=lambda: None, enable_sleep_mode=False, structured_outputs_regex=None, generation_kwargs={},
        **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")),
    )  # fmt: skip
    own.generate = lambda **kwargs: VLLMGeneration.generate(own, **kwargs)
    trainer.use_vllm = trainer.args.use_vllm = True
    trainer.args.vllm_mode, trainer.vllm_generation, trainer._last_loaded_step = "server", own, -1
    trainer.vllm_importance_sampling_correction = False


class Timings:
    def __init__(self, trainer, rows):
        self.trainer, self.rows = trainer, rows
        self.prompts = trainer._tokenize_prompts([row["prompt"] for row in rows])[0]

    def time(self, what: str, chunks: int, seed: int) -> float:
        """Seconds of "generation", "verification" or a "step"."""
        import torch

        trainer = self.trainer
        trainer.args.generation_chunks = chunks
        torch.manual_seed(seed)
        started = time.perf_counter()
        if what == "generation":
            ids = trainer._generate_single_turn(self.prompts, None, {}, GROUP)[0]
            seconds = time.perf_counter() - started
            self.tokens, trainer._decoded = trainer._offsets(ids), {}
            return seconds
        if what == "verification":
            texts = [its.text for its in self.tokens]
            trainer.judging.judge(trainer._rows(texts, self.rows, range(len(texts))))
        else:
            trainer._generate_and_score_completions(self.rows)
        if trainer._guard.last_report.failed:
            raise SystemExit("the judge failed")
        return time.perf_counter() - started


def spread(values: list[float]) -> str:
    return (
        f"{statistics.mean(values):.3f} (sd {statistics.stdev(values):.3f})" if len(values) > 1 else f"{values[0]:.3f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policy", choices=("transformers", "server"), default="transformers")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--chunks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cut", type=float, default=0.05, help="share of completions that reach the limit")
    parser.add_argument("--seconds", type=float, default=0.4, help="of the policy's server, for eight completions")
    parser.add_argument("--slots", type=int, default=8, help="requests that the server answers at a time")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="verification over generation")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    command = [sys.executable, __file__, "--serve", str(args.slots)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            found = measure(Timings(*build(folder, f"{address}/v1", args)), address, args)
        finally:
            server.kill()
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measure(timings: Timings, address: str, args) -> list[dict]:
    def sleep(seconds: float) -> None:
        urllib.request.urlopen(f"{address}/seconds", str(seconds).encode())

    found = []
    # Warm up; then what a batch costs to verify beside the server's sleep.
    for what in ("generation", "verification", "generation", "verification"):
        seconds = timings.time(what, 1, 0)
    overhead = seconds
    waves = args.batch_size / args.slots
    print(f"requests of a batch without any sleep: {overhead:.2f} s")
    for load in args.loads:
        runs: dict[str, list[float]] = {}
        for seed in range(args.repeats):
            sleep(0.0)
            if (
                args.policy == "transformers" or not seed
            ):  # the processor's speed drifts, the sleeping server's does not
                once = timings.time("generation", 1, seed)
            sleep(max(load * once - overhead, 0.0) / waves)
            todo = [("generation", 1), ("verification", 1), ("step", 1)]
            todo += [(what, chunks) for chunks in args.chunks for what in ("generation", "step")]
            for what, chunks in todo if seed % 2 else todo[::-1]:
                name = what if what == "verification" else f"{what} in {chunks}"
                runs.setdefault(name, []).append(timings.time(what, chunks, seed))
        print(f"\nverification {load:g} times generation, {args.repeats} runs")
        alone, judged = runs["generation in 1"], runs["verification"]
        print(f"  generation {spread(alone)} s, verification {spread(judged)} s")
        for chunks in (1, *args.chunks):
            steps, own = runs[f"step in {chunks}"], runs[f"generation in {chunks}"]
            ratio = [s / max(g, v) for s, g, v in zip(steps, alone, judged, strict=True)]
            chunked = [s / max(g, v) for s, g, v in zip(steps, own, judged, strict=True)]
            slower = [g / one for g, one in zip(own, alone, strict=True)]
            print(
                f"  {chunks:3} chunks: step over the longer {spread(ratio)}; with generation in these chunks "
                f"{spread(chunked)}; their generation over one batch's {spread(slower)}"
            )
            found.append({"load": load, "chunks": chunks, "ratio": ratio, "ratio_chunked": chunked, "slower": slower})
        found[-1]["seconds"] = runs
    return found


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
