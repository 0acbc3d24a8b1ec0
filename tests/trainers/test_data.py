"""Datasets and rewards that a trainer cannot use are refused when it is made, by all trainers alike."""

import functools
import re

import pytest
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.errors import DataError
from hf_factuality.rewards import RLCRReward
from hf_factuality.trainers import (
    AdaptiveAveragingConfig,
    AdaptiveAveragingTrainer,
    RAGRewardConfig,
    RAGRewardTrainer,
    TruthfulnessConfig,
    TruthfulnessTrainer,
)
from tests.conftest import fast_few
from tests.methods.averaging.test_trainer import rows as answers
from tests.methods.averaging.test_trainer import save_pair
from tests.methods.rag_reward.test_trainer import pairs as compared_pairs
from tests.tiny import CHAT_TEMPLATE, letters_reward, rows
from tests.trainers.claims import claims
from tests.trainers.mask_dpo_recording import pairs as labelled_pairs
from tests.trainers.recording import QUIET, WholeCompletion, vowels


SMALL = {**QUIET, "per_device_train_batch_size": 4, "max_steps": 1}
SAMPLING = {**SMALL, "max_completion_length": 4}


@pytest.fixture(scope="module")
def make(tiny_model, tmp_path_factory):
    """`make(name, train=None, test=None, *, settings of the configuration, given={arguments of the trainer})`."""
    before, after = save_pair(tmp_path_factory.mktemp("pair"), tiny_model)
    trainers = {
        # 2 and 4 prompts a generation batch.
        "grpo": (
            functools.partial(FactGRPOTrainer, tiny_model),
            functools.partial(FactGRPOConfig, num_generations=2, verify_scope="completion", **SAMPLING),
            rows,
            {"reward_funcs": letters_reward, "verifier": WholeCompletion()},
        ),
        "ppo": (
            functools.partial(TokenRewardPPOTrainer, tiny_model),
            functools.partial(TokenRewardPPOConfig, **SAMPLING),
            rows,
            {"token_reward_funcs": vowels},
        ),
        "mask_dpo": (
            functools.partial(MaskDPOTrainer, tiny_model),
            functools.partial(MaskDPOConfig, **SMALL),
            functools.partial(labelled_pairs, 4),
            {},
        ),
        "ama": (
            functools.partial(AdaptiveAveragingTrainer, str(after), str(before)),
            functools.partial(AdaptiveAveragingConfig, blocks=2, **SMALL),
            answers,
            {},
        ),
        "rag": (
            functools.partial(RAGRewardTrainer, tiny_model),
            functools.partial(RAGRewardConfig, **SMALL),
            functools.partial(compared_pairs, 2),
            {},
        ),
        "truthfulness": (
            functools.partial(TruthfulnessTrainer, tiny_model),
            functools.partial(TruthfulnessConfig, **SMALL),
            functools.partial(claims, 12),
            {},
        ),
    }

    def made(name, train=None, test=None, given=None, **settings):
        trainer, config, data, usual = trainers[name]
        args = config(str(tmp_path_factory.mktemp(name)), **settings)
        train = data() if train is None else train
        return trainer(args=args, train_dataset=train, eval_dataset=test, **{**usual, **(given or {})})

    made.data = {name: entry[2] for name, entry in trainers.items()}
    return made


def stream(dataset):
    """One that does not know its columns."""
    return IterableDataset.from_generator(dataset.to_list)


# Rows enough for a step


