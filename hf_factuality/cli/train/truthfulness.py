"""Truthfulness model (after KLCF, arXiv 2509.23765): P(true) of a claim by a classification head on the model that made it.

    hf-factuality train truthfulness                  # a small model in a closed world, minutes on a CPU
    hf-factuality train truthfulness --config recipes/truthfulness/qwen2.5-7b-lora.yaml \
        --claims_run checklists --questions_file questions.jsonl
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig, ScriptArguments, get_peft_config

from hf_factuality.cli.train.shared import load_split, model_name, print_measured, read_flags, set_model_kwargs
from hf_factuality.data.builder import judged_responses
from hf_factuality.data.claims import read_claims
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.demos.closed_world import BiographyDemo
from hf_factuality.io.rows import read_rows
from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer
from hf_factuality.trainers.log import use_training_log


@dataclass
class TruthfulnessArguments(ScriptArguments):
    claims_run: str | None = field(default=None, metadata={"help": "Folder of a builder's run."})
    questions_file: str | None = field(default=None, metadata={"help": "File of the questions of --claims_run."})


def _load_data(script) -> Dataset:
    """The claims of a real run, read before any weights are loaded; docs/truthfulness.md describes the columns."""
    if bool(script.claims_run) == bool(script.dataset_name) or bool(script.claims_run) != bool(script.questions_file):
        raise ValueError("give either --dataset_name or both --claims_run and --questions_file")
    if script.dataset_name:
        return load_split(script)
    questions = read_questions([row for _, row in read_rows(script.questions_file)], script.questions_file)
    return read_claims(script.claims_run, questions)


def sample_claims(demo, split, output_dir, seed) -> Dataset:
    """The claims of four biographies of each person of a split, as the base writes them and the oracle labels them."""
    questions = read_questions([{**row, "id": row["person"]} for row in demo.world.biographies(split)])
    settings = SamplingConfig(num_samples=4, max_new_tokens=demo.max_new_tokens)
    sampler = TransformersSampler(demo.model_dir, config=settings, batch_size=256)
    folder = Path(output_dir) / f"claims-{Path(demo.model_dir).name}-{split}-seed{seed}"
    run: dict[str, Any] = {"questions_per_batch": 64, "patience": 0.0, "progress": True, "overlap": None}
    with judged_responses(questions, sampler, demo.verifier, folder, seed=seed, **run):
        return read_claims(folder, questions)


TYPES = TruthfulnessArguments, TruthfulnessConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("truthfulness", TYPES, words, ("--claims_run", "--dataset_name"))
    if own:
        name, train, test = model_name(model), _load_data(script), None
    else:
        demo = BiographyDemo()
        name, out = demo.model_dir, training.output_dir
        train, test = (sample_claims(demo, split, out, training.seed) for split in ("train", "test"))
    set_model_kwargs(training, model)
    trainer = TruthfulnessTrainer(name, training, train, test, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    print_measured(trainer)
    trainer.accelerator.print(f"The model, a verifier pipeline too, and its card are in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
