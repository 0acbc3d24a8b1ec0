"""Self-rewarding correction (arXiv 2502.19613): answers that end in a verdict, and are revised where it is `[VERIFY] wrong`.

    hf-factuality train self_correction                 # SFT on a small model in a closed world, minutes on a CPU
    hf-factuality train self_correction --stage rl      # then RL (or dpo) from what that run has saved
    hf-factuality build-corrections questions.jsonl --model Qwen/Qwen2.5-Math-7B --verifier gold:MATH --out corrections
    accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train self_correction \
        --config recipes/self_correction/qwen2.5-math-7b-sft.yaml --dataset_name corrections
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.cli.shared import meaning, with_underscores
from hf_factuality.cli.train.shared import load_split, model_name, read_flags, set_model_kwargs, with_recipe
from hf_factuality.demos.corrections import REVISE, CorrectionDemo, write_card
from hf_factuality.methods.self_correction import formula
from hf_factuality.rewards import CorrectionReward
from hf_factuality.trainers import CorrectionRollout
from hf_factuality.trainers.log import use_training_log


TRAJECTORIES = ("messages",), ("prompt", "completion"), ("text",)
COLUMNS = {"sft": TRAJECTORIES, "dpo": [("chosen", "rejected")], "rl": [("prompt", "answer")]}


@dataclass
class CorrectionArguments(ScriptArguments):
    stage: Literal["sft", "dpo", "rl"] = field(
        default="sft", metadata={"help": "Stage of the training: SFT on trajectories, DPO on pairs, or RL."}
    )
    scorer: str = field(default="MATH", metadata={"help": "What compares the last answer with the gold answer (rl)."})
    revise: str = field(default=formula.REVISE, metadata={"help": meaning("revise", ", between the turns (rl)")})


def make_trainer(script, name, training, dataset, model):
    more = {"peft_config": get_peft_config(model)}
    if script.stage == "rl":
        reward, rollout = CorrectionReward(script.scorer), CorrectionRollout(script.revise)
        return FactGRPOTrainer(name, reward, training, dataset, verifier=None, rollout_func=rollout, **more)
    trainer = SFTTrainer if script.stage == "sft" else DPOTrainer
    return trainer(name, args=training, train_dataset=dataset, **more)


CONFIGS = {"sft": SFTConfig, "dpo": DPOConfig, "rl": FactGRPOConfig}
TYPES = {stage: (CorrectionArguments, config, ModelConfig) for stage, config in CONFIGS.items()}


def read_stage(words):
    """The stage of a command line or of the recipe that it names, which says what the other flags are."""
    first = TrlParser(
        (CorrectionArguments,), prog="hf-factuality train self_correction", allow_abbrev=False, add_help=False
    )
    return first.parse_args_and_config(with_recipe(with_underscores(words)), return_remaining_strings=True)[0].stage


def main(words):
    stage = read_stage(words)
    demo = f"closed-world-{stage}"
    own, script, training, model = read_flags("self_correction", TYPES[stage], words, ("--dataset_name",), demo)
    if own:
        demo, name, dataset = None, model_name(model), load_split(script, *COLUMNS[stage])
    else:
        demo = CorrectionDemo(training.output_dir, training.seed)
        before = Path(training.output_dir).with_name("self-correction-closed-world-sft")
        name = str(before) if stage != "sft" and (before / "config.json").exists() else demo.base
        script.revise, script.scorer = REVISE, "world"
        dataset = demo.train_dataset if stage == "rl" else demo.build(name, stage)
    set_model_kwargs(training, model)
    trainer = make_trainer(script, name, training, dataset, model)
    if demo:
        demo.two_turns("before", trainer)
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    write_card(trainer, script, demo)
    trainer.accelerator.print(f"The model and its card are in {training.output_dir}; hf-factuality push sends both")
