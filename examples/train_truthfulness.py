"""Truthfulness model (after KLCF, arXiv 2509.23765): P(true) of a claim by a classification head on the model that made it.

    python examples/train_truthfulness.py                  # a small model in a closed world, minutes on a CPU
    python examples/train_truthfulness.py --config recipes/truthfulness/qwen2.5-7b-lora.yaml \
        --claims_run checklists --questions_file questions.jsonl
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config

from demos.claims import read_claims
from demos.closed_world import BiographyDemo
from demos.inputs import given, load_split, model_name, set_model_kwargs
from hf_factuality.data.builder import judged_responses
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.io.refusals import run_script
from hf_factuality.io.rows import read_rows
from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer


CLOSED_WORLD = Path(__file__).resolve().parent.parent / "recipes" / "truthfulness" / "closed-world.yaml"


@dataclass
class TruthfulnessArguments(ScriptArguments):
    claims_run: str | None = field(default=None, metadata={"help": "Folder of a builder's run."})
    questions_file: str | None = field(default=None, metadata={"help": "The questions of that run."})


def load_data(script) -> Dataset:
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
    run = {"questions_per_batch": 64, "patience": 0.0, "progress": True, "overlap": None}
    with judged_responses(questions, sampler, demo.verifier, folder, seed=seed, **run):
        return read_claims(folder, questions)


def main():
    parser = TrlParser((TruthfulnessArguments, TruthfulnessConfig, ModelConfig))
    if given("--claims_run", "--dataset_name"):
        script, training, model = parser.parse_args_and_config()
        name, train, test = model_name(model), load_data(script), None
    else:
        script, training, model = parser.parse_args_and_config(["--config", str(CLOSED_WORLD), *sys.argv[1:]])
        demo = BiographyDemo()
        name, out = demo.model_dir, training.output_dir
        train, test = (sample_claims(demo, split, out, training.seed) for split in ("train", "test"))
    set_model_kwargs(training, model)
    trainer = TruthfulnessTrainer(name, training, train, test, peft_config=get_peft_config(model))
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    for name, value in trainer.figures.items():
        trainer.accelerator.print(f"{name:18} {value:.3f}")
    trainer.accelerator.print(f"The model, a verifier pipeline too, and its card are in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)


if __name__ == "__main__":
    run_script(main)
