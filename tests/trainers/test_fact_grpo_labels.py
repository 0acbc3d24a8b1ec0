"""What users build on FactGRPO's labels: credit of their own, rewards that read the verifications, verifiers of claims."""

import ast
import json
import pickle
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import IterableDataset

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, LabeledSpan, Verification
from hf_factuality.errors import DataError
from tests.tiny import letters_reward, rows
from tests.trainers.recording import (
    SETTINGS,
    FactGRPO,
    StockGRPO,
    WholeCompletion,
    fixed_rewards,
    same_to_the_last_bit,
)
from tests.trainers.test_fact_grpo_trainer import (
    ONE_BATCH,
    Script,
    group_advantages,
    make,
    one_generation,
    saying,
)
from tests.trainers.test_neutral import fact, run


S, C, U = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE
ROOT = Path(__file__).resolve().parents[2]


def by_hand(advantages, labels, mask):
    """FSPO's Eq. 11 as its table says it."""
    advantages = advantages.unsqueeze(1).expand_as(labels).clone()
    advantages[(advantages > 0) & (labels < 0) | (advantages < 0) & (labels > 0)] *= -1
    return advantages


def untouched(advantages, labels, mask):
    return advantages.unsqueeze(1).repeat(1, mask.size(1))


def reads(seen):
    """A reward function of nothing that keeps the verifications that it gets."""

    def looks(completions, verifications, **columns):
        seen.extend(verifications)
        return [0.0] * len(completions)

    return looks


def keeps(seen):
    """Credit that changes nothing and keeps what it gets."""

    def looks(advantages, labels, mask):
        seen.append((advantages, labels, mask))
        return untouched(advantages, labels, mask)

    return looks


def odd_or_even(number, item):
    return S if len(item.completion) % 2 else C


# Credit


def test_a_function_is_credit_to_the_last_bit(tiny_model, tmp_path):
    from trl import GRPOConfig

    def with_function(credit):
        args = FactGRPOConfig(str(tmp_path), verify_scope="completion", factuality_reward_weight=0.0, **SETTINGS)
        verifier = WholeCompletion(odd_or_even)
        trainer = FactGRPO(
            tiny_model, letters_reward, args=args, train_dataset=rows(), verifier=verifier, credit=credit
        )
        trainer.train()
        return trainer

    named = fact(tiny_model, tmp_path, WholeCompletion(odd_or_even))
    assert same_to_the_last_bit(with_function(by_hand), named) == []
    stock = run(StockGRPO, GRPOConfig, tiny_model, tmp_path)
    assert same_to_the_last_bit(with_function(untouched), stock) == []
    assert "losses" in same_to_the_last_bit(named, stock)  # the control


def test_what_a_function_gets(tiny_model, tmp_path):
    seen = []
    config = {"variant": "released", "label_values": "ternary"}
    trainer = make(
        tiny_model, tmp_path, Script(S, C, U, "raise"), reward_funcs=fixed_rewards([1, 0, 0, 1]), config=config,
        credit=keeps(seen),
    )  # fmt: skip
    output = one_generation(trainer)
    ((advantages, labels, mask),) = seen
    torch.testing.assert_close(advantages, torch.tensor(group_advantages([1.0, 0.0, 0.0, 1.0])))
    assert torch.equal(mask, output["completion_mask"].bool()) and labels.shape == mask.shape
    assert mask.dtype == torch.bool and labels.dtype == torch.float32
    body = mask & (output["completion_ids"] > 4)
    # 1 outside the spans of rows that have any (special tokens), 0 on padding and where nothing is known.
    for row, (inside, outside) in enumerate(((1, 1), (-1, 1), (0, 1), (0, 0))):
        assert set(labels[row][body[row]].tolist()) == {inside}
        assert set(labels[row][mask[row] & ~body[row]].tolist()) <= {outside}
    assert not labels[~mask].any()


