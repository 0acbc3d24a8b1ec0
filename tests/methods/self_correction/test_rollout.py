"""Completions of two turns: the tokens, the positions and the masks are those of the whole conversation, and the words
between the turns carry no loss."""

import sys
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.methods.self_correction.formula import REVISE
from hf_factuality.rewards import CorrectionReward
from hf_factuality.trainers import CorrectionRollout
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import CHAT_TEMPLATE, rows
from tests.trainers.recording import SETTINGS, FactGRPO, record_last_states


# As Llama 3 writes it: a header of a role in several tokens, the end of a turn before each of them.
HEADERS = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n\n{{ m['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}"
)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, HEADERS])
@pytest.mark.parametrize("logprobs", [False, True])
def test_two_turns_are_the_conversation_that_the_template_writes(tiny_model, template, logprobs):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = template
    end, turns = (
        tokenizer.eos_token_id,
        [["Ulm. [VERIFY] wrong", "Ulm. [VERIFY] correct", "Bern [VERIFY] wrong"], ["So Bern.", "Rome"]],
    )
    ended = [[True, True, False], [True, False]]
    asked = []

    def generate(prompt_ids, images, fields, number):
        asked.append((prompt_ids, number))
        said = zip(turns[len(asked) - 1], ended[len(asked) - 1], strict=True)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] + [end] * done for text, done in said]
        return ids, [[-0.5] * len(row) for row in ids] if logprobs else None

    prompts = [[{"role": "user", "content": f"Where {n}?"}] for n in range(3)]
    trainer = SimpleNamespace(
        _tokenizer=tokenizer, model=SimpleNamespace(training=True), num_generations=3, chat_template=None, chat_template_kwargs={},
        _tokenize_prompts=lambda it: ([tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in it], None, {}),
        _generate_single_turn=generate, accelerator=SimpleNamespace(device="cpu", gather=lambda it: it),
    )  # fmt: skip
    found = CorrectionRollout()(prompts, trainer)
    assert [number for _, number in asked] == [3, 1]
    assert found["turns"] == [[turns[0][0], turns[1][0]], [turns[0][1]], [turns[0][2], turns[1][1]]]
    for row, prompt in enumerate(prompts):
        ids, mask = found["prompt_ids"][row] + found["completion_ids"][row], found["env_mask"][row]
        assert len(mask) == len(found["completion_ids"][row])
        said = found["turns"][row]
        if len(said) == 1:
            assert set(mask) == {1}
            continue
        messages = [*prompt, {"role": "assistant", "content": said[0]}, {"role": "user", "content": REVISE}]
        whole = tokenizer.apply_chat_template(
            [*messages, {"role": "assistant", "content": said[1]}], return_dict=False
        )
        assert ids[: len(whole)] == whole[: len(ids)] and len(whole) - len(ids) in (
            0,
            1,
            2,
        )  # what follows the last end
        # The second turn is asked of what the template writes; the policy's own tokens and no others are paid.
        second = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert asked[1][0][0 if row == 0 else 1] == second
        own = [token for token, paid in zip(found["completion_ids"][row], mask, strict=True) if paid]
        wrote = [
            tokenizer(text, add_special_tokens=False)["input_ids"] + [end] * done
            for text, done in ((said[0], ended[0][row]), (said[1], ended[1][0 if row == 0 else 1]))
        ]
        assert own == wrote[0] + wrote[1]
        if logprobs:
            zeros = [paid for paid, value in zip(mask, found["logprobs"][row], strict=True) if value == 0.0]
            assert zeros == [0] * mask.count(0)


def test_nothing_is_generated_twice_where_no_process_revises(tiny_model):
    tokenizer, calls = AutoTokenizer.from_pretrained(tiny_model), []
    trainer = SimpleNamespace(
        _tokenizer=tokenizer, model=SimpleNamespace(training=False), num_generations_eval=1, chat_template=None, chat_template_kwargs={},
        _tokenize_prompts=lambda it: ([[1]], None, {}), accelerator=SimpleNamespace(device="cpu", gather=lambda it: it),
        _generate_single_turn=lambda *a: calls.append(a) or ([[5, 6]], None),
    )  # fmt: skip
    found = CorrectionRollout()([[{"role": "user", "content": "?"}]], trainer)
    assert len(calls) == 1 and found["env_mask"] == [[1, 1]] and found["completion_ids"] == [[5, 6]]
    # Another process revises: this one generates too, and keeps nothing of it.
    trainer.accelerator.gather = lambda it: torch.tensor([1, 0])
    found = CorrectionRollout()([[{"role": "user", "content": "?"}]], trainer)
    assert len(calls) == 3 and calls[-1][0] == [[1]] and found["completion_ids"] == [[5, 6]]


def trained(trainer_class, config, model, folder, **more):
    args = config(str(folder), **{**SETTINGS, "max_steps": 2, "max_completion_length": 8, **more.pop("settings", {})})
    data = rows().add_column("answer", ["Ulm"] * 8)
    return trainer_class(
        model=model, args=args, train_dataset=data, rollout_func=CorrectionRollout(revised=lambda text: len(text) % 2 == 0),
        **more,
    )  # fmt: skip


def length(prompts, completions, turns, **columns):
    return [float(len(texts) + len(texts[-1]) % 3) for texts in turns]


FACT = {"credit": "none", "factuality_reward_weight": 0.0, "verify_scope": "completion"}


