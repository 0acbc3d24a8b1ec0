"""GRPO that pays for declining, or for a true confidence (docs/abstention.md, docs/confidence.md).

    hf-factuality train abstention --reward target-0.75     # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train abstention \
        --config recipes/confidence/qwen2.5-7b-rlcr.yaml --dataset_name my-org/questions
"""

from dataclasses import dataclass, field

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import load_split, model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.demos.closed_world import KnowledgeDemo
from hf_factuality.generation.client import ChatClient
from hf_factuality.rewards import AbstentionReward, DCPORewards, GradedOutcome, RLCRReward


DECLINE = (
    "Answer the question between <answer> and </answer>. If you do not know the answer, write I don't know there."
)
PLAIN = "Answer the question in a few words. If you do not know the answer, say: I don't know."
STATE = "Answer the question between <answer> and </answer>. Then write the probability that it is right, from 0 to 1, between <confidence> and </confidence>."
CONFIDENCE = {"rlcr": RLCRReward, "dcpo": lambda **outcome: DCPORewards(**outcome).both}


@dataclass
class AbstentionArguments(ScriptArguments):
    reward: str = field(
        default="truthrl", metadata={"help": "Reward: truthrl, binary, knowrl, target-0.75, rlcr or dcpo."}
    )
    answer_tags: bool = field(
        default=True, metadata={"help": "Whether answers stand between <answer> and </answer>; else in plain words."}
    )
    judge: str | None = field(default=None, metadata={"help": meaning("judge", "; exact match without one")})
    judge_base_url: str = field(default="http://localhost:8000/v1", metadata={"help": meaning("judge_base_url")})
    judge_tokens: int = field(default=16, metadata={"help": meaning("judge_tokens")})


def load_rewards(script):
    """Reward functions, checked before any weights are loaded."""
    client = ChatClient(script.judge_base_url, script.judge) if script.judge else None
    outcome = {"outcome": GradedOutcome(client, max_tokens=script.judge_tokens)} if client else {}
    if script.reward in CONFIDENCE:
        if not script.answer_tags:
            raise ValueError(
                f"--answer_tags false is for rewards without a stated confidence, not for {script.reward}"
            )
        return CONFIDENCE[script.reward](**outcome)
    return AbstentionReward(script.reward, tags=script.answer_tags, **outcome)


def load_questions(script):
    """The columns `question` and `answer`, with the question as a prompt that says what form the answer has."""
    dataset = load_split(script, ("question", "answer"))
    text = STATE if script.reward in CONFIDENCE else DECLINE if script.answer_tags else PLAIN
    form = {"role": "system", "content": text}
    return dataset.map(lambda row: {"prompt": [form, {"role": "user", "content": row["question"]}]})


TYPES = AbstentionArguments, FactGRPOConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("abstention", TYPES, words, ("--dataset_name",))
    if not (own or script.answer_tags):
        raise ValueError("the closed world answers in tags; leave out --answer_tags, or name data with --dataset_name")
    rewards, demo = load_rewards(script), None if own else KnowledgeDemo()
    name = demo.model_dir if demo else model_name(model)
    dataset = demo.train_dataset if demo else load_questions(script)
    set_model_kwargs(training, model)
    trainer = FactGRPOTrainer(
        name, rewards, training, dataset, verifier=None,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    train_and_publish(trainer, script.dataset_name, demo)