@pytest.mark.slow
def test_settings_and_card_name_the_function(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, WholeCompletion(), credit=by_hand)
    name = "tests.trainers.test_fact_grpo_labels:by_hand"
    assert trainer.args.credit == name
    assert json.loads(trainer.args.to_json_string())["credit"] == name
    assert pickle.loads(pickle.dumps(trainer.args)).credit == name  # noqa: S301 - made one call earlier
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert f"and `{name}` credit" in card and f"`credit` | `{name}`" in card and "FSPO" not in card
    for credit, method in (("flip", "FSPO combined with"), ("none", "GRPO with the sentences' mean factuality")):
        make(tiny_model, tmp_path, WholeCompletion(), credit=credit).create_model_card()
        card = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert method in card and f"{credit} credit, dapo loss" in card
    # An anonymous one: nothing in it is read as HTML.
    trainer = make(tiny_model, tmp_path, WholeCompletion(), credit=partial(lambda *given, by: by_hand(*given), by=2))
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "<lambda>" in card and "<lambda>" not in re.sub(r"`[^`]*`", "", card)


def test_where_functions_and_names_go(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"by_hand.*package.module:name.*pass it to the trainer"):
        FactGRPOConfig(str(tmp_path), credit=by_hand, **ONE_BATCH)
    assert make(tiny_model, tmp_path, WholeCompletion(), credit="additive").args.credit == "additive"
    with pytest.raises(ValueError, match="credit='scale' is unknown"):
        make(tiny_model, tmp_path, WholeCompletion(), credit="scale")
    # What cannot meet advantages per token cannot meet those of a function either.
    with pytest.raises(ValueError, match="loss_type='vespo'.*by_hand"):
        make(tiny_model, tmp_path, WholeCompletion(), credit=by_hand, config={"credit": "none", "loss_type": "vespo"})
    # The settings of a run with a function find it again by its name, and ask for one that has none.
    args = FactGRPOConfig(str(tmp_path), verify_scope="completion", **ONE_BATCH)
    make_again = partial(FactGRPOTrainer, tiny_model, letters_reward, args, rows(), verifier=WholeCompletion())
    make_again(credit=by_hand)
    make_again(credit=by_hand)
    make_again()
    make_again(credit=lambda *given: by_hand(*given))
    with pytest.raises(ValueError, match="<lambda>' is unknown.*'package.module:name'"):
        make_again()


# Verifications as a column


class Counts(WholeCompletion):
    """Labels by the text alone, and counts how often it was asked about a completion."""

    def __init__(self):
        super().__init__(odd_or_even)
        self.asked = 0

    def verify(self, inputs):
        self.asked += len(inputs)
        return super().verify(inputs)


@pytest.mark.slow
def test_rewards_read_the_labels_and_nothing_is_judged_twice(tiny_model, tmp_path):
    """In training with several passes over a batch, and in evaluation."""
    seen = []

    def agrees(prompts, completions, verifications, **columns):
        for completion, verification in zip(completions, verifications, strict=True):
            text = completion[0]["content"]
            expected = [LabeledSpan(0, len(text), S if len(text) % 2 else C)] if text else []
            assert list(verification.spans) == expected and verification.judged
        seen.append(len(verifications))
        return [float(v.spans[0].label is S) if v.spans else None for v in verifications]

    async def later(prompts, completions, verifications, **columns):
        return [float(len(v.spans)) for v in verifications]

    args = FactGRPOConfig(
        str(tmp_path), verify_scope="completion", eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4,
        **{**SETTINGS, "max_steps": 4},
    )  # fmt: skip
    verifier = Counts()
    data = rows(4)
    trainer = FactGRPOTrainer(tiny_model, [agrees, letters_reward, later], args, data, data, verifier=verifier)
    trainer.train()
    # Two generation batches of 8 completions, each used twice; two evaluations of 4 prompts and 4 completions each.
    assert sum(seen) == 2 * 8 + 2 * 16 and verifier.asked == sum(seen)
    logged = [entry for entry in trainer.state.log_history if "rewards/agrees/mean" in entry]
    for entry in logged:
        # With +1 and -1 for its labels, factuality is twice that share, less 1.
        assert entry["rewards/factuality/mean"] == pytest.approx(2 * entry["rewards/agrees/mean"] - 1)
    assert logged


def test_unjudged_rows_say_so(tiny_model, tmp_path):
    seen = []
    dataset = rows(4).remove_columns("evidence").add_column("evidence", [["A page."], [], ["A page."], None])
    verifier = Script(S, "raise", requires_evidence=True)
    trainer = make(tiny_model, tmp_path, verifier, dataset, reads(seen))
    trainer.model.train()
    trainer.num_generations = 1
    trainer._generate_and_score_completions(list(trainer.train_dataset))
    assert [found.judged for found in seen] == [True, False, False, False]
    assert seen[0].spans[0].label is S and "judge down" in seen[2].error
    assert seen[1].error == seen[3].error == "no evidence"


