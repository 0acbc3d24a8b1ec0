"""Training of the network of `small`, on one core, and its weights as whole numbers of eight bits."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from _small_facts import Pair
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer


BATCH, LONGEST, LONGEST_CLAIM = 32, 160, 64


class PairNetwork(nn.Module):
    """The network of `hf_factuality.verifiers.judges.small.network`, as it is trained: without dropout."""

    def __init__(self, base: str):
        super().__init__()
        self.bert = AutoModel.from_pretrained(
            base, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        width = 3 * self.bert.config.hidden_size
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor, claim: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Logits of the three classes; `claim` is 1 at the tokens of the claim."""
        states = self.bert(input_ids=ids, token_type_ids=claim, attention_mask=there).last_hidden_state
        chosen = claim.bool().unsqueeze(-1)
        mean = (states * chosen).sum(1) / chosen.sum(1)
        highest = states.masked_fill(~chosen, -1e4).max(1).values
        return self.head(self.norm(torch.cat([states[:, 0], mean, highest], -1)))


def encode(tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Ids of each pair, and which are of the claim."""
    evidence = tokenizer([pair[0] for pair in pairs], add_special_tokens=False, verbose=False)["input_ids"]
    claims = tokenizer([pair[1] for pair in pairs], add_special_tokens=False, verbose=False)["input_ids"]
    first, last = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    found = []
    for read, said in zip(evidence, claims, strict=True):
        said = said[:LONGEST_CLAIM]
        read = read[: LONGEST - 3 - len(said)]
        found.append((first + read + last + said + last, [0] * (len(read) + 2) + [1] * (len(said) + 1)))
    return found


def padded(encoded: Sequence[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, which are of the claim, and which are there."""
    width = max(len(ids) for ids, _ in encoded)
    rows = [
        (ids + [0] * (width - len(ids)), own + [0] * (width - len(own)), [1] * len(ids) + [0] * (width - len(ids)))
        for ids, own in encoded
    ]
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy; of a pair that is false in one of the two ways, that of their sum."""
    shares = logits.log_softmax(-1)
    one = shares.gather(1, labels.clamp(max=2)[:, None])[:, 0]
    return -torch.where(labels == 3, shares[:, 1:].logsumexp(-1), one).mean()


def train(
    network: PairNetwork, tokenizer, pairs: Sequence[Pair], rate: float, seed: int, minutes: float, batches: int | None
) -> None:
    """One pass over the pairs, or as far as `minutes` or `batches` reach; word vectors and the first layer stay as they are."""
    network.bert.embeddings.requires_grad_(False)
    network.bert.encoder.layer[0].requires_grad_(False)
    encoded, order = encode(tokenizer, pairs), random.Random(seed)
    places = [*range(len(pairs))]
    order.shuffle(places)
    groups = []
    for start in range(0, len(places), BATCH * 40):  # alike in length within a batch, at random among batches
        part = sorted(places[start : start + BATCH * 40], key=lambda place: len(encoded[place][0]))
        own = [part[first : first + BATCH] for first in range(0, len(part), BATCH)]
        order.shuffle(own)
        groups += own
    head = [*network.norm.parameters(), *network.head.parameters()]
    body = [parameter for parameter in network.bert.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": head, "lr": 5 * rate}], weight_decay=0.01)
    rates = [group["lr"] for group in optimizer.param_groups]
    started, mean = time.monotonic(), 0.0
    network.train()
    for number, group in enumerate(groups[:batches]):
        done = max(number / len(groups), (time.monotonic() - started) / (60 * minutes))
        if done >= 1:
            break
        for settings, full in zip(optimizer.param_groups, rates, strict=True):
            settings["lr"] = full * min(1.0, (number + 1) / 60) * (1 - done)
        loss = loss_of(
            network(*padded([encoded[place] for place in group])), torch.tensor([pairs[place][2] for place in group])
        )
        loss.backward()
        nn.utils.clip_grad_norm_([*body, *head], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = 0.98 * mean + 0.02 * loss.item() if number else loss.item()
        if (number + 1) % 50 == 0:
            print(
                f"{number + 1} of {len(groups)} batches, {time.monotonic() - started:.0f} s, loss {mean:.3f}",
                flush=True,
            )


def save(network: PairNetwork, base: str, folder: Path) -> None:
    """Weights and tokenizer as the package has them."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in network.state_dict().items():
        name, tensor = name.removeprefix("bert."), tensor.detach()
        if tensor.ndim == 2 and tensor.shape[1] >= 256 and name != "head.weight" and "token_type" not in name:
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            stored[name], stored[f"{name}.scale"] = (tensor / scale).round().to(torch.int8), scale
        elif tensor.is_floating_point():
            stored[name] = tensor if "norm" in name.lower() else tensor.half()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "weights.safetensors")
    shutil.copy(Path(base) / "tokenizer.json", folder / "tokenizer.json")


def run(base: str, pairs: Mapping[str, Sequence[Pair]], runs: Sequence[Mapping], folder: Path) -> PairNetwork:
    """Train by the runs, one after the other, and save."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, tokenizer = PairNetwork(base), AutoTokenizer.from_pretrained(base)
    for number, settings in enumerate(runs, 1):
        rng = random.Random(number)
        chosen = [
            pair
            for name, count in settings["taken"].items()
            for pair in rng.sample(pairs.get(name, []), min(count, len(pairs.get(name, []))))
        ]
        print(json.dumps({"run": number, "pairs": len(chosen), **{k: v for k, v in settings.items() if k != "taken"}}))
        train(network, tokenizer, chosen, settings["rate"], number, settings["minutes"], settings["batches"])
        save(network, base, folder)
    return network
