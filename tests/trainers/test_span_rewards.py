"""Rewards that are paid at their own characters: two advantages in one completion."""

import sys

import pytest
import torch
from accelerate import PartialState

from hf_factuality import FactGRPOConfig, TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.rewards import DCPORewards
from tests.conftest import fast_few
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import letters_reward, rows
from tests.trainers.recording import QUIET, SETTINGS, FactGRPO, WholeCompletion


def train(model, folder, rewards, data=None, **settings):
    config = {"verify_scope": "completion", "credit": "none", "factuality_reward_weight": 0.0, "max_steps": 2}
    args = FactGRPOConfig(str(folder), **{**SETTINGS, **config, **settings})
    trainer = FactGRPO(
        model=model, reward_funcs=rewards, args=args, verifier=WholeCompletion(), train_dataset=data or rows()
    )
    trainer.train()
    return trainer


def lengths(completion_texts, **columns):
    return [float(len(text) % 5) for text in completion_texts]


def paid_at(spans):
    def reward(completion_texts, **columns):
        return lengths(completion_texts)

    reward.spans = lambda text, opened: spans(text)
    return reward


@pytest.mark.parametrize("scale", fast_few(["group", "batch", "none"], 0))
def test_it_replaces_the_advantage_at_its_tokens_and_nowhere_else(tiny_model, tmp_path, scale):
    plain = train(tiny_model, tmp_path, letters_reward, scale_rewards=scale)
    alone = train(tiny_model, tmp_path, lengths, scale_rewards=scale)
    none = train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [])], scale_rewards=scale)
    assert [torch.equal(*pair) for pair in zip(plain.losses, none.losses, strict=True)] == [True] * len(plain.losses)
    assert float(none.logged[0]["rewards/reward/mean"].strip("'")) > 0  # logged, though it is no part of the sum
    both = train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [(0, 1)])], scale_rewards=scale)
    found, own, other = both.advantages[0], alone.advantages[0], plain.advantages[0]
    # The first batch is drawn before anything is learnt, so that all have the same completions.
    assert torch.equal(both.batches[0]["completion_ids"], plain.batches[0]["completion_ids"])
    for row in range(len(found)):
        first, last = found[row, 0], found[row, both.batches[0]["completion_mask"][row].bool()][-1]
        assert torch.allclose(first, own[row], atol=1e-6) and torch.equal(last, other[row])
    assert not torch.equal(both.losses[0], plain.losses[0])


def test_everywhere_it_is_what_the_parent_computes(tiny_model, tmp_path):
    """Spans over everything, the end of the sequence included: the parent with that reward alone, to the last bit."""
    alone = train(tiny_model, tmp_path, lengths)
    everywhere = train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [(0, 10**6)])])
    assert [torch.equal(*pair) for pair in zip(alone.losses, everywhere.losses, strict=True)] == [True] * 4
    assert any(bool(loss) for loss in alone.losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", fast_few([{"loss_type": "dr_grpo"}, {"loss_type": "bnpo"}, {"loss_type": "cispo"},
                          {"importance_sampling_level": "sequence", "use_bias_correction_kl": False}], 3),
)  # fmt: skip
def test_losses_take_two_advantages(tiny_model, tmp_path, settings):
    plain = train(tiny_model, tmp_path, letters_reward, **settings)
    none = train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [])], **settings)
    some = train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [(0, 1)])], **settings)
    for a, b, c in zip(plain.losses[:1], none.losses, some.losses, strict=False):
        assert torch.allclose(a, b, atol=1e-6) and not torch.allclose(a, c, atol=1e-6)


@pytest.mark.slow
def test_a_weight_and_an_unknown_reward(tiny_model, tmp_path):
    reward = paid_at(lambda text: [(0, 10**6)])
    twice = train(tiny_model, tmp_path, [letters_reward, reward], reward_weights=[1.0, 2.0])
    once = train(tiny_model, tmp_path, [letters_reward, reward], reward_weights=[1.0, 1.0])
    assert torch.allclose(twice.advantages[0], 2 * once.advantages[0])

    def unknown(completions, **columns):
        return [None] * len(completions)

    unknown.spans = reward.spans
    assert torch.equal(train(tiny_model, tmp_path, [letters_reward, unknown]).advantages[0], 0 * once.advantages[0])


def test_what_takes_a_completion_as_one_is_refused(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="loss_type='vespo' .*a reward that is paid at its own spans"):
        train(tiny_model, tmp_path, [letters_reward, paid_at(lambda text: [])], loss_type="vespo")


