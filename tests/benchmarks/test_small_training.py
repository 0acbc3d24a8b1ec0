"""The training of the network of `small`: what it reads, its losses, and the shipped network as a start."""

import random
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import BertTokenizerFast, MPNetConfig, MPNetModel


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _small_facts import FALSE, UNLABELLED  # noqa: E402
from _small_pairs import edited_pairs, written_pairs  # noqa: E402
from _small_training import (  # noqa: E402
    SHIPPED,
    Encoded,
    PairNetwork,
    batches,
    distance_to,
    distil,
    encode,
    loss_of,
    pack,
    padded,
    some,
    unpack,
)

from hf_factuality.verifiers.judges.small.network import load_network  # noqa: E402


@pytest.fixture(scope="module")
def pairs():
    return [pair for pair in written_pairs()[0] if pair[3] == "singles"][:40]


@pytest.fixture(scope="module")
def tokenizer():
    return (SHIPPED / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def encoded(pairs, tokenizer):
    numbers = {evidence: place for place, evidence in enumerate(dict.fromkeys(pair[0] for pair in pairs))}
    return encode(Tokenizer.from_str(tokenizer), pairs, [numbers[pair[0]] for pair in pairs])


def test_the_claim_is_marked(encoded, pairs, tokenizer):
    ids, claim, there = padded([*zip(encoded.ids[:3], encoded.starts[:3], strict=True)])
    known = Tokenizer.from_str(tokenizer)
    for row, own, seen, pair in zip(ids, claim.bool(), there.bool(), pairs, strict=False):
        assert known.decode(row[own].tolist()) == known.decode(known.encode(pair[1], add_special_tokens=False).ids)
        assert (own <= seen).all() and not row[~seen].any()


def test_packed_pairs_are_the_same(encoded, tokenizer, tmp_path):
    pack(encoded, tokenizer, tmp_path / "deep" / "pairs.xz")
    assert unpack(tmp_path / "deep" / "pairs.xz") == (encoded, tokenizer)
    alone = Encoded(encoded.ids, encoded.starts, encoded.labels)
    pack(alone, tokenizer, tmp_path / "pairs.xz")
    assert unpack(tmp_path / "pairs.xz")[0] == alone


def test_every_pair_is_in_one_batch_and_blocks_stay_together(encoded):
    found = batches(encoded, 8, seed=1)
    assert sorted(place for batch in found for place in batch) == [*range(len(encoded.ids))]
    assert max(map(len, found)) <= 8 and found != batches(encoded, 8, seed=2)
    assert batches(some(encoded, range(3)), 8, seed=1) in ([[0, 1, 2]], [[0, 2, 1]], [[1, 0, 2]])


def test_the_shipped_network_is_trained_further(encoded, pairs):
    network = PairNetwork.shipped(SHIPPED).eval()
    with torch.inference_mode():
        mine = network(*padded([*zip(encoded.ids[:8], encoded.starts[:8], strict=True)])).softmax(-1)
    theirs = torch.tensor(load_network().probabilities([pair[:2] for pair in pairs[:8]]))
    assert (mine - theirs).abs().max() < 0.06  # the package rounds what layers read


def test_pairs_without_a_label_are_left_to_the_teacher():
    logits = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.5, 0.0], [0.0, 3.0, 0.0]])
    labels = torch.tensor([0, UNLABELLED, FALSE])
    assert loss_of(logits, labels) == loss_of(logits[[0, 2]], labels[[0, 2]])
    assert distance_to(logits, logits) == 0
    assert distance_to(logits, logits + torch.tensor([1.0, 0.0, 0.0])) > 0


def test_claims_by_edits_have_no_label(pairs):
    found = edited_pairs(pairs, 10, seed=1)
    assert len(found) == 10 and {pair[2] for pair in found} == {UNLABELLED}
    told = {pair[:2] for pair in pairs}
    assert all(pair[:2] not in told and pair[0] in {own[0] for own in pairs} for pair in found)


@pytest.fixture
def teacher(tokenizer, tmp_path):
    """A folder with a tiny MPNet that knows the pieces of the small network under other ids, and its special ones by other names."""
    pieces = [
        piece
        for piece in Tokenizer.from_str(tokenizer).get_vocab()
        if piece not in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    ]
    random.Random(0).shuffle(pieces)
    vocabulary = {piece: place for place, piece in enumerate(["<s>", "<pad>", "</s>", "<mask>", *pieces])}
    folder = tmp_path / "teacher"
    BertTokenizerFast(
        tokenizer_object=Tokenizer(WordPiece(vocabulary, unk_token="[UNK]")), cls_token="<s>", sep_token="</s>", pad_token="<pad>",
        mask_token="<mask>", unk_token="[UNK]",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    MPNetModel(MPNetConfig(vocab_size=len(vocabulary), max_position_embeddings=200, **size)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("with_teacher", [True, False])
def test_training_on_packed_pairs(encoded, tokenizer, teacher, tmp_path, with_teacher):
    unlabelled = encoded._replace(labels=[*encoded.labels[:-8], *[UNLABELLED] * 8])
    pack(unlabelled, tokenizer, tmp_path / "pairs.xz")
    settings = dict(teacher_pairs=16, teacher_rate=1e-3, teacher_batch=8, pairs=16, rate=0.2, batch=8, trust=0.5)
    distil(Namespace(packed=tmp_path / "pairs.xz", shipped=SHIPPED, teacher=str(teacher) if with_teacher else None,
                     out=tmp_path / "out", **settings))  # fmt: skip
    before, after = (load_file(folder / "weights.safetensors") for folder in (SHIPPED, tmp_path / "out"))
    assert {name: (it.shape, it.dtype) for name, it in before.items()} == {
        name: (it.shape, it.dtype) for name, it in after.items()
    }
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "encoder.layer.5.output.dense.weight" in changed and "head.weight" in changed
    assert not any("embeddings" in name for name in changed)
    assert (tmp_path / "out" / "tokenizer.json").read_text(encoding="utf-8") == tokenizer
