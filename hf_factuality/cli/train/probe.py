"""Hallucination probe (after arXiv 2509.03531): a head on a frozen language model that doubts the tokens of what it wrote.

hf-factuality train probe                         # a small model in a closed world, minutes on a CPU
hf-factuality verify completions.jsonl --verifier VERIFIER --out labelled.jsonl
hf-factuality train probe --config recipes/probe/qwen2.5-7b-lora.yaml --labelled_file labelled.jsonl
"""

from dataclasses import dataclass, field

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig, ScriptArguments, get_peft_config

from hf_factuality.cli.train.shared import load_split, model_name, print_measured, read_flags, set_model_kwargs
from hf_factuality.demos.closed_world import BiographyDemo
from hf_factuality.io.rows import read_rows
from hf_factuality.trainers import ProbeConfig, ProbeTrainer
from hf_factuality.trainers.log import use_training_log
from hf_factuality.worlds import evaluate_world


COLUMNS = ("question", "prompt", "topic", "completion", "verification")


@dataclass
class ProbeArguments(ScriptArguments):
    labelled_file: str | None = field(default=None, metadata={"help": "What `hf-factuality verify --out` wrote."})


def _load_data(script) -> Dataset:
    """Labelled completions, read before any weights are loaded; docs/probe.md describes the columns."""
    if bool(script.labelled_file) == bool(script.dataset_name):
        raise ValueError("give either --dataset_name or --labelled_file")
    if script.dataset_name:
        return load_split(script)
    rows = [row for _, row in read_rows(script.labelled_file)]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"--labelled_file {script.labelled_file}: every row must be an object with columns")
    return Dataset.from_list([{name: row[name] for name in COLUMNS if name in row} for row in rows])


def sample(demo, rows, samples) -> Dataset:
    """Biographies as the base writes them at temperature 1, labelled by the oracle."""
    model, tokenizer = (kind.from_pretrained(demo.model_dir) for kind in (AutoModelForCausalLM, AutoTokenizer))
    limits = {"num_samples": samples, "max_new_tokens": demo.max_new_tokens}
    found = evaluate_world(model, tokenizer, demo.world, rows, **limits)
    asked = [{name: row[name] for name in ("question", "topic")} for row in rows for _ in range(samples)]
    labelled = zip(asked, found.completions, found.verifications, strict=True)
    return Dataset.from_list(
        [{**row, "completion": text, "verification": one.to_dict()} for row, text, one in labelled]
    )


TYPES = ProbeArguments, ProbeConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("probe", TYPES, words, ("--labelled_file", "--dataset_name"))
    if own:
        name, train, test = model_name(model), _load_data(script), None
    else:
        demo = BiographyDemo()
        name, train, test = demo.model_dir, sample(demo, demo.train_dataset, 4), sample(demo, demo.test_dataset, 1)
    set_model_kwargs(training, model)
    trainer = ProbeTrainer(name, training, train, test, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    print_measured(trainer)
    trainer.accelerator.print(f"The probe, a verifier pipeline too, and its card are in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
