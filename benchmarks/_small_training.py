"""Training of the network of `small`, on a CPU, and its weights as whole numbers of eight bits and of four."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from _small_facts import SUPPORTED, Pair
from _small_pairs import as_read
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel

from hf_factuality.verifiers.judges.small.network import LONGEST as LONGEST_READ
from hf_factuality.worlds.lm import has_bfloat16


BATCH, LONGEST, LONGEST_CLAIM = 32, 192, 64
PIECES = 15_872
"""Pieces of words that the network knows: with all 30,522 of its base the weights would not fit into 25 MB."""
ALIKE = 40
"""Pairs are about as long if they have the same number of so many tokens."""
RANKED = 0.5
"""Weight of the ranking of claims about one evidence beside the cross-entropy."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def fewer_pieces(tokenizer_file: Path, texts: Sequence[str]) -> tuple[str, list[int]]:
    """The tokenizer (JSON) with the special tokens, Latin letters and the most frequent pieces, and their ids before."""
    specification = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    ids = specification["model"]["vocab"]
    names, counts = {number: piece for piece, number in ids.items()}, Counter()
    whole = Tokenizer.from_file(str(tokenizer_file))
    whole.no_padding()
    whole.no_truncation()
    for start in range(0, len(texts), 2000):
        for encoding in whole.encode_batch(texts[start : start + 2000], add_special_tokens=False):
            counts.update(encoding.ids)
    letters = [piece for piece in ids if len(piece.removeprefix("##")) == 1 and ord(piece[-1]) < 0x250]
    kept = list(dict.fromkeys([*SPECIAL, *letters, *(names[number] for number, _ in counts.most_common())]))[:PIECES]
    now = specification["model"]["vocab"] = {piece: number for number, piece in enumerate(kept)}
    for added in specification["added_tokens"]:
        added["id"] = now[added["content"]]
    for name, special in specification["post_processor"]["special_tokens"].items():
        special["ids"] = [now[name]]
    specification["padding"] = specification["truncation"] = None
    return json.dumps(specification, ensure_ascii=False, separators=(",", ":")), [ids[piece] for piece in kept]