def test_verifications_are_in_characters_of_the_whole_completion(tiny_model, tmp_path):
    text = "so <think>Ada sat.</think><answer>x</answer>"
    seen, config, verifier = [], {"verify_scope": "think", "max_completion_length": 64}, WholeCompletion(odd_or_even)
    one_generation(make(tiny_model, tmp_path, verifier, None, reads(seen), config, trainer=saying(text)))
    assert [(v.spans[0].start, v.spans[0].end) for v in seen] == [(10, 18)] * 4


def test_a_dataset_with_such_a_column_is_refused(tiny_model, tmp_path):
    data = rows().add_column("verifications", ["{}"] * 8)
    with pytest.raises(DataError, match="has a column 'verifications'.*rename it"):
        make(tiny_model, tmp_path, WholeCompletion(), data)
    with pytest.raises(DataError, match="has a column 'verifications'"):
        make(tiny_model, tmp_path, WholeCompletion(), eval_dataset={"one": data})
    stream = IterableDataset.from_generator(data.to_list)  # which does not know its columns
    assert stream.column_names is None
    with pytest.raises(DataError, match="has a column 'verifications'"):
        make(tiny_model, tmp_path, WholeCompletion(), stream)
    trainer = make(tiny_model, tmp_path, WholeCompletion())
    with pytest.raises(DataError, match="has a column 'verifications'"):
        trainer.evaluate(data)


# Claims


@pytest.mark.parametrize("beside_sentences", [True, False])
def test_claims_stand_for_the_sentences_and_the_lowest_counts_where_they_overlap(
    tiny_model, tmp_path, beside_sentences
):
    """By hand: four claims, beside their sentence or alone. The tokenizer has one token per character of this text."""
    text = "@@@@####%%%%&&&&"
    claims = (
        LabeledSpan(0, 12, S, claim="The first twelve."),
        LabeledSpan(8, 16, C, claim="The last eight."),
        LabeledSpan(4, 6, None, claim="Nobody knows."),
        LabeledSpan(0, 2, U, claim="Not in the sources."),
    )
    found = Verification((LabeledSpan(0, 16, C),), claims) if beside_sentences else Verification(claims)

    class Claims:
        requires_evidence = False

        def verify(self, inputs):
            return [found] * len(inputs)

    seen = []
    trainer = make(tiny_model, tmp_path, Claims(), trainer=saying(text), credit=keeps(seen))
    output = one_generation(trainer)
    assert output["completion_ids"].shape == (4, 16)
    # Lowest of what is known: unverifiable over supported, contradicted over supported; a failure hides nothing.
    assert seen[0][1].tolist() == [[0.0] * 2 + [1.0] * 6 + [-1.0] * 8] * 4
    metrics = trainer._metrics["train"]
    assert metrics["factuality/mean"] == [0.0]  # (1 - 1 + 0) / 3
    assert metrics["factuality/sentences"] == [4.0] and metrics["factuality/unjudged_sentences"] == [4.0]


# The page


def test_the_page_on_experiments_shapes_and_rewards_with_functions(tiny_model, tmp_path):
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "credit=" in block]
    shaping = next(node for node in ast.parse(code).body if getattr(node, "name", None) == "only_punish")
    assert len(ast.unparse(shaping).splitlines()) <= 3
    verifier = Counts()
    args = FactGRPOConfig(str(tmp_path), verify_scope="completion", **ONE_BATCH)
    names = {"__name__": "mine", "model": tiny_model, "args": args, "dataset": rows(), "verifier": verifier}
    exec(code, names)  # noqa: S102 - our own page
    trainer = names["trainer"]
    assert trainer.args.credit == "mine:only_punish" and verifier.asked == 4
    (entry,) = [entry for entry in trainer.state.log_history if "rewards/false_claims/mean" in entry]
    assert entry["rewards/false_claims/mean"] == pytest.approx(0.1 * (entry["rewards/factuality/mean"] - 1) / 2)
    advantages = torch.tensor([2.0, -1.0])
    labels = torch.tensor([[1.0, -1.0, 0.0], [1.0, -1.0, 0.0]])
    expected = [[2.0, -2.0, 2.0], [-1.0, -1.0, -1.0]]
    assert names["only_punish"](advantages, labels, labels.bool()).tolist() == expected
