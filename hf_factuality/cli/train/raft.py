"""RAFT (arXiv 2304.06767): sample answers, keep the best of each question by a verifier, SFT on them, and again.

hf-factuality train raft                                          # a small model in a closed world, minutes on a CPU
hf-factuality train raft --selector process:outputs/process-reward-closed-world          # chosen by a process reward model
accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train raft \
    --config recipes/raft/llama3.1-8b-instruct.yaml --questions gsm8k.jsonl --selector process:PRM
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from accelerate import PartialState
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, get_peft_config

from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import model_name, read_flags
from hf_factuality.data import SamplingConfig, read_questions
from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.hub.cards.card import write_method_card
from hf_factuality.hub.results import public
from hf_factuality.io.markdown import code
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.data import with_golds
from hf_factuality.methods.raft.best_answers import best_answers, kept_answers
from hf_factuality.methods.rag_reward.data import with_passages
from hf_factuality.trainers.log import use_training_log


@dataclass
class RAFTArguments(ScriptArguments):
    questions: str | None = field(
        default=None, metadata={"help": meaning("questions", ": rows with 'question' (or 'prompt') and 'answer'")}
    )
    selector: str = field(
        default="gold:GSM8K", metadata={"help": meaning("selector", ": gold:..., process:MODEL or reward:MODEL")}
    )
    aggregate: str = field(default="min", metadata={"help": meaning("aggregate", ": min, product, last or mean")})
    grounded: bool = field(default=False, metadata={"help": "Ask with the passages of the column 'evidence'."})
    rounds: int = field(default=3, metadata={"help": "Rounds of sampling and training."})
    num_samples: int = field(default=16, metadata={"help": meaning("num_samples", ", of each round")})
    max_new_tokens: int = field(default=1024, metadata={"help": meaning("max_new_tokens")})


TYPES = RAFTArguments, SFTConfig, ModelConfig


def _write_card(trainer, script, base, results):
    """The card of RAFT: of the last round's model, with the base of the first."""
    each = f"{script.rounds} rounds of the best of {script.num_samples} answers, each by the model of the round before"
    selector = f"{code(public(script.selector))}, by the {script.aggregate} of its scores"
    write_method_card(trainer, "raft", objective=f"SFT, {each}", verifier=selector, results=results, base_model=base)


def main(words):
    own, script, training, model = read_flags("raft", TYPES, words, ("--questions",))
    if script.rounds < 1 or own and not script.questions:
        raise ValueError(f"give --questions FILE, and --rounds of at least 1; got {script.questions}, {script.rounds}")
    demo = None if own else ClosedWorldDemo()
    rows = list(demo.train_dataset) if demo else [row for _, row in read_rows(script.questions)]
    questions = (with_passages if script.grounded else with_golds)(read_questions(rows))
    name = demo.model_dir if demo else model_name(model)
    sampling = SamplingConfig(num_samples=script.num_samples, max_new_tokens=script.max_new_tokens)
    out, state = Path(training.output_dir), PartialState()
    training.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    for number in range(script.rounds):
        folder = out / f"samples-{number}"
        if state.is_main_process:  # goes on where it was killed
            best_answers(name, questions, sampling, script.selector, script.aggregate, folder, training.seed + number)
        state.wait_for_everyone()
        last = number == script.rounds - 1
        args = replace(training, output_dir=str(out if last else out / f"round-{number}"))
        trainer = SFTTrainer(name, args, train_dataset=kept_answers(folder), peft_config=get_peft_config(model))
        if demo and not number:
            demo.measure("before", trainer)
        use_training_log(trainer)
        trainer.train()
        trainer.save_model()
        name = args.output_dir
    if demo:
        demo.measure("after", trainer)
    _write_card(trainer, script, demo.model_dir if demo else model.model_name_or_path, demo and demo.report(str(out)))
    trainer.accelerator.print(f"The model and its card are in {out}; hf-factuality push sends both")
