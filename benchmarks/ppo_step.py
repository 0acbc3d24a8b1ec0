"""Samples per second and peak memory of TokenRewardPPO over the last PPOTrainer of TRL, in one run.

    pip install --target /tmp/trl-1.12 --no-deps trl==1.12.0
    python benchmarks/ppo_step.py --trl /tmp/trl-1.12

TRL removed PPO after 1.12. Both trainers work with the same policy, reference, critic and reward model (the same weights),
the same prompts (biographies of a closed world), batch, number of epochs, and learning rate 0, so that both sample
completions of the same distribution. Each run is a process of its own with its own version of TRL, and all other libraries
are shared. Runs alternate, since the speed of a shared machine drifts; a pair of runs gives one ratio. The first update of
a run (memory, caches) is left out of its time. Peak memory is that of the device where there is one, else the peak of the
resident set, as a whole and above what the process held before it trained.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

from _peaks import resident, summary


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def save_models(folder: Path, lengths: str) -> None:
    """The policy (the closed world's model, or one of random weights), a reward model of its size, which is the critic's start
    too, and prompts."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForSequenceClassification

    if lengths == "model":
        from hf_factuality.demos.closed_world import RLFHDemo

        demo = RLFHDemo()
        shutil.copytree(demo.model_dir, folder / "policy")
        rows = demo.train_dataset
    else:
        from _lengths import save_random_model

        rows = save_random_model(folder / "policy").biographies("train")
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder / "policy", num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(folder / "reward")
    tokenizer.save_pretrained(folder / "reward")
    texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    (folder / "prompts.json").write_text(json.dumps(texts), encoding="utf-8")


def prompts(args: argparse.Namespace) -> list[str]:
    return json.loads((args.models / "prompts.json").read_text(encoding="utf-8"))


def clock():
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        ends: list[tuple[float, ...]] = []
        spent: ClassVar = dict.fromkeys(("generate", "prepare", "update"), 0.0)

        def on_step_end(self, *args, **kwargs):
            self.ends.append((time.perf_counter(), time.process_time(), *self.spent.values()))

    return Clock()


def watch(trainer, which: str, spent: dict[str, float]) -> None:
    """Add up the seconds of generation, and of all that makes a batch of completions (ours) or of the update (TRL's)."""

    @contextlib.contextmanager
    def timing(name):
        start = time.perf_counter()
        yield
        spent[name] += time.perf_counter() - start

    def timed(function, name):
        def run(*args, **kwargs):
            with timing(name):
                return function(*args, **kwargs)

        return run

    if which == "ours":
        trainer._generate = timed(trainer._generate, "generate")
        trainer._prepare_inputs = timed(trainer._prepare_inputs, "prepare")
        return
    from trl.experimental.ppo import ppo_trainer

    ppo_trainer.batch_generation = timed(ppo_trainer.batch_generation, "generate")
    own = trainer.accelerator.accumulate

    @contextlib.contextmanager
    def accumulate(*models):
        with timing("update"), own(*models):
            yield

    trainer.accelerator.accumulate = accumulate


FIGURES = ("samples per second", "samples per second of a processor", "peak", "peak above the start")
SHARED = {
    "learning_rate": 0.0, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
    "logging_strategy": "no", "disable_tqdm": True, "temperature": 1.0,
}  # fmt: skip


def build_ours(args: argparse.Namespace, folder: str, callback):
    from datasets import Dataset

    from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer

    # An epoch over the batch is an optimizer step in both.
    config = TokenRewardPPOConfig(
        folder, **SHARED, per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=args.accumulation,
        num_iterations=args.epochs, max_steps=(args.updates + 1) * args.epochs, max_completion_length=args.length,
        beta=0.05, critic_learning_rate=0.0,
    )  # fmt: skip
    return TokenRewardPPOTrainer(
        str(args.models / "policy"), None, str(args.models / "reward"), config,
        Dataset.from_list([{"prompt": prompt} for prompt in prompts(args)]), callbacks=[callback],
    )  # fmt: skip


def build_trl(args: argparse.Namespace, folder: str, callback):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(args.models / "policy", padding_side="left")
    config = PPOConfig(
        folder, **SHARED, per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=args.accumulation,
        num_ppo_epochs=args.epochs, num_mini_batches=1, response_length=args.length, stop_token="eos", num_sample_generations=0,
        total_episodes=(args.updates + 1) * args.batch_size * args.accumulation,
        local_rollout_forward_batch_size=args.batch_size, kl_coef=0.05, kl_estimator="k3",
    )  # fmt: skip
    policy, reference = (AutoModelForCausalLM.from_pretrained(args.models / "policy") for _ in range(2))
    reward, value = (AutoModelForSequenceClassification.from_pretrained(args.models / "reward") for _ in range(2))
    rows = [{"input_ids": tokenizer(prompt, add_special_tokens=False)["input_ids"]} for prompt in prompts(args)]
    return PPOTrainer(
        config, tokenizer, policy, reference, reward, Dataset.from_list(rows), value, callbacks=[callback]
    )  # fmt: skip


def one(args: argparse.Namespace) -> None:
    """Train one of them in this process and print what it took."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    callback = clock()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer = (build_ours if args.one == "ours" else build_trl)(args, folder, callback)
        if args.lengths != "model":
            from _lengths import draw_lengths

            policy = getattr(trainer.model, "policy", trainer.model)
            draw_lengths(policy, trainer.processing_class.eos_token_id, args.length, args.lengths, args.seed)
        watch(trainer, args.one, callback.spent)
        before = resident(peak=False)
        trainer.train()
        import trl
    # One end per update in TRL, one per epoch in ours.
    per_update = args.epochs if args.one == "ours" else 1
    ends = callback.ends[per_update - 1 :: per_update]
    assert len(ends) == args.updates + 1, f"{len(ends)} updates ended, expected {args.updates + 1}"
    samples = args.updates * args.batch_size * args.accumulation
    wall, processor, generate, prepare, update = (last - first for first, last in zip(ends[0], ends[-1], strict=True))
    update = update or wall - prepare
    on_device = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0
    print(json.dumps({
        "trl": trl.__version__, "samples per second": samples / wall,
        "samples per second of a processor": samples / processor, "peak": on_device or resident(), "peak above the start": on_device or resident() - before,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "seconds": {"generate": generate, "passes and rewards": wall - generate - update, "update": update},
    }))  # fmt: skip


def launch(which: str, args: argparse.Namespace, models: Path) -> dict:
    names = ("batch_size", "accumulation", "length", "epochs", "updates", "lengths", "seed")
    options = [part for name in names for part in (f"--{name}", str(getattr(args, name)))]
    paths = [str(Path(__file__).resolve().parent.parent)] if which == "ours" else [str(args.trl)]
    command = [sys.executable, __file__, "--one", which, "--models", str(models), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    if done.returncode:
        raise SystemExit(f"{which} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(which, found, flush=True)
    return found


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trl", type=Path, help="folder that TRL 1.12.0 was installed into")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4, help="measured per run; one more comes first")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1, help="over each batch of completions")
    parser.add_argument("--length", type=int, default=110)
    parser.add_argument("--lengths", choices=["model", "lognormal", "equal"], default="model", help="of completions: those that "
                        "the closed world's model gives them, or drawn, with a model of random weights")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the drawn lengths")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=["ours", "trl"], help="only train this one, in this process")
    parser.add_argument("--models", type=Path, help="folder of the models, with --one")
    args = parser.parse_args(argv)
    if args.one:
        one(args)
        return {}
    if args.trl is None:
        parser.error("--trl names the folder with TRL 1.12.0, see the first lines of this file")
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    parts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_models(Path(folder), args.lengths)
        for number in range(args.repeats):
            order = ("ours", "trl") if number % 2 else ("trl", "ours")
            args.seed = number
            pair = {which: launch(which, args, Path(folder)) for which in order}
            for name, values in found.items():
                values.append(pair["ours"][name] / pair["trl"][name])
            whole = sum(pair["trl"]["seconds"].values())
            for which, run in pair.items():
                for part, seconds in run["seconds"].items():
                    parts.setdefault(f"{which}: {part}", []).append(seconds / whole)
    versions = {which: pair[which]["trl"] for which in pair}
    record = {
        "settings": {k: str(v) for k, v in vars(args).items()},
        "trl": versions,
        "device": pair["ours"]["device"],
    }
    record["share of TRL's step"] = {name: summary(parts[name]) for name in sorted(parts)}
    for name, value in record["share of TRL's step"].items():
        print(f"share of TRL's step, {name}: mean {value['mean']:.3f}")
    record["ours over TRL's"] = {name: summary(values) for name, values in found.items()}
    for name, value in record["ours over TRL's"].items():
        sd = f", sd {value['sd']:.3f}" if len(value["values"]) > 1 else ""
        print(
            f"{name}, ours over TRL's: mean {value['mean']:.3f}{sd}, median {value['median']:.3f} (n={args.repeats})"
        )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


if __name__ == "__main__":
    main()
