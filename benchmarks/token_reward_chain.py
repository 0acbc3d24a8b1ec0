"""How many samples credit assignment costs: the same reward at the token that earns it, and at the end of the completion.

    python benchmarks/token_reward_chain.py --first_seed 100

A small policy writes `--length` letters. The first one alone decides about the reward: 1 if it is the right one, else 0. One
arm is paid at that letter, the other one at the last token, with everything else equal: critic, GAE, number of samples per
step. An arm has reached the optimum when the mean reward of the last `--window` steps is at least .95; what is compared is
the number of samples until then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer


LETTERS = "abcdefghijklmnop"
RIGHT = "g"


def policy(folder: Path, seed: int) -> str:
    vocabulary = {letter: number for number, letter in enumerate(["<pad>", "<eos>", ">", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return str(folder)


def earned(completion_ids: list[list[int]], right: int) -> list[float]:
    return [float(ids[0] == right) for ids in completion_ids]


def reached(rewards: list[float], window: int) -> bool:
    return len(rewards) >= window and statistics.mean(rewards[-window:]) >= 0.95


class StopAt(TrainerCallback):
    def __init__(self, arrived):
        self.arrived = arrived

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or self.arrived()


def run(where: str, seed: int, args: argparse.Namespace) -> int | None:
    """Samples until the optimum; `None` if it was not reached."""
    rewards: list[float] = []
    right = 3 + LETTERS.index(RIGHT)

    def at_the_token(completion_ids, **columns):
        found = earned(completion_ids, right)
        rewards.append(statistics.mean(found))
        return [[value] + [0.0] * (len(ids) - 1) for value, ids in zip(found, completion_ids, strict=True)]

    def at_the_end(completion_ids, **columns):
        found = earned(completion_ids, right)
        rewards.append(statistics.mean(found))
        return [[0.0] * (len(ids) - 1) + [value] for value, ids in zip(found, completion_ids, strict=True)]

    with tempfile.TemporaryDirectory() as scratch:
        settings = TokenRewardPPOConfig(
            scratch, seed=seed, per_device_train_batch_size=args.batch_size, max_steps=args.steps, num_iterations=1,
            max_completion_length=args.length, learning_rate=args.learning_rate, critic_learning_rate=args.learning_rate,
            lr_scheduler_type="constant", lam=args.lam, beta=0.0, critic_model=args.critic, bf16=False, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
            generation_kwargs={"min_new_tokens": args.length},
        )  # fmt: skip
        trainer = TokenRewardPPOTrainer(
            policy(Path(scratch) / "policy", seed), at_the_token if where == "token" else at_the_end, None, settings,
            Dataset.from_list([{"prompt": ">"}] * args.batch_size),
        )  # fmt: skip
        trainer.add_callback(StopAt(lambda: reached(rewards, args.window)))
        trainer.train()
    return len(rewards) * args.batch_size if reached(rewards, args.window) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first_seed", type=int, default=0, help="0 to tune, 100 to report")
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=600, help="at most")
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--lam", type=float, default=0.95)
    parser.add_argument("--critic", default="policy")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {"token": [], "end": []}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for where in found:
            found[where].append(run(where, seed, args))
        print(seed, {where: values[-1] for where, values in found.items()}, flush=True)
    record = {"settings": {k: str(v) for k, v in vars(args).items()}, "samples": found}
    # A run that never got there counts with all of its samples: the ratio is then an upper bound.
    limit = args.steps * args.batch_size
    ratios = [(a or limit) / (b or limit) for a, b in zip(found["token"], found["end"], strict=True)]
    record["ratio"] = {"mean": statistics.mean(ratios), "sd": statistics.stdev(ratios) if len(ratios) > 1 else None}
    record["not_reached"] = {where: values.count(None) for where, values in found.items()}
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
