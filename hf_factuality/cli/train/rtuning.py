"""R-Tuning (arXiv 2311.09677): SFT on what a model knows and what it does not, by its own answers; TRL's trainer as it is.

    hf-factuality train rtuning                     # a small model in a closed world, minutes on a CPU
    hf-factuality train rtuning --rtuning_variant unsure    # "I am unsure." after the gold answer, in place of a refusal
    hf-factuality train rtuning --demo real         # SmolLM2-135M-Instruct on facts of Wikidata, a quarter of an hour on a CPU
    hf-factuality train rtuning --demo real --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct    # or another model
    hf-factuality build-refusals questions.jsonl --model Qwen/Qwen2.5-7B --out refusals
    accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train rtuning \
        --config recipes/rtuning/qwen2.5-7b.yaml --refusals refusals
"""

from dataclasses import dataclass, field
from typing import Literal

from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, get_peft_config

from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import model_name, read_flags, set_model_kwargs
from hf_factuality.data.builder import describe_run
from hf_factuality.data.reading import open_dataset
from hf_factuality.demos.closed_world import KnowledgeDemo
from hf_factuality.demos.real_model import RealModelDemo
from hf_factuality.hub.cards.card import write_method_card
from hf_factuality.trainers.log import use_training_log


@dataclass
class RTuningArguments(ScriptArguments):
    refusals: str | None = field(default=None, metadata={"help": "Folder of hf-factuality build-refusals."})
    rtuning_variant: Literal["unsure", "unknown", "uncertain"] = field(
        default="unknown", metadata={"help": meaning("rtuning_variant", ", in a demo")}
    )
    demo: Literal["closed-world", "real"] = field(
        default="closed-world",
        metadata={
            "help": "Without data: a small model in a closed world, or SmolLM2-135M-Instruct on facts of Wikidata."
        },
    )
    max_refusal_share: float = field(
        default=1.0, metadata={"help": meaning("max_refusal_share", ", in the real demo")}
    )
    demo_questions: str | None = field(
        default=None, metadata={"help": "File of questions of your own for the real demo: question, answer, split."}
    )


def _load_real(script):
    """The dataset of a real run, read before any weights are loaded."""
    if bool(script.refusals) == bool(script.dataset_name):
        raise ValueError("give either --refusals FOLDER or --dataset_name")
    name = script.refusals or script.dataset_name
    columns = [("prompt", "completion"), ("messages",), ("text",)]
    dataset = open_dataset(name, script.dataset_config, script.dataset_train_split, columns=columns)
    dataset.info.description = describe_run(name) or dataset.info.description  # for the card
    return dataset


def _refuse_unused(own, script, model):
    """Flags that would change nothing in this run."""
    real = script.demo == "real"
    if own and real:
        raise ValueError("--demo real has questions of its own; leave out --refusals and --dataset_name, or --demo")
    for flag, given in (
        ("max_refusal_share", script.max_refusal_share != 1),
        ("demo_questions", script.demo_questions),
    ):
        if given and not real:
            raise ValueError(f"--{flag} is for --demo real; for data of your own: hf-factuality build-refusals")
    if model.model_name_or_path and not own and not real:
        raise ValueError(
            "the closed world has a model of its own; leave out --model_name_or_path, or take --demo real"
        )


TYPES = RTuningArguments, SFTConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("rtuning", TYPES, words, ("--refusals", "--dataset_name"))
    demo = None
    _refuse_unused(own, script, model)
    if own:
        name, dataset = model_name(model), _load_real(script)
    elif script.demo == "real":
        demo = RealModelDemo(training.output_dir, script.demo_questions, model.model_name_or_path)
        name, dataset = demo.model_dir, demo.refusals(script.rtuning_variant, script.max_refusal_share, training.seed)
    else:
        demo = KnowledgeDemo()
        name, dataset = demo.model_dir, demo.refusals(script.rtuning_variant, training.output_dir, training.seed)
    set_model_kwargs(training, model)
    trainer = SFTTrainer(name, training, train_dataset=dataset, peft_config=get_peft_config(model))
    results = None
    if demo:
        demo.measure("before", trainer)
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer)
        results = demo.report(training.output_dir)
    write_method_card(trainer, "rtuning", dataset_name=script.dataset_name, results=results)
    trainer.accelerator.print(f"The model and its card are in {training.output_dir}; hf-factuality push sends both")
