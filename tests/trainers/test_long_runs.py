"""What happens hours into a run, or would."""

import gc
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import TrainerCallback

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.errors import DataError
from tests.conftest import fast_few
from tests.tiny import letters_reward, rows
from tests.trainers.mask_dpo_recording import pairs
from tests.trainers.recording import QUIET, WholeCompletion


def letters(completion_ids, **columns):
    """A number per token, of the token alone."""
    return [[(token % 5) / 4 - 0.4 for token in ids] for ids in completion_ids]


def make(method, model, folder, dataset=None, **settings):
    shared = {**QUIET, "output_dir": str(folder), "per_device_train_batch_size": 2, "save_strategy": "no", **settings}
    if method == "mask_dpo":
        return MaskDPOTrainer(model, args=MaskDPOConfig(**shared), train_dataset=pairs())
    dataset, shared = dataset or rows(), {"max_completion_length": 8, **shared}
    if method == "fspo":
        args = FactGRPOConfig(**shared, num_generations=2, verify_scope="completion")
        return FactGRPOTrainer(model, letters_reward, args, dataset, verifier=WholeCompletion())
    return TokenRewardPPOTrainer(model, letters, None, TokenRewardPPOConfig(**shared), dataset)


@pytest.mark.parametrize(
    ("split", "method"), fast_few([("train", "fspo"), ("train", "rlfh"), ("eval", "fspo"), ("eval", "rlfh")], 0, 3)
)
def test_a_prompt_that_is_too_long_is_found_before_the_first_step(tiny_model, tmp_path, method, split):
    prompts = [[{"role": "user", "content": "a b" if number != 7000 else "a b " * 600}] for number in range(7001)]
    dataset = Dataset.from_dict({"prompt": prompts})
    with pytest.raises(DataError, match=r"row 7000: the prompt has \d+ tokens, but only 504 fit .*\(1 of 7001"):
        if split == "train":
            make(method, tiny_model, tmp_path, dataset)
        else:
            trainer = TokenRewardPPOTrainer if method == "rlfh" else FactGRPOTrainer
            own = {**QUIET, "output_dir": str(tmp_path), "max_completion_length": 8}
            if method == "fspo":
                trainer(tiny_model, letters_reward, FactGRPOConfig(**own, verify_scope="completion"), rows(),
                        eval_dataset={"long": dataset}, verifier=WholeCompletion())  # fmt: skip
            else:
                trainer(tiny_model, letters, None, TokenRewardPPOConfig(**own), rows(), eval_dataset=dataset)


def test_a_streamed_dataset_has_no_rows_to_look_at(tiny_model, tmp_path):
    prompts = [[{"role": "user", "content": "a b " * 600}]] * 4
    make("fspo", tiny_model, tmp_path, Dataset.from_dict({"prompt": prompts}).to_iterable_dataset(), max_steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fspo", "rlfh", "mask_dpo"])
def test_memory_is_flat_over_two_thousand_steps(tiny_model, tmp_path, method):
    """From step 500 on, within 3 MB; a list of numbers per step is less, a batch per step would be more."""
    trainer = make(method, tiny_model, tmp_path, max_steps=2000, logging_steps=500)
    seen = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (500, 1000, 1500, 2000):
                gc.collect()
                seen[state.global_step] = resident()

    trainer.add_callback(Watch())
    trainer.train()
    assert max(seen.values()) - seen[500] < 3e6, seen


def resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024
