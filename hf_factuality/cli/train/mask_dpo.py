"""Mask-DPO (arXiv 2503.02846): DPO on the true sentences of one answer against the false ones of the other.

    hf-factuality train mask_dpo                     # a small model in a closed world, minutes on a CPU
    hf-factuality train mask_dpo --config recipes/mask_dpo/llama3.1-8b-instruct.yaml \
        --train_files pairs
"""

from dataclasses import dataclass, field
from pathlib import Path

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import load_split, model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.data.preferences import load_pairs
from hf_factuality.data.reading import open_dataset
from hf_factuality.demos.closed_world import BiographyDemo


@dataclass
class MaskDPOArguments(ScriptArguments):
    train_files: list[str] | None = field(
        default=None,
        metadata={
            "help": meaning(
                "train_files", ": pairs, in Parquet or JSON Lines, or a folder of hf-factuality build-preferences"
            )
        },
    )


def _load_data(script, model):
    """The pairs of a real run, read before any weights are loaded; docs/mask-dpo.md describes the columns."""
    model_name(model)
    if bool(script.train_files) == bool(script.dataset_name):
        raise ValueError("give either --train_files or --dataset_name")
    if script.dataset_name:
        return load_split(script, streaming=script.dataset_streaming)
    if [Path(name).is_dir() for name in script.train_files] == [True]:
        return load_pairs(script.train_files[0])
    kinds = {"parquet" if name.endswith(".parquet") else "json" for name in script.train_files}
    if len(kinds) > 1:
        raise ValueError(f"--train_files must be all Parquet or all JSON Lines, got {script.train_files}")
    return open_dataset(*kinds, data_files=script.train_files)


TYPES = MaskDPOArguments, MaskDPOConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("mask_dpo", TYPES, words, ("--train_files", "--dataset_name"))
    if own:
        demo, name, dataset = None, model.model_name_or_path, _load_data(script, model)
    else:
        demo = BiographyDemo()
        name, dataset = demo.model_dir, demo.preference_pairs(training.output_dir, training.seed)
    set_model_kwargs(training, model)
    trainer = MaskDPOTrainer(
        name, args=training, train_dataset=dataset,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    train_and_publish(trainer, script.dataset_name, demo)
