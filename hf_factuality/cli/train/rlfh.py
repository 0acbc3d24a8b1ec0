"""RLFH (arXiv 2406.12221): PPO that pays each statement of an answer at the token where it ends.

    hf-factuality train rlfh                        # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/multi-node.yaml -m hf_factuality train rlfh \
        --config recipes/rlfh/qwen2.5-7b-instruct.yaml --train_files questions.jsonl
"""

from dataclasses import dataclass, field

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.data import load_rlfh
from hf_factuality.demos.closed_world import RLFHDemo
from hf_factuality.rewards import RLFHReward, rlfh_verifier


@dataclass
class RLFHArguments(ScriptArguments):
    train_files: list[str] | None = field(
        default=None, metadata={"help": meaning("train_files", ": questions with materials, see load_rlfh")}
    )
    reward_maps: str = field(
        default="readme", metadata={"help": "Reward maps: 'readme', 'script', 'class', or a JSON or YAML file."}
    )
    granularity: str = field(default="token", metadata={"help": "Where rewards are paid: token, sentence, paragraph."})
    verifier_model: str | None = field(
        default=None, metadata={"help": "Model of the verifier, on a server; by default the policy judges."}
    )
    verifier_base_url: str | None = field(
        default=None, metadata={"help": meaning("verifier_base_url", "; 'rollout': vLLM's server of this run")}
    )
    knowledge: str | None = field(
        default=None, metadata={"help": meaning("knowledge", ": pages, from hf-factuality index")}
    )


TYPES = RLFHArguments, TokenRewardPPOConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("rlfh", TYPES, words, ("--train_files", "--dataset_name"))
    if own:
        demo, name, repeats = None, model_name(model), "once"
        verifier = rlfh_verifier(script.verifier_model, script.verifier_base_url, script.knowledge, training)
        source = script.train_files, script.dataset_name, script.dataset_config, script.dataset_train_split
        dataset = load_rlfh(*source)
    else:
        demo = RLFHDemo()
        name, verifier, dataset = demo.model_dir, demo.verifier, demo.train_dataset
        repeats = "every"  # the world's verifier knows what was said before, and rates it so that it costs something
    set_model_kwargs(training, model)
    trainer = TokenRewardPPOTrainer(
        name, RLFHReward(verifier, script.reward_maps, script.granularity, repeats=repeats), None, training, dataset,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    train_and_publish(trainer, script.dataset_name, demo, "The model, its critic and its card")
