"""The network of the judge `small`: evidence and claim in one pass, and whether the first supports the second.

A BERT of twelve layers, gte-small trained further by `benchmarks/small_verifier.py`; what it was trained on, and under which
licences, is in `LICENSES.md` beside this file. The weights in `weights.safetensors` are whole numbers of eight bits with a scale
per row, those of the word vectors of four bits, two in a byte. What a layer reads is rounded to eight bits too, by a scale per
token, and pairs are not padded: so a claim's score does not depend on the batch it is in. The pass is written out here, since
importing transformers would take several seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor


FOLDER = Path(__file__).resolve().parent
WEIGHTS, TOKENIZER = FOLDER / "weights.safetensors", FOLDER / "tokenizer.json"
SUPPORTED, CONTRADICTED, NOT_SUPPORTED = 0, 1, 2
"""The classes."""
LONGEST, LONGEST_CLAIM = 192, 96
"""Tokens of a pair and of its claim; what is beyond is cut off."""
HEADS, EPSILON = 12, 1e-12
# Tokens of a pass: more than this leaves the caches of a core.
_PASS_TOKENS = 512
_PROCESS = os.getpid()


def digest() -> str:
    """Of the weights: verdicts of other weights are other verdicts."""
    return _digest(WEIGHTS.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _digest(changed: int) -> str:
    return sha256(WEIGHTS.read_bytes()).hexdigest()[:12]


@lru_cache(maxsize=1)
def load_network() -> Network:
    """The network of the package, read at the first claim and kept."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    with plain_torch():
        return Network(load_file(WEIGHTS), Tokenizer.from_file(str(TOKENIZER)))


@contextmanager
def plain_torch() -> Iterator[None]:
    """The network runs on the CPU in float32, whatever the training around it has set."""
    import torch

    threads = torch.get_num_threads()
    if os.getpid() != _PROCESS:  # a fork has none of the threads that OpenMP waits for
        torch.set_num_threads(1)
    try:
        with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.inference_mode():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def halves(packed: Tensor) -> Tensor:
    """The two numbers of four bits, from -8 to 7, in each byte of the rows of a matrix; rows are twice as long as a result."""
    from torch import int8, stack

    return stack([packed & 15, packed >> 4], -1).flatten(-2).to(int8) - 8


class Network:
    """A BERT whose head reads the first token, and the mean and the maximum over the tokens of the claim.

    Args:
        stored (`Mapping[str, Tensor]`):
            Names of a `BertModel` without its pooler; a matrix of eight bits has its scales under the same name with `.scale`, as
            has that of the word vectors, which is packed ([`halves`]).
        tokenizer (`Tokenizer`):
            Its WordPiece.
    """

    def __init__(self, stored: Mapping[str, Tensor], tokenizer: Tokenizer):
        import torch

        from hf_factuality.verifiers.int8 import Int8Linear

        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
        self.tokenizer = tokenizer
        self.first, self.last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
        words = "embeddings.word_embeddings.weight"
        self.words, self.word_scale = halves(stored[words]), stored[words + ".scale"].float()
        self.weights = {
            name: tensor.float()
            for name, tensor in stored.items()
            if not name.startswith(words) and f"{name}.scale" not in stored and not name.endswith(".scale")
        }

        def linear(*names: str) -> Int8Linear:
            """One layer of several that read the same."""
            parts = ("weight", "weight.scale", "bias")
            return Int8Linear(*(torch.cat([stored[f"{name}.{part}"] for name in names]) for part in parts))

        count = 1 + max(int(name.split(".")[2]) for name in stored if name.startswith("encoder.layer."))
        self.layers = [
            (
                f"encoder.layer.{layer}",
                linear(*(f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key", "value"))),
                linear(f"encoder.layer.{layer}.attention.output.dense"),
                linear(f"encoder.layer.{layer}.intermediate.dense"),
                linear(f"encoder.layer.{layer}.output.dense"),
            )
            for layer in range(count)
        ]

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, ...]]:
        """The probabilities of the three classes for each pair of evidence and claim."""
        encoded = self._encode(pairs)
        found: list[tuple[float, ...]] = []
        with plain_torch():
            for group in _passes([len(ids) for ids, _ in encoded]):
                found += map(tuple, self._logits(encoded[group]).softmax(-1).tolist())
        return found

    def tokens(self, text: str) -> int:
        """How many a text has."""
        return len(self.tokenizer.encode(_utf8(text), add_special_tokens=False).ids)

    def _encode(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
        """Ids of each pair, and where its claim begins."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encodings = self.tokenizer.encode_batch([_utf8(text) for text in texts], add_special_tokens=False)
        ids = {text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)}
        result = []
        for evidence, claim in pairs:
            said = ids[claim][:LONGEST_CLAIM]
            read = ids[evidence][: LONGEST - 3 - len(said)]
            result.append(([self.first, *read, self.last, *said, self.last], len(read) + 2))
        return result

    def _logits(self, encoded: Sequence[tuple[list[int], int]]) -> Tensor:
        """(pairs, 3). The tokens of all pairs stand in one row, without padding; each pair attends to itself alone."""
        import torch
        from torch.nn import functional as F

        lengths = [len(ids) for ids, _ in encoded]
        ids = torch.tensor([token for row, _ in encoded for token in row])
        places = torch.cat([torch.arange(length) for length in lengths])
        claim = torch.cat([torch.arange(len(row)) >= start for row, start in encoded])
        weights = self.weights

        def norm(name: str, values: Tensor) -> Tensor:
            return F.layer_norm(values, values.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON)

        states = self.words[ids].float() * self.word_scale[ids]
        states = states + weights["embeddings.token_type_embeddings.weight"][claim.long()]
        states = norm("embeddings.LayerNorm", states + weights["embeddings.position_embeddings.weight"][places])
        for name, attended, written, inner, outer in self.layers:
            # (queries, keys and values; one; heads; tokens; numbers), and of each pair its tokens.
            heads = attended(states).view(len(ids), 3, 1, HEADS, -1).permute(1, 2, 3, 0, 4)
            seen = torch.cat([F.scaled_dot_product_attention(*pair) for pair in heads.split(lengths, 3)], 2)
            states = norm(f"{name}.attention.output.LayerNorm", written(seen[0].transpose(0, 1).flatten(1)) + states)
            states = norm(f"{name}.output.LayerNorm", outer(F.gelu(inner(states))) + states)
        read = []
        for pair, (_, start) in zip(states.split(lengths), encoded, strict=True):
            read.append(torch.cat([pair[0], pair[start:].mean(0), pair[start:].max(0).values]))
        return F.linear(norm("norm", torch.stack(read)), weights["head.weight"], weights["head.bias"])


def _utf8(text: str) -> str:
    """Without lone surrogates, which a model's text may hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _passes(lengths: Sequence[int]) -> Iterator[slice]:
    """Groups of pairs, in order."""
    first = tokens = 0
    for place, length in enumerate(lengths):
        if tokens and tokens + length > _PASS_TOKENS:
            yield slice(first, place)
            first, tokens = place, 0
        tokens += length
    if tokens:
        yield slice(first, len(lengths))
