"""Training of the network of `small`, on a CPU or a GPU, and its weights as whole numbers of eight bits and of four.

    python benchmarks/small_verifier.py --data DATA --sources DIR --pack pairs.xz          # where the data are
    python benchmarks/_small_training.py pairs.xz --teacher FOLDER --out DIR               # where the GPU is

The second trains the shipped network further. Of libraries it needs torch, transformers, tokenizers and safetensors. FOLDER has a larger encoder, all-mpnet-base-v2 for one: it learns the pairs first, and then the
small network learns from them and from what it says of them.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _small_facts import FALSE, SUPPORTED, UNLABELLED, Pair
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedModel

from hf_factuality.verifiers.judges.small.network import FOLDER as SHIPPED
from hf_factuality.verifiers.judges.small.network import HEADS, halves
from hf_factuality.verifiers.judges.small.network import LONGEST as LONGEST_READ
from hf_factuality.worlds.lm import has_bfloat16


BATCH, LONGEST, LONGEST_CLAIM = 32, 192, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# On a CPU the backward pass of the fused attention is slower by a fifth of the whole.
ATTENTION = "sdpa" if DEVICE == "cuda" else "eager"
PIECES = 15_872
"""Pieces of words that the network knows: with all 30,522 of its base the weights would not fit into 25 MB."""
ALIKE = 40
"""Pairs are about as long if they have the same number of so many tokens."""
RANKED = 0.5
"""Weight of the ranking of claims about one evidence beside the cross-entropy."""
TEACHER_LOGITS = 0.02
"""Weight of the squared difference of a teacher's log odds beside that of the distributions."""
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
    """The network of `hf_factuality.verifiers.judges.small.network`, as it is trained, or a larger one of the same head.

    Args:
        bert (`PreTrainedModel`): An encoder. One without token types gets vectors of its own for the tokens of the claim.
    """

    def __init__(self, bert: PreTrainedModel):
        super().__init__()
        self.bert, size = bert, bert.config.hidden_size
        typed = getattr(bert.config, "type_vocab_size", 0) >= 2
        self.types = None if typed else nn.Embedding.from_pretrained(torch.zeros(2, size), freeze=False)
        self.norm, self.head = nn.LayerNorm(3 * size), nn.Linear(3 * size, 3)

    @classmethod
    def of(cls, base: str, dropout: float = 0.0) -> PairNetwork:
        """With the encoder of a folder; `dropout` is of states, attention has none."""
        return cls(
            AutoModel.from_pretrained(
                base,
                add_pooling_layer=False,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=0.0,
                attn_implementation=ATTENTION,
            )
        )

    @classmethod
    def shipped(cls, folder: Path) -> PairNetwork:
        """With the weights of the package, as far as eight and four bits tell them."""
        stored = load_file(folder / "weights.safetensors")
        words = "embeddings.word_embeddings.weight"
        stored[words] = halves(stored[words])
        state = {name: tensor.float() for name, tensor in stored.items() if not name.endswith(".scale")}
        for name in state:
            if f"{name}.scale" in stored:
                state[name] = state[name] * stored[f"{name}.scale"].float()
        pieces, size = state[words].shape
        config = BertConfig(
            vocab_size=pieces,
            hidden_size=size,
            num_hidden_layers=1 + max(int(name.split(".")[2]) for name in state if ".layer." in name),
            num_attention_heads=HEADS,
            intermediate_size=len(state["encoder.layer.0.intermediate.dense.weight"]),
            max_position_embeddings=LONGEST_READ,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config._attn_implementation = ATTENTION
        network = cls(BertModel(config, add_pooling_layer=False))
        network.pieces = stored[words].float(), stored[f"{words}.scale"].float()
        own = ("norm.", "head.")
        network.load_state_dict({name if name.startswith(own) else f"bert.{name}": it for name, it in state.items()})
        return network

    def drop(self, share: float) -> None:
        """Drop this share of states and of attention while training."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def keep_pieces(self, old: Sequence[int]) -> None:
        """Word vectors of these ids only, at values that four bits hold; they are not trained."""
        self.pieces = in_four_bits(self.bert.embeddings.word_embeddings.weight.detach()[list(old)])
        self.bert.embeddings.word_embeddings = nn.Embedding.from_pretrained(self.pieces[0] * self.pieces[1])

    def forward(self, ids: torch.Tensor, claim: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Logits of the three classes; `claim` is 1 at the tokens of the claim."""
        words = self.bert.embeddings.word_embeddings(ids)
        if self.types is None:
            read = self.bert(inputs_embeds=words, token_type_ids=claim, attention_mask=there)
        else:
            read = self.bert(inputs_embeds=words + self.types(claim), attention_mask=there)
        states, chosen = read.last_hidden_state, claim.bool().unsqueeze(-1)
        mean = (states * chosen).sum(1) / chosen.sum(1)
        highest = states.masked_fill(~chosen, -1e4).max(1).values
        return self.head(self.norm(torch.cat([states[:, 0], mean, highest], -1)))


def make_teacher(base: str, pieces: Sequence[str]) -> PairNetwork:
    """A larger network that reads the pieces of the small one: of each it has the vector of the piece of that name."""
    teacher, tokenizer = PairNetwork.of(base, dropout=0.1), AutoTokenizer.from_pretrained(base)
    special = dict(zip(SPECIAL, ("pad", "unk", "cls", "sep", "mask"), strict=True))
    ids = tokenizer.get_vocab()
    old = [getattr(tokenizer, f"{special[it]}_token_id") if it in special else ids[it] for it in pieces]
    vectors = teacher.bert.embeddings.word_embeddings.weight.detach()[old]
    teacher.bert.embeddings.word_embeddings = nn.Embedding.from_pretrained(vectors)
    return teacher


def in_four_bits(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers from -8 to 7 and the scale of each row, by which they are nearly the vectors."""
    # The largest numbers are cut: of .6 to 1 times the largest, .8 leaves the least error.
    scale = (vectors.abs().amax(1, keepdim=True) * 0.8 / 7).half().float()
    return (vectors / scale).round().clamp(-8, 7), scale


class Encoded(NamedTuple):
    """Pairs as the network reads them.

    Args:
        ids (`list[Sequence[int]]`): Tokens of each.
        starts (`list[int]`): Where its claim begins.
        labels (`list[int]`): Its class.
        blocks (`list[int]`, *optional*): A number per evidence.
    """

    ids: list[Sequence[int]]
    starts: list[int]
    labels: list[int]
    blocks: list[int] | None = None


def encode(tokenizer: Tokenizer, pairs: Sequence[Pair], blocks: Sequence[int] | None = None) -> Encoded:
    evidence = tokenizer.encode_batch([pair[0] for pair in pairs], add_special_tokens=False)
    claims = tokenizer.encode_batch([pair[1] for pair in pairs], add_special_tokens=False)
    first, last = [tokenizer.token_to_id("[CLS]")], [tokenizer.token_to_id("[SEP]")]
    found = Encoded([], [], [pair[2] for pair in pairs], None if blocks is None else [*blocks])
    for read, said in zip((one.ids for one in evidence), (one.ids for one in claims), strict=True):
        said = said[:LONGEST_CLAIM]
        read = read[: LONGEST - 3 - len(said)]
        found.ids.append(first + read + last + said + last)
        found.starts.append(len(read) + 2)
    return found


def draw(pairs: Encoded, count: int | None, unlabelled: bool, seed: int) -> Encoded:
    """All claims about evidence that is drawn at random, until there are so many pairs; without a count, all of them."""
    blocks: dict[int, list[int]] = {}
    for place, label in enumerate(pairs.labels):
        if unlabelled or label != UNLABELLED:
            blocks.setdefault(place if pairs.blocks is None else pairs.blocks[place], []).append(place)
    places: list[int] = []
    for block in random.Random(seed).sample([*blocks.values()], len(blocks)):
        places += block if count is None or len(places) < count else []
    return Encoded(*(None if column is None else [column[place] for place in places] for column in pairs))


def pack(encoded: Encoded, tokenizer: str, file: Path) -> None:
    """Write pairs and the tokenizer (JSON), compressed."""
    written = io.BytesIO()
    arrays = {
        "ids": np.array([token for ids in encoded.ids for token in ids], np.uint16),
        "lengths": np.array([len(ids) for ids in encoded.ids], np.uint8),
        "starts": np.array(encoded.starts, np.uint8),
        "labels": np.array(encoded.labels, np.int8),
        "blocks": np.array(encoded.blocks if encoded.blocks is not None else [], np.int32),
        "tokenizer": np.frombuffer(tokenizer.encode(), np.uint8),
    }
    np.savez(written, **arrays)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(written.getvalue(), preset=3))


def unpack(file: Path) -> tuple[Encoded, str]:
    """What [`pack`] wrote."""
    with np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False) as arrays:
        ends = np.cumsum(arrays["lengths"].astype(np.int64))
        ids = [part.tolist() for part in np.split(arrays["ids"], ends[:-1])]
        blocks = arrays["blocks"].tolist() or None
        pairs = Encoded(ids, arrays["starts"].tolist(), arrays["labels"].tolist(), blocks)
        return pairs, arrays["tokenizer"].tobytes().decode()


def padded(pairs: Sequence[tuple[Sequence[int], int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, which are of the claim, and which are there; of ids and where the claim begins."""
    width = max(len(ids) for ids, _ in pairs)
    ids = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _ in pairs])
    lengths, starts = (
        torch.tensor(column)[:, None] for column in zip(*((len(ids), own) for ids, own in pairs), strict=True)
    )
    places = torch.arange(width)[None]
    there = places < lengths
    return ids, (there & (places >= starts)).long(), there.long()


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy; of a pair that is false in one of the two ways, that of their sum. Pairs without a label do not count."""
    shares, known = logits.log_softmax(-1), labels != UNLABELLED
    one = shares.gather(1, labels.clamp(0, 2)[:, None])[:, 0]
    each = torch.where(labels == FALSE, shares[:, 1:].logsumexp(-1), one)
    return -(each * known).sum() / known.sum().clamp(min=1)


def odds_of(logits: torch.Tensor) -> torch.Tensor:
    """Log odds of support."""
    return logits[:, 0] - logits[:, 1:].logsumexp(-1)


def distance_to(teacher: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence from the distribution of the teacher (Hinton et al., 2015), and a part of the squared difference of
    log odds, of which differences above 5 count as 5."""
    divergence = nn.functional.kl_div(
        logits.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return divergence + TEACHER_LOGITS * (odds_of(logits) - odds_of(teacher)).square().clamp(max=25).mean()


def ranking_loss(logits: torch.Tensor, labels: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Over the pairs of a true and a false claim about one evidence, which `blocks` numbers, how far the false one has the better odds."""
    odds = odds_of(logits)
    true, false = labels == SUPPORTED, labels > SUPPORTED
    ranked = true[:, None] & false[None] & (blocks[:, None] == blocks[None])
    return nn.functional.softplus(odds[None] - odds[:, None])[ranked].sum() / ranked.sum().clamp(min=1)


def batches(pairs: Encoded, size: int, seed: int) -> list[list[int]]:
    """Places of the pairs of each batch: alike in length within a batch, at random among batches. Pairs of one block and about the same
    length follow each other, so that most are in one batch."""
    order = random.Random(seed)
    units: dict[tuple[int, int], list[int]] = {}
    for place, ids in enumerate(pairs.ids):
        unit = (place, 0) if pairs.blocks is None else (pairs.blocks[place], len(ids) // ALIKE)
        units.setdefault(unit, []).append(place)
    shuffled, found = [*units.values()], []
    order.shuffle(shuffled)
    while shuffled:
        part: list[list[int]] = []
        while shuffled and sum(map(len, part)) < size * 40:
            part.append(shuffled.pop())
        part.sort(key=lambda unit: max(len(pairs.ids[place]) for place in unit))
        places = [place for unit in part for place in unit]
        own = [places[first : first + size] for first in range(0, len(places), size)]
        order.shuffle(own)
        found += own
    return found


def train(
    network: PairNetwork,
    pairs: Encoded,
    rate: float,
    seed: int,
    batch: int = BATCH,
    teacher: PairNetwork | None = None,
    trust: float = 0.0,
) -> None:
    """One pass over the pairs, in bfloat16 where the processor has it; word vectors stay as they are, and on a CPU the first layer.

    If the pairs have blocks, those of one and about the same length are in one batch, and true claims are ranked above false ones. With
    a `teacher`, a share `trust` of the loss is the distance to what it says.
    """
    device = next(network.parameters()).device
    network.bert.embeddings.requires_grad_(False)
    if device.type == "cpu":
        network.bert.encoder.layer[0].requires_grad_(False)
    groups = batches(pairs, batch, seed)
    head = [*network.norm.parameters(), *network.head.parameters()]
    heads = {id(parameter) for parameter in head}
    body = [it for it in network.parameters() if it.requires_grad and id(it) not in heads]
    optimizer = torch.optim.AdamW([{"params": body, "lr": rate}, {"params": head, "lr": 5 * rate}], weight_decay=0.01)
    rates = [group["lr"] for group in optimizer.param_groups]
    half = device.type != "cpu" or has_bfloat16()
    started, mean = time.monotonic(), 0.0
    network.train()
    for number, group in enumerate(groups):
        for settings, full in zip(optimizer.param_groups, rates, strict=True):
            settings["lr"] = full * min(1.0, (number + 1) / 60) * (1 - number / len(groups))
        read = [column.to(device) for column in padded([(pairs.ids[place], pairs.starts[place]) for place in group])]
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = network(*read).float()
        labels = torch.tensor([pairs.labels[place] for place in group], device=device)
        loss = loss_of(logits, labels)
        mean = 0.98 * mean + 0.02 * loss.item() if number else loss.item()
        if pairs.blocks is not None:
            own = torch.tensor([pairs.blocks[place] for place in group], device=device)
            loss = loss + RANKED * ranking_loss(logits, labels, own)
        if teacher is not None:
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
                told = teacher(*read).float()
            loss = (1 - trust) * loss + trust * distance_to(told, logits)
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


def taken(pairs: Mapping[str, Sequence[Pair]], settings: Mapping, number: int) -> tuple[list[Pair], list[int] | None]:
    """The pairs of a run, as they are read, and a number per evidence if they are ranked."""
    from _small_pairs import as_read

    rng, ranked = random.Random(number), settings.get("ranked", False)
    chosen = [
        pair for name, count in settings["taken"].items() for pair in sample(pairs.get(name, []), count, ranked, rng)
    ]
    print(json.dumps({"run": number, "pairs": len(chosen), "rate": settings["rate"]}))
    numbers = {evidence: place for place, evidence in enumerate(dict.fromkeys(pair[0] for pair in chosen))}
    read = [*as_read(chosen, settings["closest"], settings.get("among", 0.0), number)]
    return read, [numbers[pair[0]] for pair in chosen] if ranked else None


def run(base: str, pairs: Mapping[str, Sequence[Pair]], runs: Sequence[Mapping], folder: Path) -> PairNetwork:
    """Train by the runs, one after the other, and save."""
    torch.manual_seed(0)
    texts = list({text for own in pairs.values() for pair in own for text in pair[:2]})
    written, old = fewer_pieces(Path(base) / "tokenizer.json", texts)
    network, tokenizer = PairNetwork.of(base), Tokenizer.from_str(written)
    network.keep_pieces(old)
    network.to(DEVICE)
    states: list[dict[str, torch.Tensor]] = []
    for number, settings in enumerate(runs, 1):
        encoded = encode(tokenizer, *taken(pairs, settings, number))
        network.drop(settings.get("dropout", 0.0))
        train(network, encoded, settings["rate"], number, settings.get("batch", BATCH))
        if "averaged" in settings:
            shares = settings["averaged"]
            parts = [(1 - sum(shares.values()), network.state_dict())]
            network.load_state_dict(mean_of([*parts, *((share, states[run - 1]) for run, share in shares.items())]))
        states.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        save(network, written, folder)
    return network


def distil(args: argparse.Namespace) -> None:
    """Train the shipped network on packed pairs, after a teacher if there is one, and save it."""
    torch.manual_seed(0)
    pairs, tokenizer = unpack(args.packed)
    own = args.shipped / "tokenizer.json"
    if tokenizer != own.read_text(encoding="utf-8"):
        raise SystemExit(
            f"{args.packed} was packed with another tokenizer than {own}; pack it anew with small_verifier.py --pack"
        )
    teacher = None
    if args.teacher:
        vocabulary = Tokenizer.from_str(tokenizer).get_vocab()
        teacher = make_teacher(args.teacher, sorted(vocabulary, key=vocabulary.__getitem__)).to(DEVICE)
        train(teacher, draw(pairs, args.teacher_pairs, False, 1), args.teacher_rate, 1, args.teacher_batch)
        teacher.eval().requires_grad_(False)
    network = PairNetwork.shipped(args.shipped).to(DEVICE)
    train(network, draw(pairs, args.pairs, teacher is not None, 2), args.rate, 2, args.batch, teacher, args.trust)
    save(network, tokenizer, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the network of `small` further on packed pairs.")
    parser.add_argument("packed", type=Path, help="what `small_verifier.py --pack` wrote")
    parser.add_argument("--shipped", type=Path, default=SHIPPED, help="folder of the weights to begin with")
    parser.add_argument("--teacher", help="folder of a larger encoder")
    parser.add_argument("--teacher_pairs", type=int, help="how many pairs it learns; all by default")
    parser.add_argument("--teacher_rate", type=float, default=4e-5)
    parser.add_argument("--teacher_batch", type=int, default=128)
    parser.add_argument("--pairs", type=int, help="how many pairs the small network learns; all by default")
    parser.add_argument("--rate", type=float, default=1.5e-4)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument(
        "--trust", type=float, default=0.6, help="share of the loss that is the distance to the teacher"
    )
    parser.add_argument("--out", type=Path, required=True)
    distil(parser.parse_args())


if __name__ == "__main__":
    main()
