"""Process reward model (ER-PRM, arXiv 2412.11006): P(correct) at the end of every step, by labels of continuations.

hf-factuality train process_reward                # a small model in a closed world, minutes on a CPU
hf-factuality build-process-labels gsm8k.jsonl --model MODEL --verifier gold:GSM8K --out labels
accelerate launch --config_file recipes/accelerate/ddp.yaml -m hf_factuality train process_reward \
    --config recipes/process_reward/llama3.1-8b-er-prm.yaml --dataset_name labels
"""

from pathlib import Path

from trl import ModelConfig, ScriptArguments, get_peft_config

from hf_factuality.cli.train.shared import load_split, model_name, print_measured, read_flags, set_model_kwargs
from hf_factuality.data import ProcessLabelConfig, process_labels_from, read_questions
from hf_factuality.data.reading import has_split, open_dataset
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.trainers import ProcessRewardConfig, ProcessRewardTrainer
from hf_factuality.trainers.log import use_training_log
from hf_factuality.verifiers import GoldVerifier


def label(demo, rows, folder):
    """Answers of the small model, sentence by sentence, by what becomes of 8 continuations."""
    sampling = SamplingConfig(num_samples=4, max_new_tokens=demo.max_new_tokens)
    return process_labels_from(
        read_questions(list(rows)), TransformersSampler(demo.model_dir, config=sampling, batch_size=256),
        GoldVerifier("world"), folder, labels=ProcessLabelConfig(8, "sentences"), questions_per_batch=64,
    )  # fmt: skip


TYPES = ScriptArguments, ProcessRewardConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("process_reward", TYPES, words, ("--dataset_name",))
    if own:
        if not script.dataset_name:
            raise ValueError(
                "give --dataset_name: a repository, a file, or the folder of hf-factuality build-process-labels"
            )
        name, train = model_name(model), load_split(script)
        # All of its rows; the released code trains on the first 1,000.
        tested = has_split(script.dataset_name, script.dataset_config, "test")
        test = open_dataset(script.dataset_name, script.dataset_config, "test") if tested else None
    else:
        demo, folder = ClosedWorldDemo(), Path(training.output_dir) / "labels"
        train, test = (label(demo, getattr(demo, f"{it}_dataset"), folder / it) for it in ("train", "test"))
        name = demo.model_dir
    set_model_kwargs(training, model)
    trainer = ProcessRewardTrainer(name, training, train, test, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    print_measured(trainer)
    trainer.accelerator.print(f"The process reward model, a verifier pipeline too, is in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
