"""A training of each kind in a small closed world, on any number of processes (`tests.processes`), with completions that are
given: what comes out may not depend on how many there are, nor on how the model is split."""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import json
import random
import signal
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.rewards import RLFHReward
from hf_factuality.verifiers import VerifierInput
from hf_factuality.worlds import World, WorldConfig, WorldVerifier
from hf_factuality.worlds.texts import biography
from hf_factuality.worlds.tokenizer import build_world_tokenizer
from tests.trainers.recording import QUIET


METHODS = ("fspo", "credit", "rlfh", "rlfh_value_head", "mask_dpo")
STEPS = 3
GROUP = 2


def make_world() -> World:
    return World(WorldConfig(num_people=60))


def save_model(folder) -> None:
    """Random weights, of which some attention is too small to share over two processes evenly: odd sizes."""
    tokenizer = build_world_tokenizer(make_world())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=36, intermediate_size=70, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, tie_word_embeddings=False, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def answers(world, name) -> list[str]:
    """Two about a person, by name alone: a true one, and one with the facts of another person."""
    person, draw = world.find_person(name), random.Random(name)
    other = draw.choice([each for each in world.people if each is not person])
    wrong = biography(world, other, draw).replace(other.name, person.name)
    return [biography(world, person, draw), wrong]


def checked(world):
    """A reward of as many facts as are true, which looks whether labels and columns are those of its own completions."""
    oracle = WorldVerifier(world)

    def true_facts(prompts, completions, completion_texts, verifications, question, **columns):
        rows = [VerifierInput(text, asked) for text, asked in zip(completion_texts, question, strict=True)]
        if any(prompt[-1]["content"] != asked for prompt, asked in zip(prompts, question, strict=True)):
            raise ValueError("prompts of other rows")
        expected = oracle.verify(rows)
        if [found.spans for found in verifications] != [each.spans for each in expected]:
            raise ValueError("labels of other completions")
        return [float(sum(span.label == "supported" for span in each.spans)) for each in expected]

    return true_facts


class Given:
    """Its policy does not sample: it answers each prompt with what there is for it, in turn."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        tokenizer, first = self.processing_class, self.accelerator.process_index * len(prompt_ids)
        texts = []
        for number, ids in enumerate(prompt_ids):
            name = self.world.find_person(tokenizer.decode(ids, skip_special_tokens=True)).name
            texts.append(answers(self.world, name)[(first + number) % GROUP])
        return [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in texts], None


class GivenGRPO(Given, FactGRPOTrainer):
    pass


class GivenPPO(Given, TokenRewardPPOTrainer):
    pass


def pairs(world) -> Dataset:
    oracle, rows = WorldVerifier(world), []
    for row in world.biographies("train"):
        made = {"prompt": row["prompt"]}
        for side, text in zip(("chosen", "rejected"), answers(world, row["person"]), strict=True):
            (found,) = oracle.verify([VerifierInput(text, row["question"])])
            made |= {side: [{"role": "assistant", "content": text}],
                     f"{side}_spans": [span.to_dict() for span in found.spans]}  # fmt: skip
        rows.append(made)
    return Dataset.from_list(rows)


class Asked(TrainerCallback):
    """Sends SIGTERM to the last process in the step `ASKED_AT`."""

    def on_step_begin(self, args, state, control, **kwargs):
        if os.environ.get("ASKED_AT") == str(state.global_step) and args.process_index == args.world_size - 1:
            signal.raise_signal(signal.SIGTERM)


def run(method, model, folder, processes, peft, deepspeed=None):
    """Three steps, a checkpoint after the last; what was stopped goes on. Returns the trainer."""
    world = make_world()
    settings = {
        **QUIET, "max_steps": STEPS, "per_device_train_batch_size": 4 // processes, "gradient_accumulation_steps": 2,
        # Adam's first steps are signs of gradients, and the sign of a rounding error is anything: not with this.
        "adam_epsilon": 0.1, "learning_rate": 0.05, "lr_scheduler_type": "constant", "beta": 0.05, "logging_steps": 1,
        "save_strategy": "steps", "save_steps": STEPS, "deepspeed": deepspeed, "gradient_checkpointing": True,
        "output_dir": str(folder), "use_cpu": os.environ.get("TRAINS_ON") != "cuda",
    }  # fmt: skip
    lora = LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") if peft else None
    rows = world.biographies("train")
    if method == "mask_dpo":
        trainer = MaskDPOTrainer(model, args=MaskDPOConfig(**settings), train_dataset=pairs(world), peft_config=lora)
    elif method.startswith("rlfh"):
        critic = "value_head" if method.endswith("head") else "policy"
        own = {"critic_model": critic, "critic_learning_rate": 0.05, "max_completion_length": 110}
        trainer = GivenPPO(model, RLFHReward(WorldVerifier(world), "readme"), args=TokenRewardPPOConfig(**settings, **own),
                           train_dataset=rows, peft_config=lora)  # fmt: skip
    else:
        own = {"num_generations": GROUP, "max_completion_length": 110, "verify_scope": "completion"}
        own |= {"credit": "gae", "credit_scale": 0.9} if method == "credit" else {}
        trainer = GivenGRPO(
            model, checked(world), FactGRPOConfig(**settings, **own), rows, verifier=WorldVerifier(world),
            token_reward_funcs=RLFHReward(WorldVerifier(world), "readme") if method == "credit" else None,
            peft_config=lora,
        )  # fmt: skip
    trainer.world = world
    trainer.add_callback(Asked())
    trainer.train(resume_from_checkpoint="auto")
    return trainer


def main():
    torch.set_num_threads(1)
    method, model, folder, peft, *deepspeed = sys.argv[1:]
    if deepspeed:
        # On CPUs the arguments set up torch's processes only, and DeepSpeed would take each for the only one.
        from deepspeed import init_distributed

        init_distributed("gloo")
    trainer = run(method, model, Path(folder), int(os.environ["WORLD_SIZE"]), peft == "lora", *deepspeed)
    if trainer.args.should_save:
        Path(folder, "log.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
