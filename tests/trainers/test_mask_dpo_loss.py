"""Loss and gradient of MaskDPO against a loop over single tokens that shares no code with trainer, collator or TRL.

The loop writes the template out itself, tells the characters of a token from its bytes, labels each character, cuts the
sequence, runs the model in float64 on one sequence at a time and adds up the log-probabilities that count.
"""

import math
import random
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality import Label, MaskDPOConfig, MaskDPOTrainer
from tests.conftest import fast_few
from tests.trainers.mask_dpo_recording import SETTINGS, pairs


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _oracles import character_bytes, gpt2_bytes  # noqa: E402


BETA = 0.2
GOOD, BAD = {"supported", "hedged_supported", "no_fact"}, {"unverifiable", "hedged_contradicted", "contradicted"}


def random_pairs(n, seed):
    """Spans of random ranges with random labels, some not judged, in order and without overlap."""
    draw, rows = random.Random(seed), pairs(n, seed=seed).to_list()
    for row in rows:
        for side in ("chosen", "rejected"):
            text = row[side][0]["content"]
            cuts = sorted(draw.sample(range(len(text) + 1), 8))
            labels = [draw.choice([*Label, None]) for _ in range(4)]
            row[f"{side}_spans"] = [
                {"start": a, "end": b, "label": label and label.value}
                for a, b, label in zip(cuts[::2], cuts[1::2], labels, strict=True)
            ]
    return Dataset.from_list(rows)


def character_ranges(tokenizer, ids):
    """Characters of each token, from its bytes."""
    stand_ins, added = gpt2_bytes(), tokenizer.get_added_vocab()
    data, bounds = b"", []
    for token in tokenizer.convert_ids_to_tokens(ids):
        part = token.encode() if token in added else bytes(stand_ins[letter] for letter in token)
        bounds.append((len(data), len(data) + len(part)))
        data += part
    characters = character_bytes(data)
    text = "".join(character for character, _, _ in characters)
    return text, [
        [n for n, (_, start, end) in enumerate(characters) if start < last and end > first] for first, last in bounds
    ]


def kept_tokens(tokenizer, row, side, labels, outside, max_length, mode):
    """Ids of the truncated sequence, positions in it that count (by their own token), and those that TRL would count."""
    head = f"<|user|>{row['prompt'][0]['content']}<|end|><|assistant|>"
    content = row[side][0]["content"]
    ids = tokenizer(head + content + "<|end|>")["input_ids"]
    n_prompt = len(tokenizer(head)["input_ids"])
    text, characters = character_ranges(tokenizer, ids)
    assert text == head + content + "<|end|>"
    owner = {}  # character -> span; white space at the edges of a span is not its own
    for number, span in enumerate(row[f"{side}_spans"]):
        places = list(range(span["start"], span["end"]))
        while places and content[places[0]].isspace():
            places.pop(0)
        while places and content[places[-1]].isspace():
            places.pop()
        owner.update({len(head) + place: number for place in places})
    counted = []
    for position in range(n_prompt, len(ids)):
        held = [owner[c] for c in characters[position] if c in owner]
        if held:
            most = max(range(4), key=held.count)  # the first of several
            counted.append(row[f"{side}_spans"][most]["label"] in labels)
        else:
            counted.append(outside == "keep" or (outside == "after_last" and characters[position][0] > max(owner)))
    flags = [False] * n_prompt + counted
    window = slice(None, max_length) if mode == "keep_start" else slice(-max_length, None)
    return ids[window], [place for place, flag in enumerate(flags[window]) if flag]


def token_logps(model, ids):
    """Log-probability of each token given those before it; nothing for the first."""
    logits = model(torch.tensor([ids])).logits[0]
    return [None] + [torch.log_softmax(logits[i - 1], dim=-1)[ids[i]] for i in range(1, len(ids))]


