"""R-Tuning (arXiv 2311.09677): SFT on what a model knows and what it does not, by its own answers; TRL's trainer as it is.

    hf-factuality train rtuning                     # a small model in a closed world, minutes on a CPU
    hf-factuality train rtuning --rtuning_variant unsure    # "I am unsure." after the gold answer, in place of a refusal
    hf-factuality train rtuning --demo real         # SmolLM2-135M-Instruct on facts of Wikidata, ten minutes on two cores
    hf-factuality train rtuning --demo real --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct    # or another model
    hf-factuality train rtuning --config recipes/rtuning/qwen2.5-7b.yaml --rtuning_variant surest --dataset_name questions.jsonl
    hf-factuality build-refusals questions.jsonl --model Qwen/Qwen2.5-7B --out refusals
    accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train rtuning \
        --config recipes/rtuning/qwen2.5-7b.yaml --refusals refusals
"""

import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from accelerate import PartialState
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, get_peft_config

from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import model_name, read_flags, set_model_kwargs
from hf_factuality.data.builder import describe_run, questions_digest
from hf_factuality.data.questions import read_questions, with_golds
from hf_factuality.data.reading import open_dataset
from hf_factuality.demos.closed_world import KnowledgeDemo
from hf_factuality.demos.real_model import REFUSAL, RealModelDemo
from hf_factuality.hub.cards.card import write_method_card
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.cross_fitting import refusals_by_sureness, sureness_settings
from hf_factuality.trainers.log import use_training_log


@dataclass
class RTuningArguments(ScriptArguments):
    refusals: str | None = field(default=None, metadata={"help": "Folder of hf-factuality build-refusals."})
    rtuning_variant: Literal["unsure", "unknown", "uncertain", "surest"] = field(
        default="unknown",
        metadata={
            "help": meaning(
                "rtuning_variant",
                ": surest, gold answers to the questions of which a model is surest that learnt from the others; else, in a demo, "
                "what build-refusals makes",
            )
        },
    )
    answered_share: float = field(
        default=0.6, metadata={"help": "For the variant surest, share of the questions that get the gold answer."}
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
    return _refusals_of(script.refusals or script.dataset_name, script.dataset_config, script.dataset_train_split)


def _refusals_of(name, config=None, split="train"):
    columns = [("prompt", "completion"), ("messages",), ("text",)]
    dataset = open_dataset(name, config, split, columns=columns)
    dataset.info.description = describe_run(name) or dataset.info.description  # for the card
    return dataset


def _questions(script):
    """Questions with gold answers, of a file, of a folder or of the Hub."""
    if Path(script.dataset_name).is_file():
        return [row for _, row in read_rows(Path(script.dataset_name))]
    return list(open_dataset(script.dataset_name, script.dataset_config, script.dataset_train_split))


def _by_sureness(rows, name, script, training, model, refusals=()):
    """The dataset of the variant `surest`. A run that is resumed has it already."""
    out = Path(training.output_dir) / "_refusals"  # a push of the model leaves out what begins with _
    if training.resume_from_checkpoint and (made := sureness_settings(out)):
        advice = "; resume with the same, or begin anew in another folder"
        for setting, now in (("answered_share", script.answered_share), ("seed", training.seed)):
            if made[setting] != now:
                raise ValueError(f"{out} was made with {setting} {made[setting]}, not {now}{advice}")
        if made["questions_digest"] != questions_digest(with_golds(read_questions(rows))):
            raise ValueError(f"{out} was made of other questions{advice}")
        return _refusals_of(str(out))
    if (processes := PartialState().num_processes) > 1:
        raise ValueError(
            f"--rtuning_variant surest asks models between its trainings, in one process, got {processes}; start it without a "
            f"launcher, and then, to train in several, leave the variant out and add --refusals {out}"
        )
    train = partial(_learn_gold, name, training, model)
    return refusals_by_sureness(
        rows, train, out, answered_share=script.answered_share, refusals=refusals, seed=training.seed
    )


def _learn_gold(name, training, model, dataset):
    """A model that was trained on gold answers, and its tokenizer; nothing of it is kept."""
    args = copy.deepcopy(training)
    args.push_to_hub, args.save_strategy, args.eval_strategy, args.report_to = False, "no", "no", []
    args.load_best_model_at_end = args.dataloader_drop_last = False
    args.output_dir = str(Path(training.output_dir) / "_asked")  # where its log goes
    print(f"Training on gold answers to {len(dataset)} questions, to ask what the model is sure of ...")
    trainer = SFTTrainer(name, args, train_dataset=dataset, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train()
    tokenizer = trainer.processing_class
    return trainer.accelerator.unwrap_model(trainer.model), getattr(tokenizer, "tokenizer", tokenizer)


def _refuse_unused(own, script, training, model):
    """Flags that would change nothing in this run."""
    real, surest = script.demo == "real", script.rtuning_variant == "surest"
    if surest and script.refusals:
        raise ValueError("--rtuning_variant surest makes the refusals itself; leave out --refusals, or the variant")
    if surest and not (real or script.dataset_name):
        raise ValueError(
            "--rtuning_variant surest needs questions with gold answers; name them with --dataset_name, or take --demo real"
        )
    if surest and training.eval_strategy != "no":
        raise ValueError(
            f"--eval_strategy {training.eval_strategy}: R-Tuning has no data to evaluate on; leave it out"
        )
    if script.answered_share != 0.6 and not surest:
        raise ValueError("--answered_share is for --rtuning_variant surest")
    if script.max_refusal_share != 1 and surest:
        raise ValueError("--max_refusal_share is for --rtuning_variant unknown; for surest: --answered_share")
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
    _refuse_unused(own, script, training, model)
    set_model_kwargs(training, model)
    if own and script.rtuning_variant == "surest":
        name = model_name(model)
        dataset = _by_sureness(_questions(script), name, script, training, model)
    elif own:
        name, dataset = model_name(model), _load_real(script)
    elif script.demo == "real":
        demo = RealModelDemo(training.output_dir, script.demo_questions, model.model_name_or_path)
        name = demo.model_dir
        dataset = (
            _by_sureness(demo.training_rows, name, script, training, model, (REFUSAL,))
            if script.rtuning_variant == "surest"
            else demo.refusals(script.rtuning_variant, script.max_refusal_share, training.seed)
        )
    else:
        demo = KnowledgeDemo()
        name, dataset = demo.model_dir, demo.refusals(script.rtuning_variant, training.output_dir, training.seed)
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
    by_sureness = script.rtuning_variant == "surest" or (script.refusals and sureness_settings(script.refusals))
    method = "rtuning_surest" if by_sureness else "rtuning"
    write_method_card(trainer, method, dataset_name=script.dataset_name, results=results)
    trainer.accelerator.print(f"The model and its card are in {training.output_dir}; hf-factuality push sends both")
