"""Completions that go on from faithful prefixes: which tokens are kept, that they carry no loss, and what is judged."""

import pytest
from transformers import AutoTokenizer

from hf_factuality import FactGRPOConfig, Label, LabeledSpan, Verification
from hf_factuality.methods.faithrl.formula import FAITHRL
from hf_factuality.methods.faithrl.rollout import FaithfulPrefixRollout
from hf_factuality.offsets import token_offsets
from tests.tiny import rows
from tests.trainers.recording import SETTINGS, FactGRPO, record_last_states


class Thirds:
    """A step for each third of a text: the first is true, the second false in every other question, the last is true."""

    requires_evidence = False

    def __init__(self):
        self.asked = []

    def verify(self, inputs):
        self.asked.append([item.completion for item in inputs])
        return [Verification(tuple(self.steps(item.completion))) for item in inputs]

    def steps(self, text):
        third = len(text) // 3
        second = Label.CONTRADICTED if len(text) % 2 else Label.SUPPORTED
        if third:
            yield from (
                LabeledSpan(0, third, Label.SUPPORTED),
                LabeledSpan(third, 2 * third, second),
                LabeledSpan(2 * third, len(text), Label.SUPPORTED),
            )


class Recorded(FaithfulPrefixRollout):
    def __init__(self):
        self.found = []

    def __call__(self, prompts, trainer):
        self.found.append(super().__call__(prompts, trainer))
        return self.found[-1]


def continued(trainer):
    return [entry["faithrl/continued"] for entry in trainer.state.log_history if "faithrl/continued" in entry]


def outcome(completions, **columns):
    return [float(len(str(it)) % 2) for it in completions]


def trained(model, folder, verifier, credit=FAITHRL, **settings):
    args = FactGRPOConfig(
        str(folder),
        **{**SETTINGS, "max_steps": 2, "max_completion_length": 12, "verify_scope": "completion", **settings},
    )
    trainer = FactGRPO(model, outcome, args, rows(), verifier=verifier, credit=credit, rollout_func=Recorded())
    return trainer


def test_a_prefix_is_the_text_before_the_first_false_step_and_carries_no_loss(tiny_model, tmp_path):
    verifier = Thirds()
    trainer = trained(tiny_model, tmp_path, verifier)
    trainer.skip_padding = False  # with which a pass has all rows and columns
    seen = record_last_states(trainer)
    trainer.train()
    # The first completions are judged, then all of them.
    firsts, whole = verifier.asked[0], verifier.asked[1]
    assert len(whole) == 2 * len(firsts) and whole[::2] == firsts
    found, kept = trainer.rollout_func.found[0], []
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for row, (ids, mask) in enumerate(zip(found["completion_ids"], found["env_mask"], strict=True)):
        prefix = mask.count(0)
        assert mask == [0] * prefix + [1] * (len(ids) - prefix)
        if row % 2 == 0:
            assert not prefix
            continue
        first, text = found["completion_ids"][row - 1], firsts[row // 2]
        assert ids[:prefix] == first[:prefix]
        if len(text) % 2:  # its second third is false
            before = token_offsets(tokenizer, first).offsets
            assert prefix == sum(stop <= len(text) // 3 for _, stop in before)
        else:
            assert not prefix
        kept.append(prefix)
    assert any(kept) and not all(kept)
    masks = [batch["completion_mask"] * batch["tool_mask"] for batch in trainer.batches]
    for states, mask, batch in zip(seen, masks, trainer.batches, strict=True):
        gradient = states.grad[:, -mask.shape[1] - 1 : -1].abs().sum(-1)
        assert (gradient[mask == 0] == 0).all() and (batch["advantages"][mask == 0] == 0).all()
    assert sum(float((batch["advantages"] != 0).sum()) for batch in trainer.batches) > 0
    assert continued(trainer)[0] == pytest.approx(sum(map(bool, kept)) / len(kept))


def test_where_nothing_is_false_all_are_sampled_from_the_prompt(tiny_model, tmp_path):
    class AllTrue(Thirds):
        def steps(self, text):
            yield LabeledSpan(0, len(text), Label.SUPPORTED)

    trainer = trained(tiny_model, tmp_path, AllTrue())
    trainer.train()
    assert all(batch["tool_mask"].all() for batch in trainer.batches)
    assert continued(trainer) == [0.0]


def test_a_batch_that_is_judged_in_two_parts_counts_once(tiny_model, tmp_path, monkeypatch):
    """Or a verifier that is away for a while would end a training after half as many batches."""
    trainer, counted = trained(tiny_model, tmp_path, Thirds(), max_steps=1, num_iterations=1), []
    monkeypatch.setattr(trainer.judging.unjudged, "add", lambda verifier, found, counts: counted.append(counts))
    trainer.train()
    assert counted == [False, True]


def test_what_cannot_work_is_refused_before_training(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="pass a verifier"):
        trained(tiny_model, tmp_path, None, credit="none", factuality_reward_weight=0.0)
    with pytest.raises(ValueError, match="num_generations=3"):
        trained(tiny_model, tmp_path, Thirds(), num_generations=3, per_device_train_batch_size=6)
    with pytest.raises(ValueError, match="generation_chunks=2"):
        trained(tiny_model, tmp_path, Thirds(), generation_chunks=2)