def test_the_words_between_the_turns_carry_no_loss(tiny_model, tmp_path):
    trainer = trained(
        FactGRPO, FactGRPOConfig, tiny_model, tmp_path, reward_funcs=length, verifier=None, settings=FACT
    )
    seen = record_last_states(trainer)
    trainer.train()
    masks = [batch["completion_mask"] * batch["tool_mask"] for batch in trainer.batches]
    assert len(seen) == len(masks) > 0
    between = 0
    for states, mask, batch in zip(seen, masks, trainer.batches, strict=True):
        gradient = states.grad[:, -mask.shape[1] - 1 : -1].abs().sum(-1)
        assert torch.equal(gradient[mask == 0], torch.zeros_like(gradient[mask == 0]))
        paid = (batch["advantages"] != 0).view(-1, 1) & (mask == 1)
        assert (gradient[paid] > 0).all()
        between += int((batch["completion_mask"].bool() & (mask == 0)).sum())
    assert between > 0 and any(bool(loss) for loss in trainer.losses)


@pytest.mark.slow
def test_the_same_as_trl_itself_with_this_rollout(tiny_model, tmp_path):
    ours = trained(
        FactGRPOTrainer, FactGRPOConfig, tiny_model, tmp_path / "a", reward_funcs=length, verifier=None, settings=FACT
    )
    ours.skip_padding = False  # which changes the order of sums
    ours.train()
    stock = trained(GRPOTrainer, GRPOConfig, tiny_model, tmp_path / "b", reward_funcs=length)
    stock.train()
    both = zip(ours.model.parameters(), stock.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in both)


def test_the_reward_is_of_the_last_turn_and_logs_what_revising_changes(tiny_model, tmp_path):
    logged = {}
    turns = [
        ["Bern [VERIFY] wrong", "Ulm"],
        ["Ulm [VERIFY] wrong", "Bern"],
        ["Ulm [VERIFY] correct"],
        ["It is Ulm"],
        ["Rome"],
    ]
    answer = ["Ulm", "Ulm", "Ulm", ["Ulm"], " "]
    found = CorrectionReward("contains")(
        [None] * 5, [""] * 5, answer=answer, turns=turns, log_metric=logged.__setitem__
    )
    assert found == [1.0, 0.0, 1.0, 1.0, None]
    assert {name.removeprefix("correction/"): value for name, value in logged.items()} == {
        "turn_1": 0.75, "final": 0.75, "difference": 0.0, "corrected": 0.25, "spoilt": 0.25, "verdict_accuracy": 0.5,
        "no_verdict": 0.25, "n": 4,
    }  # fmt: skip
    tagged = CorrectionReward("world")(
        [None], [""], answer=["Ulm"], turns=[["Bern", "<think>Bern</think><answer>Ulm</answer>"]]
    )
    assert tagged == [1.0]
    assert CorrectionReward("world")([None], [""], answer=["Ulm"], turns=[["Ulm\n\n[VERIFY] correct"]]) == [1.0]
    trainer = trained(
        FactGRPOTrainer, FactGRPOConfig, tiny_model, tmp_path, reward_funcs=CorrectionReward("contains"), verifier=None, settings=FACT
    )  # fmt: skip
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "correction/turn_1" in entry)
    assert entry["correction/no_verdict"] == 1.0


def test_what_cannot_work_is_refused_before_training(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="blank"):
        CorrectionRollout(" ")
    with pytest.raises(ValueError, match="unknown scorer"):
        CorrectionReward("maths")
    with pytest.raises(ValueError, match="verifier=None"):  # a verifier would judge the user's words as the model's
        trained(
            FactGRPOTrainer,
            FactGRPOConfig,
            tiny_model,
            tmp_path,
            reward_funcs=length,
            settings={"verify_scope": "completion"},
        )
    with pytest.raises(ValueError, match="rollout_func"):
        trained(TokenRewardPPOTrainer, TokenRewardPPOConfig, tiny_model, tmp_path, reward_funcs=length)
    trainer = trained(
        FactGRPOTrainer, FactGRPOConfig, tiny_model, tmp_path, reward_funcs=length, verifier=None, settings=FACT
    )
    trainer.rollout_func = CorrectionRollout(revised=lambda text: True)
    trainer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(ValueError, match="chat template"):
        trainer.train()


def main():
    """Rank 0 revises every answer, rank 1 none."""
    torch.set_num_threads(1)
    own = PartialState().process_index == 0
    args = FactGRPOConfig(sys.argv[1], **{**SETTINGS, **FACT, "max_steps": 2, "per_device_train_batch_size": 2})
    trainer = FactGRPO(
        model=sys.argv[2], args=args, train_dataset=rows(), reward_funcs=length, verifier=None,
        rollout_func=CorrectionRollout(revised=lambda text: own),
    )  # fmt: skip
    trainer.train()
    between = [
        int((batch["tool_mask"] * batch["completion_mask"] == 0).logical_and(batch["completion_mask"] == 1).sum())
        for batch in trainer.batches
    ]
    assert all(map(bool, between)) is own and any(map(bool, between)) is own, between


@pytest.mark.slow
def test_two_processes_of_which_one_revises(tiny_model, tmp_path):
    assert_ended_well(run_ranks("tests.methods.self_correction.test_rollout", tmp_path, tiny_model))
