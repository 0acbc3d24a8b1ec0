"""Adaptive model averaging (arXiv 2309.06256): with which ratio each block of an aligned model is averaged with the one before.

hf-factuality train averaging                                           # a small model in a closed world, minutes on a CPU
accelerate launch --config_file recipes/accelerate/ddp.yaml -m hf_factuality train averaging \
    --config recipes/averaging/zephyr-7b-beta.yaml --questions questions.jsonl --selector reward:MODEL
"""

from dataclasses import dataclass, field
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer

from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import load_split, model_name, read_flags
from hf_factuality.data import SamplingConfig, read_questions
from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.data import with_golds
from hf_factuality.methods.raft.best_answers import best_answers, kept_answers
from hf_factuality.trainers import AdaptiveAveragingConfig, AdaptiveAveragingTrainer
from hf_factuality.trainers.log import use_training_log


@dataclass
class AveragingArguments(ScriptArguments):
    before: str | None = field(default=None, metadata={"help": "The model before alignment: a folder, or on the Hub."})
    questions: str | None = field(
        default=None,
        metadata={
            "help": meaning("questions", ": rows with 'question' (or 'prompt'); the aligned model answers them")
        },
    )
    selector: str = field(
        default="gold:GSM8K", metadata={"help": meaning("selector", ": gold:..., process:MODEL or reward:MODEL")}
    )
    aggregate: str = field(default="mean", metadata={"help": meaning("aggregate", ": min, product, last or mean")})
    num_samples: int = field(default=8, metadata={"help": meaning("num_samples", "; the best one is kept")})
    max_new_tokens: int = field(default=512, metadata={"help": meaning("max_new_tokens")})


TYPES = AveragingArguments, AdaptiveAveragingConfig, ModelConfig


def one_round(demo, best, training):
    """SFT of a closed world's model on its best answers, as long as `training`; the folder of the aligned model."""
    args = SFTConfig(
        str(Path(training.output_dir) / "aligned"), max_steps=training.max_steps, per_device_train_batch_size=32,
        num_train_epochs=3, learning_rate=5e-4, bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none",
        use_cpu=training.use_cpu,
    )  # fmt: skip
    trainer = SFTTrainer(demo.model_dir, args, train_dataset=best)
    demo.measure("before", trainer)
    use_training_log(trainer)
    trainer.train()
    trainer.save_model()
    return args.output_dir


def main(words):
    own, script, training, model = read_flags("averaging", TYPES, words, ("--before", "--questions"))
    demo, state = None if own else ClosedWorldDemo(), PartialState()
    if own and (script.before is None or bool(script.questions) == bool(script.dataset_name)):
        raise ValueError("give --before, and either --questions or --dataset_name (rows of prompt and completion)")

    def chosen(name, what):
        rows = list(demo.train_dataset) if demo else [row for _, row in read_rows(script.questions)]
        folder = Path(training.output_dir) / f"samples-{what}"
        sampling = SamplingConfig(num_samples=script.num_samples, max_new_tokens=script.max_new_tokens)
        if state.is_main_process:  # goes on where it was killed
            questions = with_golds(read_questions(rows))
            best_answers(name, questions, sampling, script.selector, script.aggregate, folder, training.seed)
        state.wait_for_everyone()
        return kept_answers(folder)

    before = demo.model_dir if demo else script.before
    after = one_round(demo, chosen(demo.model_dir, "before"), training) if demo else model_name(model)
    if script.dataset_name:
        answers = load_split(script, ("prompt", "completion"))
    else:
        answers = chosen(after, "after")
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    trainer = AdaptiveAveragingTrainer(after, before, training, answers)
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer)
        trainer.card_results = demo.report(training.output_dir)["after"]  # before is the model before alignment
    trainer.create_model_card(dataset_name=script.dataset_name)
    trainer.accelerator.print(f"{trainer.ratios.ratios}: the averaged model and its card are in {training.output_dir}")
