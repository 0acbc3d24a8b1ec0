"""Adaptive model averaging (arXiv 2309.06256): with which ratio each block of an aligned model is averaged with the one before.

python examples/train_ama.py                                           # a small model in a closed world, minutes on a CPU
accelerate launch --config_file recipes/accelerate/ddp.yaml examples/train_ama.py \
    --config recipes/ama/zephyr-7b-beta.yaml --questions questions.jsonl --selector reward:MODEL
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, ScriptArguments, TrlParser

from demos.best_answers import best_answers, kept_answers, one_round
from demos.closed_world import ClosedWorldDemo
from demos.inputs import given, load_split, model_name
from hf_factuality.data import SamplingConfig, read_questions
from hf_factuality.io.refusals import run_script
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.data import with_golds
from hf_factuality.trainers import AdaptiveAveragingConfig, AdaptiveAveragingTrainer


CLOSED_WORLD = Path(__file__).resolve().parent.parent / "recipes" / "ama" / "closed-world.yaml"


@dataclass
class AMAArguments(ScriptArguments):
    before: str | None = field(default=None, metadata={"help": "The model before alignment: a folder, or on the Hub."})
    questions: str | None = field(
        default=None, metadata={"help": "File of rows with 'question' (or 'prompt'); the aligned model answers them."}
    )
    selector: str = field(
        default="gold:GSM8K", metadata={"help": "Verifier whose scores choose: gold:..., reward:MODEL."}
    )
    how: str = field(default="mean", metadata={"help": "Its scores as one: min, product, last or mean."})
    num_samples: int = field(default=8, metadata={"help": "Answers per question, of which the best is kept."})
    max_new_tokens: int = field(default=512, metadata={"help": "Longest answer."})


def main():
    parser = TrlParser((AMAArguments, AdaptiveAveragingConfig, ModelConfig))
    own = given("--before", "--questions")
    config = [] if own else ["--config", str(CLOSED_WORLD)]
    script, training, model = parser.parse_args_and_config([*config, *sys.argv[1:]])
    demo, state = None if own else ClosedWorldDemo(), PartialState()
    if own and (script.before is None or bool(script.questions) == bool(script.dataset_name)):
        raise ValueError("give --before, and either --questions or --dataset_name (rows of prompt and completion)")

    def chosen(name, what):
        rows = list(demo.train_dataset) if demo else [row for _, row in read_rows(script.questions)]
        folder = Path(training.output_dir) / f"samples-{what}"
        sampling = SamplingConfig(script.num_samples, 1.0, top_k=0, max_new_tokens=script.max_new_tokens)
        if state.is_main_process:  # goes on where it was killed
            questions = with_golds(read_questions(rows))
            best_answers(name, questions, sampling, script.selector, script.how, folder, training.seed)
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
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer)
        trainer.card_results = demo.report(training.output_dir)["after"]  # before is the model before alignment
    trainer.create_model_card(dataset_name=script.dataset_name)
    trainer.accelerator.print(f"{trainer.ratios.ratios}: the averaged model and its card are in {training.output_dir}")


if __name__ == "__main__":
    run_script(main)