class PairNetwork(nn.Module):
    """The network of `hf_factuality.verifiers.judges.small.network`, as it is trained: without dropout."""

    def __init__(self, base: str):
        super().__init__()
        # On a CPU the backward pass of the fused attention is slower by a fifth of the whole.
        self.bert = AutoModel.from_pretrained(
            base,
            add_pooling_layer=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        )
        width = 3 * self.bert.config.hidden_size
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def keep_pieces(self, old: Sequence[int]) -> None:
        """Word vectors of these ids only, at values that four bits hold; they are not trained."""
        self.pieces = in_four_bits(self.bert.embeddings.word_embeddings.weight.detach()[list(old)])
        self.bert.embeddings.word_embeddings = nn.Embedding.from_pretrained(self.pieces[0] * self.pieces[1])

    def forward(self, ids: torch.Tensor, claim: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Logits of the three classes; `claim` is 1 at the tokens of the claim."""
        states = self.bert(input_ids=ids, token_type_ids=claim, attention_mask=there).last_hidden_state
        chosen = claim.bool().unsqueeze(-1)
        mean = (states * chosen).sum(1) / chosen.sum(1)
        highest = states.masked_fill(~chosen, -1e4).max(1).values
        return self.head(self.norm(torch.cat([states[:, 0], mean, highest], -1)))


def in_four_bits(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers from -8 to 7 and the scale of each row, by which they are nearly the vectors."""
    # The largest numbers are cut: of .6 to 1 times the largest, .8 leaves the least error.
    scale = (vectors.abs().amax(1, keepdim=True) * 0.8 / 7).half().float()
    return (vectors / scale).round().clamp(-8, 7), scale


def encode(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Ids of each pair, and which are of the claim."""
    evidence = tokenizer.encode_batch([pair[0] for pair in pairs], add_special_tokens=False)
    claims = tokenizer.encode_batch([pair[1] for pair in pairs], add_special_tokens=False)
    first, last = [tokenizer.token_to_id("[CLS]")], [tokenizer.token_to_id("[SEP]")]
    found = []
    for read, said in zip((one.ids for one in evidence), (one.ids for one in claims), strict=True):
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


def ranking_loss(logits: torch.Tensor, labels: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Over the pairs of a true and a false claim about one evidence, which `blocks` numbers, how far the false one has the better odds."""
    odds = logits[:, 0] - logits[:, 1:].logsumexp(-1)
    true = labels == SUPPORTED
    ranked = true[:, None] & ~true[None] & (blocks[:, None] == blocks[None])
    return nn.functional.softplus(odds[None] - odds[:, None])[ranked].sum() / ranked.sum().clamp(min=1)


def train(
    network: PairNetwork,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    rate: float,
    seed: int,
    blocks: Sequence[int] | None = None,
) -> None:
    """One pass over the pairs, in bfloat16 where the processor has it; word vectors and the first layer stay as they are.

    With `blocks`, a number per pair, pairs of one number and about the same length are in one batch, and true claims are ranked above
    false ones.
    """
    network.bert.embeddings.requires_grad_(False)
    network.bert.encoder.layer[0].requires_grad_(False)
    encoded, order = encode(tokenizer, pairs), random.Random(seed)
    units: dict[tuple[int, int], list[int]] = {}
    for place in range(len(pairs)):
        length = len(encoded[place][0]) // ALIKE
        units.setdefault((place, 0) if blocks is None else (blocks[place], length), []).append(place)
    shuffled = [*units.values()]
    order.shuffle(shuffled)
    groups: list[list[int]] = []
    while shuffled:  # alike in length within a batch, at random among batches
        part: list[list[int]] = []
        while shuffled and sum(map(len, part)) < BATCH * 40:
            part.append(shuffled.pop())
        part.sort(key=lambda unit: max(len(encoded[place][0]) for place in unit))
        places = [place for unit in part for place in unit]
        own = [places[first : first + BATCH] for first in range(0, len(places), BATCH)]
        order.shuffle(own)
        groups += own
    head = [*network.norm.parameters(), *network.head.parameters()]
    body = [parameter for parameter in network.bert.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": head, "lr": 5 * rate}], weight_decay=0.01)
    rates = [group["lr"] for group in optimizer.param_groups]
    half = has_bfloat16()
    started, mean = time.monotonic(), 0.0
    network.train()
    for number, group in enumerate(groups):
        for settings, full in zip(optimizer.param_groups, rates, strict=True):
            settings["lr"] = full * min(1.0, (number + 1) / 60) * (1 - number / len(groups))
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = network(*padded([encoded[place] for place in group])).float()
        labels = torch.tensor([pairs[place][2] for place in group])
        loss = loss_of(logits, labels)
        mean = 0.98 * mean + 0.02 * loss.item() if number else loss.item()
        if blocks is not None:
            loss = loss + RANKED * ranking_loss(logits, labels, torch.tensor([blocks[place] for place in group]))
        loss.backward()
        nn.utils.clip_grad_norm_([*body, *head], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (number + 1) % 50 == 0:
            seconds = time.monotonic() - started
            print(f"{number + 1} of {len(groups)} batches, {seconds:.0f} s, loss {mean:.3f}", flush=True)


def save(network: PairNetwork, tokenizer: str, folder: Path) -> None:
    """Weights and tokenizer (JSON) as the package has them."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in network.state_dict().items():
        name, tensor = name.removeprefix("bert."), tensor.detach()
        if "word_embeddings" in name:
            numbers, scale = network.pieces
            low, high = (numbers + 8).to(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
            stored[name], stored[f"{name}.scale"] = low | high << 4, scale.half()
        elif "position_embeddings" in name:
            stored[name] = tensor[:LONGEST_READ].half()
        elif tensor.ndim == 2 and tensor.shape[1] >= 256 and name != "head.weight" and "token_type" not in name:
            scale = (tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127).half()
            stored[name], stored[f"{name}.scale"] = (
                (tensor / scale.float()).round().clamp(-127, 127).to(torch.int8),
                scale,
            )
        else:
            stored[name] = tensor.half()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "weights.safetensors")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


def sample(pairs: Sequence[Pair], count: int, whole: bool, rng: random.Random) -> list[Pair]:
    """So many of the pairs at most; with `whole`, all claims about an evidence or none of them, and about so many."""
    if not whole:
        return rng.sample(pairs, min(count, len(pairs)))
    blocks: dict[str, list[Pair]] = {}
    for pair in pairs:
        blocks.setdefault(pair[0], []).append(pair)
    found: list[Pair] = []
    for block in rng.sample([*blocks.values()], len(blocks)):
        found += block if len(found) < count else []
    return found


def mean_of(states: Sequence[tuple[float, Mapping[str, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """The mean of states of one network, each with its share."""
    return {name: torch.stack([share * state[name] for share, state in states]).sum(0) for name in states[0][1]}


def run(base: str, pairs: Mapping[str, Sequence[Pair]], runs: Sequence[Mapping], folder: Path) -> PairNetwork:
    """Train by the runs, one after the other, and save."""
    torch.manual_seed(0)
    texts = list({text for own in pairs.values() for pair in own for text in pair[:2]})
    written, old = fewer_pieces(Path(base) / "tokenizer.json", texts)
    network, tokenizer = PairNetwork(base), Tokenizer.from_str(written)
    network.keep_pieces(old)
    states: list[dict[str, torch.Tensor]] = []
    for number, settings in enumerate(runs, 1):
        rng, ranked = random.Random(number), settings.get("ranked", False)
        chosen = [
            pair
            for name, count in settings["taken"].items()
            for pair in sample(pairs.get(name, []), count, ranked, rng)
        ]
        print(json.dumps({"run": number, "pairs": len(chosen), "rate": settings["rate"]}))
        numbers = {evidence: place for place, evidence in enumerate(dict.fromkeys(pair[0] for pair in chosen))}
        blocks = [numbers[pair[0]] for pair in chosen] if ranked else None
        read = [*as_read(chosen, settings["closest"], settings.get("among", 0.0), number)]
        train(network, tokenizer, read, settings["rate"], number, blocks)
        if "averaged" in settings:
            shares = settings["averaged"]
            parts = [(1 - sum(shares.values()), network.state_dict())]
            network.load_state_dict(mean_of([*parts, *((share, states[run - 1]) for run, share in shares.items())]))
        states.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        save(network, written, folder)
    return network
