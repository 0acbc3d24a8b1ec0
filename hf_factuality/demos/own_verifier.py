"""A small encoder with random weights and the passages of a closed world, for `hf-factuality train verifier` without data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_factuality.io.files import whole_folder
from hf_factuality.methods.verifier.data import claims_dataset, synthetic_claims
from hf_factuality.worlds import World, WorldConfig


if TYPE_CHECKING:
    from datasets import Dataset


_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def world_passages(world: World, split: str) -> list[str]:
    """What is known of each person of a split, as one passage."""
    return [" ".join(world.evidence(person)) for person in world.split(split)]


def synthetic_world_claims(world: World, split: str, count: int) -> Dataset:
    """Claims by [`synthetic_claims`] about the people of a split."""
    rows = synthetic_claims(world_passages(world, split), count)
    rows = [{**row, "topic": f"{split}, {row['topic']}"} for row in rows]  # those of two splits are other people
    return claims_dataset(rows, "sentences about people of a closed world, and edits of them")


def build_encoder(folder: str | Path, passages: list[str], hidden_size: int = 96, layers: int = 2) -> str:
    """A BERT with random weights, and a WordPiece tokenizer of these passages; its folder."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(passages, vocab_size=3000, min_frequency=1, special_tokens=_SPECIAL, show_progress=False)
    tokenizer = BertTokenizerFast(tokenizer_object=words._tokenizer, model_max_length=256)
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size, "num_hidden_layers": layers}
    config = BertConfig(
        vocab_size=len(tokenizer), **sizes, num_attention_heads=max(hidden_size // 32, 1), max_position_embeddings=256
    )
    with whole_folder(Path(folder), overwrite=True) as made:
        BertModel(config).save_pretrained(made)
        tokenizer.save_pretrained(made)
    return str(folder)


def demo_world() -> World:
    """The people that the demo reads about."""
    return World(WorldConfig())