@pytest.mark.parametrize("kind", [lambda data: data, stream], ids=["dataset", "stream"])
@pytest.mark.parametrize(
    "name, settings, needed", [("grpo", {}, 2), ("grpo", {"gradient_accumulation_steps": 2}, 4), ("ppo", {}, 4)]
)
def test_fewer_prompts_than_a_generation_batch_are_refused(make, name, settings, needed, kind):
    """The parent ends without a step, as if it had trained."""
    with pytest.raises(DataError, match=rf"{needed - 1} rows, fewer than the {needed} .*generation_batch_size="):
        make(name, kind(rows().select(range(needed - 1))), **settings)
    trainer = make(name, kind(rows().select(range(needed))), **settings)
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("name", ["grpo", "ppo", "mask_dpo", "ama", "rag", "truthfulness"])
def test_an_empty_dataset_is_refused(make, name):
    data = make.data[name]()
    nothing = data.select([])
    with pytest.raises(DataError, match="train"):
        make(name, nothing)
    with pytest.raises(DataError, match="eval"):
        make(name, data, nothing)
    if name not in ("rag", "truthfulness"):  # they take one Dataset
        with pytest.raises(DataError, match="the train dataset is empty"):
            make(name, stream(nothing))
        with pytest.raises(DataError, match="the other dataset is empty"):
            make(name, data, {"one": data, "other": nothing})
        with pytest.raises(DataError, match="without any dataset"):
            make(name, data, {})


@pytest.mark.parametrize("name", ["mask_dpo", "ama", "rag"])
def test_a_batch_that_is_dropped_is_no_step(make, name):
    data = make.data[name]().select(range(3))
    with pytest.raises(DataError, match="train dataset has 3 rows, fewer than the 4 .*dataloader_drop_last"):
        make(name, data, dataloader_drop_last=True)
    with pytest.raises(DataError, match="eval dataset has 3 rows, fewer than the 8 .*per_device_eval_batch_size"):
        make(name, None, data, dataloader_drop_last=True, per_device_train_batch_size=1)


def test_an_evaluation_needs_as_many_prompts_as_fill_a_batch_of_completions(make):
    settings = {"per_device_eval_batch_size": 8, "dataloader_drop_last": True}  # 4 prompts, 2 completions each
    with pytest.raises(DataError, match="eval dataset has 3 rows, fewer than the 4 "):
        make("grpo", None, rows().select(range(3)), **settings)
    trainer = make("grpo", None, rows().select(range(4)), **settings)
    assert trainer.evaluate()["eval_num_tokens"] == 0 and len(trainer.get_eval_dataloader()) == 1


def test_rows_without_a_token_to_learn_are_none(make):
    with pytest.raises(DataError, match="no row of the train dataset is left .*max_length=3"):
        make("ama", max_length=3)


@pytest.mark.parametrize("name", ["mask_dpo", "ama"])
def test_a_stream_that_loses_all_rows_does_not_end_well(make, name):
    trainer = make(name, stream(make.data[name]()), max_length=3)
    with pytest.raises(DataError, match="took no step"):
        trainer.train()


# Columns that are not read


FOREIGN = {
    "mask_dpo": {"completion": "Elsewhere.", "messages": "Elsewhere."},
    "rag": {"completion": "Elsewhere.", "messages": "Elsewhere."},
    "ama": {"chosen": "Elsewhere.", "rejected": "Elsewhere.", "messages": "Elsewhere.", "text": "x", "labels": [0, 1]},
}


@pytest.mark.parametrize("name", fast_few(FOREIGN, 0, 1))
@pytest.mark.parametrize("kind", ["texts beside messages", "messages beside texts"])
def test_columns_beside_those_of_the_rows_change_nothing(make, name, kind):
    """The parent takes the format of a row from any column of texts, by the order of a set."""
    plain, foreign = make.data[name](), FOREIGN[name]
    if kind == "messages beside texts":
        plain = labelled_pairs(4, conversational=False) if name == "mask_dpo" else Dataset.from_list([
            {column: value[0]["content"] if isinstance(value, list) else value for column, value in row.items()}
            for row in plain.to_list()
        ])  # fmt: skip
        foreign = {
            column: [{"role": "assistant", "content": value}] if value == "Elsewhere." else value
            for column, value in foreign.items()
        }
    beside = Dataset.from_list([{**foreign, **row} for row in plain.to_list()])
    expected, found = make(name, plain).train_dataset, make(name, beside).train_dataset
    assert not {*foreign} - {"labels"} & {*found.column_names}
    tokens = [column for column in expected.column_names if column.endswith(("_ids", "_mask")) or column == "labels"]
    assert tokens and [expected[column][:] for column in tokens] == [found[column][:] for column in tokens]


