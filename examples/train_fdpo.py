"""F-DPO (arXiv 2601.03027): DPO that never prefers a hallucinated answer to a factual one, with a margin between the two.

    python examples/train_fdpo.py                     # a small model in a closed world, minutes on a CPU
    python examples/train_fdpo.py --config recipes/fdpo/qwen3-8b.yaml \
        --train_files pairs
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config

from demos.closed_world import BiographyDemo
from demos.inputs import given, load_split, model_name, set_model_kwargs
from hf_factuality import FDPOConfig, FDPOTrainer
from hf_factuality.data.preferences import load_pairs
from hf_factuality.data.reading import open_dataset
from hf_factuality.io.refusals import run_script


CLOSED_WORLD = Path(__file__).resolve().parent.parent / "recipes" / "fdpo" / "closed-world.yaml"


@dataclass
class FDPOArguments(ScriptArguments):
    train_files: list[str] | None = field(
        default=None,
        metadata={"help": "Parquet or JSON Lines files of pairs, or a folder of hf-factuality build-preferences."},
    )


def load_data(script, model):
    """The pairs of a real run, read before any weights are loaded; docs/fdpo.md describes the columns."""
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


def main():
    parser = TrlParser((FDPOArguments, FDPOConfig, ModelConfig))
    if given("--train_files", "--dataset_name"):
        script, training, model = parser.parse_args_and_config()
        demo, name, dataset = None, model.model_name_or_path, load_data(script, model)
    else:
        script, training, model = parser.parse_args_and_config(["--config", str(CLOSED_WORLD), *sys.argv[1:]])
        demo = BiographyDemo()
        name, dataset = demo.model_dir, demo.preference_pairs(training.output_dir, training.seed)
    set_model_kwargs(training, model)
    trainer = FDPOTrainer(
        name, args=training, train_dataset=dataset,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    if demo:
        demo.measure("before", trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer)
        trainer.card_results = demo.report(training.output_dir)
    trainer.create_model_card(dataset_name=script.dataset_name)
    trainer.accelerator.print(f"The model and its card are in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)


if __name__ == "__main__":
    run_script(main)