def loop_loss(policy, reference, examples, loss_type, ld_alpha=None):
    """`examples`: per pair, (ids, counted positions) of both sides."""
    losses, nll, n_nll = [], 0.0, 0
    for pair in examples:
        ratios = []
        shared = min(len(places) for _, places in pair)
        for ids, places in pair:
            ours = token_logps(policy, ids)
            with torch.no_grad():
                theirs = token_logps(reference, ids)
            total = 0.0
            for rank, place in enumerate(places):
                weight = 1.0 if ld_alpha is None or rank < shared else ld_alpha
                total = total + weight * (ours[place] - theirs[place])
            ratios.append((total, len(places)))
            if len(ratios) == 1:
                nll, n_nll = nll - sum(ours[place] for place in places), n_nll + len(places)
        (chosen, n_chosen), (rejected, n_rejected) = ratios
        if loss_type == "sigmoid":
            losses.append(torch.log1p(torch.exp(-BETA * (chosen - rejected))))
        elif loss_type == "hinge":
            losses.append(torch.clamp(1 - BETA * (chosen - rejected), min=0))
        elif loss_type == "ipo":
            losses.append((chosen / n_chosen - rejected / n_rejected - 1 / (2 * BETA)) ** 2)
        elif loss_type == "sigmoid_norm":
            losses.append(torch.log1p(torch.exp(-BETA * (chosen / n_chosen - rejected / n_rejected))))
    return nll / n_nll if loss_type == "sft" else sum(losses) / len(losses)


def perturbed(path, seed):
    model = AutoModelForCausalLM.from_pretrained(path)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


CASES = [
    ("sigmoid", "keep_start", "drop", None), ("sigmoid", "keep_end", "drop", None),
    ("hinge", "keep_start", "after_last", None), ("hinge", "keep_end", "keep", None),
    ("ipo", "keep_start", "drop", None), ("ipo", "keep_end", "after_last", None),
    ("sigmoid", "keep_start", "drop", 0.3), ("sigmoid_norm", "keep_end", "drop", None), ("sft", "keep_start", "drop", None),
]  # fmt: skip


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
@pytest.mark.parametrize("loss_type, mode, outside, ld_alpha", fast_few(CASES, 5, 6, 7))
def test_loss_and_gradient_equal_a_token_loop(tiny_model, tmp_path, loss_type, mode, outside, ld_alpha, seed):
    data, max_length = random_pairs(14, seed), 37
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    examples, stay = [], []
    for number, row in enumerate(data):
        pair, sentence_tokens = [], []
        for side, labels in (("chosen", GOOD), ("rejected", BAD)):
            pair.append(kept_tokens(tokenizer, row, side, labels, outside, max_length, mode))
            sentence_tokens.append(kept_tokens(tokenizer, row, side, labels, "drop", max_length, mode)[1])
        if all(sentence_tokens):
            examples.append(pair)
            stay.append(number)
    assert 4 <= len(examples) < len(data), "some pairs are dropped, and some are not"

    args = MaskDPOConfig(
        output_dir=str(tmp_path), loss_type=[loss_type], truncation_mode=mode, tokens_outside=outside, beta=BETA,
        ld_alpha=ld_alpha, max_length=max_length, **SETTINGS,
    )  # fmt: skip
    trainer = MaskDPOTrainer(tiny_model, perturbed(tiny_model, 1), args, train_dataset=data)
    assert trainer.train_dataset["prompt"][:] == [data[number]["prompt"] for number in stay]
    lengths = [len(row["prompt_ids"]) + len(row["chosen_ids"]) for row in trainer.train_dataset]
    assert min(lengths) <= max_length < max(lengths), "some are truncated, and some are not"
    statistics = trainer.mask_statistics["train"]
    assert (statistics.pairs, statistics.dropped) == (len(data), len(data) - len(stay))
    trainer.model.load_state_dict(perturbed(tiny_model, 2).state_dict())
    batch = trainer.data_collator(list(trainer.train_dataset))
    loss = trainer._compute_loss(trainer.model, batch, return_outputs=False)
    loss.backward()

    policy, reference = perturbed(tiny_model, 2).double(), perturbed(tiny_model, 1).double()
    expected = loop_loss(policy, reference, examples, loss_type, ld_alpha)
    expected.backward()
    assert math.isclose(loss.item(), expected.item(), rel_tol=1e-5)
    assert expected.item() != pytest.approx(math.log(2), rel=1e-4), "policy and reference differ"
    gradients = dict(policy.named_parameters())
    difference = total = 0.0
    for name, parameter in trainer.model.named_parameters():
        want = gradients[name].grad
        difference += (parameter.grad.double() - want).square().sum().item()
        total += want.square().sum().item()
        torch.testing.assert_close(parameter.grad.double(), want, rtol=1e-3, atol=1e-5 * want.abs().max().item())
    assert math.sqrt(difference / total) <= 1e-5
