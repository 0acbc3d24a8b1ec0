"""The network of the judge `small`: evidence and claim in one pass, and whether the first supports the second.

A BERT of twelve layers, gte-small trained further by `benchmarks/small_verifier.py`; what it was trained on, and under which
licences, is in `LICENSES.md` beside this file. The weights in `weights.safetensors` are whole numbers of eight bits with a scale
per row, those of the word vectors of four bits, two in a byte. The layers compute in float32, so that a claim's score does not
depend on the batch it is in. The pass is written out here, since importing transformers would take several seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
# Tokens of a pass, padding included: more than this leaves the caches of a core.
_PASS_TOKENS = 2048


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

    return Network(load_file(WEIGHTS), Tokenizer.from_file(str(TOKENIZER)))


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
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
        self.tokenizer = tokenizer
        self.first, self.last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
        words = "embeddings.word_embeddings.weight"
        self.words, self.word_scale = halves(stored[words]), stored[words + ".scale"].float()
        self.weights = {
            name: tensor.float() * stored[f"{name}.scale"].float() if f"{name}.scale" in stored else tensor.float()
            for name, tensor in stored.items()
            if not name.startswith(words) and not name.endswith(".scale")
        }
        self.layers = 1 + max(int(name.split(".")[2]) for name in self.weights if name.startswith("encoder.layer."))

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, ...]]:
        """The probabilities of the three classes for each pair of evidence and claim."""
        import torch

        encoded = self._encode(pairs)
        found: list[tuple[float, ...]] = [()] * len(pairs)
        with torch.inference_mode():
            for places in _passes([len(ids) for ids, _ in encoded]):
                logits = self._logits([encoded[place] for place in places])
                for place, row in zip(places, logits.softmax(-1).tolist(), strict=True):
                    found[place] = tuple(row)
        return found

    def _encode(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
        """Ids of each pair, and where its claim begins."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        # Lone surrogates, which a model's text may hold, are no UTF-8.
        written = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings = self.tokenizer.encode_batch(written, add_special_tokens=False)
        ids = {text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)}
        result = []
        for evidence, claim in pairs:
            said = ids[claim][:LONGEST_CLAIM]
            read = ids[evidence][: LONGEST - 3 - len(said)]
            result.append(([self.first, *read, self.last, *said, self.last], len(read) + 2))
        return result

    def _logits(self, encoded: Sequence[tuple[list[int], int]]) -> Tensor:
        import torch
        from torch.nn import functional as F

        width = max(len(ids) for ids, _ in encoded)
        ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in encoded])
        places = torch.arange(width)
        starts = torch.tensor([start for _, start in encoded])[:, None]
        ends = torch.tensor([len(row) for row, _ in encoded])[:, None]
        there = places < ends
        claim = there & (places >= starts)
        weights = self.weights

        def norm(name: str, values: Tensor) -> Tensor:
            return F.layer_norm(values, values.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON)

        def linear(name: str, values: Tensor) -> Tensor:
            return F.linear(values, weights[f"{name}.weight"], weights[f"{name}.bias"])

        states = self.words[ids].float() * self.word_scale[ids]
        states = states + weights["embeddings.token_type_embeddings.weight"][claim.long()]
        states = norm("embeddings.LayerNorm", states + weights["embeddings.position_embeddings.weight"][:width])
        mask = there[:, None, None, :]
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            parts = [
                linear(f"{at}.attention.self.{part}", states).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            ]
            seen = F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)
            states = norm(f"{at}.attention.output.LayerNorm", linear(f"{at}.attention.output.dense", seen) + states)
            inner = F.gelu(linear(f"{at}.intermediate.dense", states))
            states = norm(f"{at}.output.LayerNorm", linear(f"{at}.output.dense", inner) + states)
        chosen = claim.unsqueeze(-1)
        mean = (states * chosen).sum(1) / chosen.sum(1)
        highest = states.masked_fill(~chosen, -1e4).max(1).values
        return linear("head", norm("norm", torch.cat([states[:, 0], mean, highest], -1)))


def _passes(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Groups of pairs of like length."""
    group: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[place] > _PASS_TOKENS:
            yield group
            group = []
        group.append(place)
    if group:
        yield group
