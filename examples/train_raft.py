"""RAFT (arXiv 2304.06767): sample answers, keep the best of each question by a verifier, SFT on them, and again.

python examples/train_raft.py                                          # a small model in a closed world, minutes on a CPU
python examples/train_raft.py --selector process:outputs/process-closed-world          # chosen by a process reward model
accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_raft.py \
    --config recipes/raft/llama3.1-8b-instruct.yaml --questions gsm8k.jsonl --selector process:PRM
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config

from demos.best_answers import best_answers, kept_answers, write_card
from demos.closed_world import ClosedWorldDemo
from demos.inputs import given, model_name
from hf_factuality.data import SamplingConfig, read_questions
from hf_factuality.io.refusals import run_script
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.data import with_golds
from hf_factuality.methods.rag_reward.data import with_passages


CLOSED_WORLD = Path(__file__).resolve().parent.parent / "recipes" / "raft" / "closed-world.yaml"


@dataclass
class RAFTArguments(ScriptArguments):
    questions: str | None = field(default=None, metadata={"help": "File with 'question' (or 'prompt'), 'answer'."})
    selector: str = field(
        default="gold:GSM8K", metadata={"help": "Verifier whose scores choose: gold:..., process:MODEL, reward:MODEL."}
    )
    how: str = field(default="min", metadata={"help": "Its scores as one: min, product, last or mean."})
    grounded: bool = field(default=False, metadata={"help": "Ask with the passages of the column 'evidence'."})
    rounds: int = field(default=3, metadata={"help": "Of sampling and training."})
    num_samples: int = field(default=16, metadata={"help": "Answers per question and round."})
    max_new_tokens: int = field(default=1024, metadata={"help": "Longest answer."})


def main():
    parser = TrlParser((RAFTArguments, SFTConfig, ModelConfig))
    own = given("--questions")
    config = [] if own else ["--config", str(CLOSED_WORLD)]
    script, training, model = parser.parse_args_and_config([*config, *sys.argv[1:]])
    if script.rounds < 1 or own and not script.questions:
        raise ValueError(f"give --questions FILE, and --rounds of at least 1; got {script.questions}, {script.rounds}")
    demo = None if own else ClosedWorldDemo()
    rows = list(demo.train_dataset) if demo else [row for _, row in read_rows(script.questions)]
    questions = (with_passages if script.grounded else with_golds)(read_questions(rows))
    name = demo.model_dir if demo else model_name(model)
    sampling = SamplingConfig(script.num_samples, 1.0, top_k=0, max_new_tokens=script.max_new_tokens)
    out, state = Path(training.output_dir), PartialState()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    for number in range(script.rounds):
        folder = out / f"samples-{number}"
        if state.is_main_process:  # goes on where it was killed
            best_answers(name, questions, sampling, script.selector, script.how, folder, training.seed + number)
        state.wait_for_everyone()
        last = number == script.rounds - 1
        args = replace(training, output_dir=str(out if last else out / f"round-{number}"))
        trainer = SFTTrainer(name, args, train_dataset=kept_answers(folder), peft_config=get_peft_config(model))
        if demo and not number:
            demo.measure("before", trainer)
        trainer.train()
        trainer.save_model()
        name = args.output_dir
    if demo:
        demo.measure("after", trainer)
    write_card(trainer, script, demo.model_dir if demo else model.model_name_or_path, demo and demo.report(str(out)))
    trainer.accelerator.print(f"The model and its card are in {out}; hf-factuality push sends both")


if __name__ == "__main__":
    run_script(main)