def test_dcpo_by_hand():
    """Four answers to one prompt, of which half are right; lambda .5, so that the targets are .75 and .25."""
    answers = ["Paris", "Rome", "Paris", "Rome"]
    stated = ["<confidence>0.75</confidence>", "<confidence>0.75</confidence>", "", "<confidence>25%</confidence>"]
    texts = [f"<answer>{answer}</answer>{number}" for answer, number in zip(answers, stated, strict=True)]
    rewards, asked = DCPORewards(), {"prompts": ["Where?"] * 4, "completions": texts, "answer": ["Paris"] * 4}
    assert rewards.correct(**asked) == [1, 0, 1, 0]
    assert rewards.calibration(**asked) == pytest.approx([0, -0.5, -1, 0])
    assert rewards.calibration.spans(texts[0]) == [(len(texts[0]) - len(stated[0]), len(texts[0]))]
    assert rewards.calibration.spans(texts[2]) == [(0, len(texts[2]))], "leaving the number out must not go unpunished"
    assert DCPORewards(power=2).calibration(**asked) == pytest.approx([0, -0.25, -1, 0])
    asked["prompts"] = ["Where?", "Where?", "Where else?", "Where else?"]
    own = DCPORewards(mix=1.0)
    assert own.calibration(**asked) == pytest.approx([-0.25, -0.25, -1, -0.25])
    with pytest.raises(ValueError, match="mix=1.5 must be"):
        DCPORewards(mix=1.5)


def test_without_a_verifier_nothing_is_labelled(tiny_model, tmp_path):
    config = {**SETTINGS, "verify_scope": "completion", "max_steps": 1}
    args = FactGRPOConfig(str(tmp_path), credit="none", factuality_reward_weight=0.0, **config)
    trainer = FactGRPO(model=tiny_model, reward_funcs=letters_reward, args=args, verifier=None, train_dataset=rows())
    trainer.train()
    assert trainer.state.global_step == 1 and float(trainer.logged[0]["factuality/tokens_labelled"].strip("'")) == 0
    with pytest.raises(ValueError, match="verifier=None: nothing is labelled"):
        FactGRPO(
            model=tiny_model, reward_funcs=letters_reward, args=FactGRPOConfig(str(tmp_path), **config), verifier=None,
            train_dataset=rows(),
        )  # fmt: skip


def test_reward_functions_are_told_what_the_rendered_prompt_opens(tiny_model, tmp_path):
    told = []

    def reward(prompts, completion_texts, think_opened, **columns):
        told.extend((prompt.endswith("<think>"), opened) for prompt, opened in zip(prompts, think_opened, strict=True))
        return [0.0] * len(prompts)

    data = rows().map(lambda row, n: {"prompt": "Where?" + "<think>" * (n % 2)}, with_indices=True)
    train(tiny_model, tmp_path, reward, data)
    assert set(told) == {(True, True), (False, False)}


def test_lovec_is_of_the_answer(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path, "lovec", max_steps=1)
    assert trainer.reward_func_names == ["lovec", "factuality"]
    with pytest.raises(ValueError, match="verify_scope='think'.*'lovec'.*'answer'"):
        train(tiny_model, tmp_path, "lovec", verify_scope="think")


def test_another_trainer_refuses_it(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="'calibration' is paid at its own characters"):
        TokenRewardPPOTrainer(tiny_model, None, "dcpo", TokenRewardPPOConfig(str(tmp_path), **QUIET), rows())


def main():
    """On two processes, with groups of 4 over both: the mean of a group is over all of it."""
    torch.set_num_threads(1)
    found = []

    class Watched(DCPORewards):
        pass

    def scorer(completions, **columns):
        return [
            1.0 if PartialState().process_index == 0 else None if number else 0.0 for number in range(len(completions))
        ]

    dcpo = Watched(scorer)
    calibration = dcpo.calibration

    def watched(prompts, completions, **columns):
        texts = ["<answer>a</answer><confidence>0.5</confidence>"] * len(completions)
        found.extend(calibration(prompts, texts, **{**columns, "completion_texts": texts}))
        return found[-len(texts) :]

    watched.spans = calibration.spans
    config = {
        **SETTINGS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "max_steps": 1,
        "credit": "none",
    }
    args = FactGRPOConfig(sys.argv[1], factuality_reward_weight=0.0, **config)
    trainer = FactGRPO(
        model=sys.argv[2], reward_funcs=[letters_reward, watched], args=args, verifier=None, train_dataset=rows()
    )
    trainer.train()
    # Of each group's four, two are right, one is wrong and one unknown: 2/3. lambda .5: targets 5/6 and 1/3.
    expected = [-1 / 3, -1 / 3] if PartialState().process_index == 0 else [-1 / 6, None]
    assert len(found) >= 2 and found[:2] == [pytest.approx(it) if it else None for it in expected], found


@pytest.mark.slow
def test_the_mean_of_a_group_on_two_processes(tiny_model, tmp_path):
    assert_ended_well(run_ranks("tests.trainers.test_span_rewards", tmp_path, tiny_model))
