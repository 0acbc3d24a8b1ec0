"""TRL's trainers are private API to a subclass. Every hook that we override is listed here with the signature that we
rely on; this fails first when TRL moves."""

import inspect

import pytest
import torch
import trl
from packaging.version import Version
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardTrainer, SFTConfig, SFTTrainer
from trl.trainer.base_config import _BaseConfig
from trl.trainer.base_trainer import _BaseTrainer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.trainers import (
    AdaptiveAveragingConfig,
    AdaptiveAveragingTrainer,
    ProbeConfig,
    TruthfulnessConfig,
    TruthfulnessTrainer,
    VerifierConfig,
)
from hf_factuality.trainers._checkpoints import ResumableRollouts, WholeCheckpoints
from hf_factuality.trainers._data import ChecksDatasets
from hf_factuality.trainers._publish import Publishes
from hf_factuality.trainers.base import FactualityTrainer, SamplingTrainer
from tests.tiny import letters_reward, rows
from tests.trainers import mask_dpo_recording
from tests.trainers.recording import SETTINGS


PUBLISHING = {
    "init_hf_repo": ["self", "token", "private"],
    "push_to_hub": ["self", "commit_message", "blocking", "token", "revision", "private", "kwargs"],
    "_push_from_checkpoint": ["self", "checkpoint_folder"],
}
CHECKING = {
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
}
CARDS = {"create_model_card": ["self", "model_name", "dataset_name", "tags"]}
CHECKPOINTS = {
    "train": ["self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"],
    "_get_output_dir": ["self", "trial"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_push_from_checkpoint": ["self", "checkpoint_folder"],
    "_save_optimizer_and_scheduler": ["self", "output_dir"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_load_best_model": ["self"],
}
DATASETS = {
    "train": CHECKPOINTS["train"],
    "evaluate": ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"],
}
REWARDS = {"_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"]}
BATCH = {"_generate_and_score_completions": ["self", "inputs"], **REWARDS}
LOSS = {"_compute_loss": ["self", "model", "inputs"]}
OF_ALL = {**CARDS, **CHECKING}
HOOKS = {
    (GRPOTrainer, FactGRPOTrainer): {**BATCH, **LOSS},
    (GRPOTrainer, TokenRewardPPOTrainer): {
        **BATCH,
        **LOSS,
        "training_step": ["self", "model", "inputs", "num_items_in_batch"],
        "save_model": ["self", "output_dir", "_internal_call"],
        "_save_optimizer_and_scheduler": ["self", "output_dir"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
        "_load_best_model": ["self"],
    },
    # Beneath both of the above.
    (GRPOTrainer, SamplingTrainer): {
        **BATCH,
        **LOSS,
        "_prepare_inputs": ["self", "generation_batch"],
        "_generate": ["self", "prompts"],
        "_tokenize_prompts": ["self", "prompts"],
        "_generate_single_turn": [
            *("self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images")
        ],
        "_tool_call_loop": [
            *(
                "self",
                "prompts",
                "prompt_ids",
                "completion_ids",
                "completions",
                "logprobs",
                "images",
                "multimodal_fields",
            )
        ],
    },
    (GRPOTrainer, ChecksDatasets): DATASETS,
    (_BaseTrainer, ChecksDatasets): DATASETS,
    (GRPOTrainer, ResumableRollouts): {
        "_get_train_sampler": ["self", "dataset"],
        "_save_optimizer_and_scheduler": ["self", "output_dir"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    },
    # Beneath all trainers.
    (GRPOTrainer, FactualityTrainer): OF_ALL,
    (DPOTrainer, FactualityTrainer): OF_ALL,
    (_BaseTrainer, FactualityTrainer): OF_ALL,
    (GRPOTrainer, WholeCheckpoints): CHECKPOINTS,
    (DPOTrainer, WholeCheckpoints): CHECKPOINTS,
    (_BaseTrainer, WholeCheckpoints): CHECKPOINTS,
    (GRPOTrainer, Publishes): PUBLISHING,
    (DPOTrainer, Publishes): PUBLISHING,
    (_BaseTrainer, Publishes): PUBLISHING,
    (_BaseTrainer, TruthfulnessTrainer): {
        "train": ["self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"],
        "_save": ["self", "output_dir", "state_dict"],
    },
    (SFTTrainer, AdaptiveAveragingTrainer): {
        "compute_loss": CHECKING["compute_loss"],
        "log": ["self", "logs", "start_time"],
        "_save": ["self", "output_dir", "state_dict"],
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
        "_load_best_model": ["self"],
    },
    (DPOTrainer, MaskDPOTrainer): {
        "_prepare_dataset": ["self", "dataset", "processing_class", "args", "dataset_name"],
        "_set_signature_columns_if_needed": ["self"],
    },
}
# Overridden with another signature on purpose, or new names of ours.
OWN = {"__init__", "_get_per_token_logps_and_entropies", "_run_epoch"}


def test_trl_version_is_the_one_these_hooks_were_read_from():
    assert Version("1.16") <= Version(trl.__version__) < Version("1.17")


@pytest.mark.parametrize("parent, child", HOOKS)
def test_hooks_exist_with_the_same_signature(parent, child):
    for name, parameters in HOOKS[parent, child].items():
        assert list(inspect.signature(inspect.unwrap(getattr(parent, name))).parameters) == parameters, name
        assert list(inspect.signature(getattr(child, name)).parameters) == parameters, name


@pytest.mark.parametrize("parent, child", HOOKS)
def test_nothing_else_is_overridden(parent, child):
    overridden = {name for name, value in vars(child).items() if callable(value) and hasattr(parent, name)}
    assert overridden - OWN == set(HOOKS[parent, child])


@pytest.mark.parametrize("parent", [DPOTrainer, SFTTrainer, RewardTrainer])
def test_datasets_are_prepared_under_a_name(parent):
    """`ChecksDatasets` overrides this for three parents, whose signatures differ in between."""
    names = list(inspect.signature(parent._prepare_dataset).parameters)
    assert names[:4] == ["self", "dataset", "processing_class", "args"] and names[-1] == "dataset_name"


@pytest.mark.parametrize(
    "parent, child",
    [
        (GRPOConfig, FactGRPOConfig),
        (GRPOConfig, TokenRewardPPOConfig),
        (DPOConfig, MaskDPOConfig),
        (SFTConfig, AdaptiveAveragingConfig),
        (_BaseConfig, TruthfulnessConfig),
        (TruthfulnessConfig, ProbeConfig),
        (TruthfulnessConfig, VerifierConfig),
    ],
)
def test_config_adds_few_fields_with_help(parent, child):
    own = {name: f for name, f in child.__dataclass_fields__.items() if name not in parent.__dataclass_fields__}
    assert 0 < len(own) <= 12
    for name, field in own.items():
        assert field.metadata.get("help"), name
        assert f"{name} (`" in child.__doc__, name


# No other test fails where these two move.
def test_the_parent_leaves_out_of_its_loss_what_tool_mask_leaves_out(tiny_model, tmp_path):
    """TokenRewardPPO writes unknown completions there."""
    trainer = GRPOTrainer(tiny_model, letters_reward, GRPOConfig(str(tmp_path), **{**SETTINGS, "beta": 0.0}), rows())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([rows()[0]] * 4)
    mask = batch["completion_mask"].clone()
    mask[1] = 0
    batch["advantages"] = torch.tensor([1.0, -2.0, 3.0, 5.0])[:, None].expand(mask.shape)
    loss = trainer._compute_loss(trainer.model, {**batch, "tool_mask": mask, "num_items_in_batch": mask.sum()})
    # Ratios are 1: the mean of minus the advantages over the tokens that count, and of half of the accumulation.
    expected = -(batch["advantages"] * mask).sum() / mask.sum() * trainer.args.steps_per_generation
    torch.testing.assert_close(loss, expected)


def test_the_parent_saves_where_get_output_dir_says(tiny_model, tmp_path):
    """Everything of a checkpoint goes there, and nothing is deleted elsewhere."""

    class Elsewhere(DPOTrainer):
        def _get_output_dir(self, trial):
            return str(tmp_path / "run" / "_elsewhere")

    for name in ("checkpoint-2", "checkpoint-3"):
        (tmp_path / "run" / name).mkdir(parents=True)
    saves = dict(save_strategy="steps", save_steps=1, save_total_limit=1, max_steps=1)
    mask_dpo_recording.make(Elsewhere, tiny_model, tmp_path / "run", **saves).train()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "README.md",
        "checkpoint-2",
        "checkpoint-3",
        "_elsewhere",
    }
    found = {path.name for path in (tmp_path / "run" / "_elsewhere" / "checkpoint-1").iterdir()}
    assert found >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
