"""A model of random weights whose completions have drawn lengths: log-normal as in reasoning data, or all equal."""

from __future__ import annotations

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

from hf_factuality.worlds import World, WorldConfig
from hf_factuality.worlds.tokenizer import build_world_tokenizer


SIGMA = 0.8


def drawn_lengths(count: int, limit: int, rng: torch.Generator) -> torch.Tensor:
    """Log-normal with a mean of a quarter of the limit (before those above it are cut), in [1, limit].

    They are drawn one by one, so that who generates a batch in parts gets the same lengths as who generates it at once.
    """
    mu, drawn = math.log(limit / 4) - SIGMA**2 / 2, torch.stack([torch.randn((), generator=rng) for _ in range(count)])
    return torch.exp(mu + SIGMA * drawn).round().long().clamp(1, limit)


class DrawnLengths(LogitsProcessor):
    """Lets each row end where it was drawn to end."""

    def __init__(self, eos: int, limit: int, rng: torch.Generator | None):
        self.eos, self.limit, self.rng = eos, limit, rng
        self.start: int | None = None

    def __call__(self, input_ids, scores):
        if self.start is None:
            self.start = input_ids.size(1)
            equal = torch.full((len(input_ids),), self.limit)
            self.lengths = equal if self.rng is None else drawn_lengths(len(input_ids), self.limit, self.rng)
            self.lengths = self.lengths.to(scores.device)
        ends = self.lengths <= input_ids.size(1) - self.start + 1
        scores[:, self.eos] = -torch.inf
        scores[ends] = -torch.inf
        scores[ends, self.eos] = 0.0
        return scores


def draw_lengths(model, eos: int, limit: int, kind: str, seed: int) -> None:
    """Let `model.generate` make completions of drawn lengths: `kind` is "lognormal" or "equal"."""
    rng, own = torch.Generator().manual_seed(seed) if kind == "lognormal" else None, model._get_logits_processor

    def processors(*args, **kwargs):
        found = own(*args, **kwargs)
        found.append(DrawnLengths(eos, limit, rng))
        return found

    model._get_logits_processor = processors


def save_random_model(folder) -> World:
    """A Llama of 11 million random weights with the tokenizer of a closed world, which is returned."""
    world = World(WorldConfig(num_people=400))
    tokenizer = build_world_tokenizer(world)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=6, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return world