def test_formats_that_are_mixed_are_refused(make):
    data = labelled_pairs(4).to_list()
    for row in data:
        row["prompt"] = row["prompt"][0]["content"]
    with pytest.raises(DataError, match="mixes formats: .*'prompt': 'text'"):
        make("mask_dpo", Dataset.from_list(data))
    plain = labelled_pairs(4).remove_columns(["chosen_spans", "rejected_spans"])
    with pytest.raises(DataError, match="no column 'chosen_spans'.*`hf-factuality build-preferences` with `pairs`"):
        make("mask_dpo", plain)
    with pytest.raises(DataError, match="no column 'completion'"):
        make("ama", answers().remove_columns("completion"))
    with pytest.raises(DataError, match="no column 'rejected'"):
        make("rag", compared_pairs(2).remove_columns("rejected"))
    with pytest.raises(DataError, match="no column 'prompt'"):
        make("grpo", rows().remove_columns("prompt"))


@pytest.mark.parametrize(
    "column", ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "think_opened"]
)
def test_columns_under_names_of_the_parents_are_refused(make, column):
    data = rows().add_column(column, ["x"] * 8)
    for name in ("grpo", "ppo"):
        with pytest.raises(DataError, match=f"has a column {column!r}.*rename"):
            make(name, data)
    with pytest.raises(DataError, match=f"eval dataset has a column {column!r}"):
        make("grpo", None, data)


@pytest.mark.parametrize("name", ["grpo", "ppo", "mask_dpo", "ama", "rag"])
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("value", [None, []], ids=["null", "no message"])
def test_a_row_without_its_text_is_named(make, name, row, value):
    """At construction, and not by a tokenizer or in the middle of a training."""
    data = make.data[name]().to_list()
    data[row]["prompt"] = value
    with pytest.raises(
        DataError, match=rf"train dataset, row {row}: 'prompt' must be .*, got {re.escape(repr(value))}"
    ):
        make(name, Dataset.from_list(data))


@pytest.mark.parametrize(
    "value", [3, ["a", "b"], {"role": "user", "content": "a"}, [{"from": "human", "value": "a"}]], ids=str
)
@pytest.mark.parametrize("kind", [lambda data: data, stream], ids=["dataset", "stream"])
def test_prompts_that_are_neither_text_nor_messages_are_refused(make, value, kind):
    for name in ("grpo", "ppo"):
        with pytest.raises(DataError, match="row 0: 'prompt' must be a text or a list of messages"):
            make(name, kind(Dataset.from_list([{"prompt": value}] * 4)))


@pytest.mark.parametrize("column", ["image", "images"])
@pytest.mark.parametrize("name", ["grpo", "ppo", "mask_dpo", "ama"])
def test_images_are_refused_before_a_step(make, name, column):
    data = make.data[name]()
    with pytest.raises(DataError, match=f"train dataset has a column '{column}'.* does not support images"):
        make(name, data.add_column(column, ["x"] * len(data)))


@pytest.mark.parametrize("kind", fast_few([lambda data: data, stream], 0), ids=["dataset", "stream"])
def test_shared_conversations_are_read_as_messages(make, kind):
    """SFT converts what is `from` and `value` in a column of this name, and nothing else."""
    turns = [("human", "user", "Where?"), ("gpt", "assistant", "London.")]
    shared = [{"from": name, "value": text} for name, _, text in turns]
    messages = [{"role": name, "content": text} for name, _, text in turns]
    tokens = [
        next(iter(make("ama", kind(Dataset.from_list([row] * 4))).train_dataset))["input_ids"]
        for row in ({"conversations": shared}, {"messages": messages})
    ]
    # The template names the roles, one token each or several, before the same texts.
    assert tokens[0][-3:] == tokens[1][-3:]
    with pytest.raises(DataError, match=r"'conversations' must be a list of messages \(from, value\)"):
        make("ama", kind(Dataset.from_list([{"conversations": messages}] * 4)))
    with pytest.raises(DataError, match="no column 'text'"):
        make("ama", kind(Dataset.from_list([{"other": "x"}] * 4)))


# Chat templates


