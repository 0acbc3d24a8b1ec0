"""The training of the network of `small`: what it reads, its losses, and the shipped network as a start."""

import math
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
    draw,
    encode,
    loss_of,
    pack,
    padded,
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


def test_every_pair_is_in_one_batch_and_most_blocks_are_whole():
    """Of blocks of four in batches of eight, all of one length, none is split."""
    pairs = Encoded([[2, 5, 3, 6, 3]] * 40, [3] * 40, [0, 1] * 20, [place // 4 for place in range(40)])
    found = batches(pairs, 8, seed=1)
    assert sorted(place for batch in found for place in batch) == [*range(40)]
    assert all(len(batch) == 8 and len({pairs.blocks[place] for place in batch}) == 2 for batch in found)
    assert found == batches(pairs, 8, seed=1) != batches(pairs, 8, seed=2)


def test_pairs_are_drawn_by_evidence(encoded):
    labels = [UNLABELLED if place % 5 == 0 else label for place, label in enumerate(encoded.labels)]
    pairs = encoded._replace(labels=labels)
    few = draw(pairs, 12, False, seed=1)
    assert 12 <= len(few.ids) < 20 and UNLABELLED not in few.labels
    for block in {*few.blocks}:
        assert few.blocks.count(block) == sum(
            own == block and label != UNLABELLED for own, label in zip(pairs.blocks, labels, strict=True)
        )
    whole = draw(pairs, None, True, seed=1)
    assert sorted(zip(whole.starts, whole.labels, whole.blocks, strict=True)) == sorted(
        zip(pairs.starts, labels, pairs.blocks, strict=True)
    )
    assert draw(pairs, 12, False, seed=2) != few


def test_the_shipped_network_is_trained_further(encoded, pairs):
    network = PairNetwork.shipped(SHIPPED).eval()
    with torch.inference_mode():
        mine = network(*padded([*zip(encoded.ids[:8], encoded.starts[:8], strict=True)])).softmax(-1)
    theirs = torch.tensor(load_network().probabilities([pair[:2] for pair in pairs[:8]]))
    assert (mine - theirs).abs().max() < 0.06  # the package rounds what layers read


def test_states_are_dropped_while_training(encoded):
    network = PairNetwork.shipped(SHIPPED).train()
    read = padded([*zip(encoded.ids[:4], encoded.starts[:4], strict=True)])
    with torch.no_grad():
        whole = network(*read)
        network.drop(0.2)
        assert not torch.allclose(network(*read), whole, atol=1e-2)
        assert torch.equal(network.eval()(*read), whole)
        network.train().drop(0.0)
        assert torch.equal(network(*read), whole)


def test_pairs_without_a_label_are_left_to_the_teacher():
    logits = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.5, 0.0], [0.0, 3.0, 0.0]])
    labels = torch.tensor([0, UNLABELLED, FALSE])
    assert loss_of(logits, labels) == loss_of(logits[[0, 2]], labels[[0, 2]])


def test_losses_by_hand():
    """Two classes of equal odds and one that is out of the question: a half each."""
    even, sure = torch.tensor([[0.0, 0.0, -50.0]]), torch.tensor([[math.log(3), 0.0, -50.0]])
    assert loss_of(sure, torch.tensor([FALSE])).item() == pytest.approx(math.log(4))
    assert loss_of(sure, torch.tensor([0])).item() == pytest.approx(math.log(4 / 3))
    assert distance_to(even, even).item() == pytest.approx(0)
    # of the teacher's shares: 3/4 log(3/4 : 1/2) + 1/4 log(1/4 : 1/2), and .02 of log(3) squared
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5) + 0.02 * math.log(3) ** 2
    assert distance_to(sure, even).item() == pytest.approx(expected, rel=1e-4)


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


def changed(folder):
    before, after = (load_file(own / "weights.safetensors") for own in (SHIPPED, folder))
    assert {name: (it.shape, it.dtype) for name, it in before.items()} == {
        name: (it.shape, it.dtype) for name, it in after.items()
    }
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_training_on_packed_pairs(encoded, tokenizer, teacher, tmp_path):
    pack(encoded._replace(labels=[0, *[UNLABELLED] * 7, *encoded.labels[8:]]), tokenizer, tmp_path / "pairs.xz")
    settings = dict(teacher_pairs=16, teacher_rate=1e-3, teacher_batch=8, pairs=16, rate=0.2, batch=8)

    def run(name, **others):
        out = tmp_path / name
        distil(Namespace(packed=tmp_path / "pairs.xz", shipped=SHIPPED, out=out, **settings, **others))
        found = changed(out)
        assert "encoder.layer.5.output.dense.weight" in found and "head.weight" in found
        assert not any("embeddings" in name or "layer.0." in name for name in found)  # on a CPU
        assert (out / "tokenizer.json").read_text(encoding="utf-8") == tokenizer
        return load_file(out / "weights.safetensors")["head.weight"]

    alone = run("alone", teacher=None, trust=0.5)
    assert torch.equal(alone, run("again", teacher=None, trust=0.9))
    little, much = (run(f"{trust}", teacher=str(teacher), trust=trust) for trust in (0.1, 0.9))
    assert not torch.equal(little, much) and not torch.equal(little, alone)


def test_pairs_of_another_tokenizer_are_refused(encoded, tmp_path):
    pack(encoded, "{}", tmp_path / "pairs.xz")
    with pytest.raises(SystemExit, match="pairs.xz was packed with another tokenizer than .*tokenizer.json"):
        distil(Namespace(packed=tmp_path / "pairs.xz", shipped=SHIPPED))
