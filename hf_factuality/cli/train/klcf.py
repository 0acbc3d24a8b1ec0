"""KLCF (arXiv 2509.23765; the formulas are our reconstruction): GRPO on what an answer recalls of a checklist and on its truth.

    hf-factuality train klcf                        # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/multi-node.yaml -m hf_factuality train klcf \
        --config recipes/klcf-zero/qwen2.5-7b.yaml --dataset_name my-org/checklists
"""

from dataclasses import dataclass, field

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, load_verifier
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import load_split, model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.demos.closed_world import KLCFDemo
from hf_factuality.methods.klcf.formula import KLCFWeights
from hf_factuality.rewards import ServedRoles, klcf_rewards


@dataclass
class KLCFArguments(ScriptArguments):
    weights: list[float] = field(
        default_factory=lambda: list(KLCFWeights()),
        metadata={"help": "Five reward weights: recall, precision, truth, general quality, format."},
    )
    verifier: str | None = field(
        default=None, metadata={"help": meaning("verifier", ": truthfulness:MODEL, in place of two served roles")}
    )
    checklist_verifier: str = field(
        default="small", metadata={"help": "Verifier whose judge reads the checklist, in place of the served one."}
    )
    general_reward: str | None = field(
        default=None, metadata={"help": "General reward model, in place of the served one."}
    )


def _load_real(script, roles):
    """Dataset, verifier and checklist's judge of a real run, checked before any weights are loaded."""
    dataset = load_split(script, ("prompt", "checklist"))
    roles.check()
    verifier = load_verifier(script.verifier) if script.verifier else roles.verifier()
    return dataset, verifier, roles.checklist() or load_verifier(script.checklist_verifier).judge


TYPES = KLCFArguments, ServedRoles, FactGRPOConfig, ModelConfig


def main(words):
    own, script, roles, training, model = read_flags("klcf", TYPES, words, ("--dataset_name",))
    if own:
        demo, name = None, model_name(model)
        dataset, verifier, checklist = _load_real(script, roles)
    else:
        demo = KLCFDemo()
        name, dataset, checklist = demo.model_dir, demo.train_dataset, demo.checklist_judge
        verifier = load_verifier(script.verifier or demo.verifier)
    if len(script.weights) > len(KLCFWeights._fields):
        raise ValueError(f"--weights are at most {len(KLCFWeights._fields)} numbers, got {script.weights}")
    general, weights = roles.general() or script.general_reward, KLCFWeights(*script.weights)
    rewards, settings = klcf_rewards(checklist, general, weights=weights)
    for setting, value in settings.items():
        setattr(training, setting, value)
    set_model_kwargs(training, model)
    trainer = FactGRPOTrainer(
        name, rewards, training, dataset, verifier=verifier,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    train_and_publish(trainer, script.dataset_name, demo)
