"""PPO against a reward model that scores every token and reads the text with a tokenizer of its own.

    hf-factuality train token_reward_model          # a small policy and reward model made here, minutes on a CPU
    hf-factuality train token_reward_model --model_name_or_path POLICY --reward_model RM --dataset_name DATA \
        --output_dir OUT --bf16 true
"""

from dataclasses import dataclass, field

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.cli.train.shared import load_split, read_flags, set_model_kwargs
from hf_factuality.demos.token_rewards import ReviewDemo
from hf_factuality.rewards import TokenRewardModel
from hf_factuality.trainers.log import use_training_log


@dataclass
class TokenRewardModelArguments(ScriptArguments):
    reward_model: str | None = field(default=None, metadata={"help": "Token classifier, by name or folder."})
    reward_label: str | None = field(
        default=None, metadata={"help": "Label whose score is the reward, if there are several."}
    )
    reward_process: str = field(
        default="raw", metadata={"help": "How logits become scores: 'raw', 'sigmoid' or 'softmax'."}
    )
    reward_scale: float = field(default=1.0, metadata={"help": "Factor of the scores; -1 for what is unwanted."})
    reward_baseline: float = field(default=0.0, metadata={"help": "Number that is subtracted from every score."})
    reward_differences: bool = field(default=False, metadata={"help": "Pay the change of the score, see the class."})


TYPES = TokenRewardModelArguments, TokenRewardPPOConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags(
        "token_reward_model", TYPES, words, ("--reward_model", "--dataset_name"), "reviews"
    )
    if own:
        if not (model.model_name_or_path and script.reward_model and script.dataset_name):
            raise ValueError("name all three: --model_name_or_path, --reward_model and --dataset_name")
        demo, name, judge = None, model.model_name_or_path, script.reward_model
        dataset = load_split(script, ("prompt",))
    else:
        demo = ReviewDemo(training.output_dir)
        name, judge, dataset = demo.model_dir, demo.reward_model_dir, demo.train_dataset
    reward = TokenRewardModel(
        judge, label=script.reward_label, process=script.reward_process, scale=script.reward_scale,
        baseline=script.reward_baseline, differences=script.reward_differences,
    )  # fmt: skip
    set_model_kwargs(training, model)
    trainer = TokenRewardPPOTrainer(
        name, reward, None, training, dataset,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    if demo:
        demo.measure("before", trainer, reward)
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer, reward)
        demo.report(training.output_dir)
    trainer.create_model_card(dataset_name=script.dataset_name)
    trainer.accelerator.print(f"The model, its critic and its card are in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