@pytest.mark.parametrize("name", ["grpo", "ppo", "mask_dpo", "ama", "rag"])
def test_messages_that_the_template_refuses_are_named_by_row(make, tiny_model, name):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # As Gemma's does.
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    ) + CHAT_TEMPLATE
    data = make.data[name]().to_list()
    data[2]["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    with pytest.raises(DataError, match=r"row 2: .*\['system', 'user'.*System role not supported"):
        make(name, Dataset.from_list(data), given={"processing_class": tokenizer})
    make(name, given={"processing_class": tokenizer})


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_messages_of_a_stream_that_the_template_refuses_are_named_when_they_come(make, tiny_model, name):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = (
        "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}" + CHAT_TEMPLATE
    )
    data = make.data[name]().to_list()
    for row in data:
        row["prompt"].append({"role": "user", "content": "Again."})
    with pytest.raises(DataError, match=r"a batch of prompts, row 0: .*\['user', 'user'\].*one at a time"):
        make(name, stream(Dataset.from_list(data)), given={"processing_class": tokenizer}).train()


def test_prompts_without_a_token_are_refused(make):
    data = rows(conversational=False).to_list()
    data[3]["prompt"] = ""
    with pytest.raises(DataError, match="row 3: the prompt has no token"):
        make("grpo", Dataset.from_list(data))


@pytest.mark.parametrize("setting", ["question_column", "evidence_column"])
def test_a_column_that_is_named_must_be_there(make, setting):
    with pytest.raises(DataError, match=f"train dataset has no column 'nowhere', only .*; set {setting}"):
        make("grpo", **{setting: "nowhere"})
    make("grpo", rows().add_column("somewhere", ["x"] * 8), **{setting: "somewhere"})


# Rewards and arguments


class Length:
    def __call__(self, completions, **columns):
        return [float(len(str(text))) for text in completions]


def factuality(completions, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    "name, given, shared",
    [
        ("grpo", {"reward_funcs": [lambda completions, **_: [0.0], lambda completions, **_: [1.0]]}, "<lambda>"),
        ("grpo", {"reward_funcs": [letters_reward, functools.partial(letters_reward, scale=2)]}, "letters_reward"),
        ("grpo", {"reward_funcs": [Length(), Length()]}, "Length"),
        ("grpo", {"reward_funcs": [letters_reward, factuality]}, "factuality"),
        ("grpo", {"reward_funcs": [letters_reward, "rlcr", RLCRReward(released=True)]}, "rlcr"),
        ("grpo", {"token_reward_funcs": [vowels, vowels]}, "vowels"),
        ("grpo", {"reward_funcs": vowels, "token_reward_funcs": vowels}, "vowels"),
        ("ppo", {"reward_funcs": [Length(), Length()]}, "Length"),
        ("ppo", {"reward_funcs": vowels}, "vowels"),
    ],
)
def test_two_rewards_of_one_name_are_refused(make, name, given, shared):
    with pytest.raises(ValueError, match=rf"several reward functions are named \['{shared}'\].*__name__"):
        make(name, given=given)


@pytest.mark.parametrize(
    "given", [{"verifier": WholeCompletion}, {"reward_funcs": RLCRReward}, {"token_reward_funcs": Length}]
)
def test_a_class_is_no_object(make, given):
    with pytest.raises(TypeError, match=r"class.*(WholeCompletion|RLCRReward|Length)|(RLCRReward|Length) is a class"):
        make("grpo", given=given)


def test_what_a_trainer_sets_itself_is_refused(make):
    for argument in ("compute_metrics", "data_collator", "compute_loss_func"):
        with pytest.raises(ValueError, match=f"TruthfulnessTrainer does not take {argument}"):
            make("truthfulness", given={argument: len})
    with pytest.raises(ValueError, match="RAGRewardTrainer does not take data_collator"):
        make("rag", given={"data_collator": len})
    with pytest.raises(DataError, match="the train dataset is a stream"):
        make("rag", stream(compared_pairs(2)))
    with pytest.raises(ValueError, match="dataloader_drop_last=True must be False"):
        make("truthfulness", dataloader_drop_last=True)
