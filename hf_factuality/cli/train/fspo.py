"""FSPO (arXiv 2505.24630): GRPO on the answer and on the factuality of each reasoning sentence.

    hf-factuality train fspo                        # a small model in a closed world, minutes on a CPU
    hf-factuality train fspo --config recipes/fspo/qwen2.5-7b-instruct.yaml \
        --train_files hotpot-2k-train.parquet simple-rl-train.parquet
"""

from dataclasses import dataclass, field

from transformers import AutoTokenizer
from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, load_fspo, load_verifier
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.rewards import answer_reward
from hf_factuality.verifiers.registry import VERIFIER_HELP, served_arguments


@dataclass
class FSPOArguments(ScriptArguments):
    train_files: list[str] | None = field(
        default=None, metadata={"help": meaning("train_files", ": Parquet or JSON Lines")}
    )
    verifier: str | None = field(default=None, metadata={"help": meaning("verifier", f": {VERIFIER_HELP}")})
    verifier_tokens: int | None = field(default=None, metadata={"help": meaning("verifier_tokens")})
    default_data_source: str | None = field(default=None, metadata={"help": meaning("default_data_source")})
    scorers: list[str] | None = field(default=None, metadata={"help": meaning("scorers")})
    style: str = field(default="auto", metadata={"help": meaning("style", ": auto, instruct (chat template) or base")})


def _load_data(script, training, model):
    """Dataset and verifier of a real run, checked before any weights are loaded."""
    model_name(model)
    served = served_arguments(None, script.verifier_tokens)
    verifier, reward = load_verifier(script.verifier or "small", **served), answer_reward(script.scorers)
    origin = {"revision": model.model_revision, "trust_remote_code": training.trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path, **origin)
    dataset = load_fspo(
        script.train_files, script.dataset_name, script.dataset_config, script.dataset_train_split, tokenizer,
        style=script.style, known_sources=reward.scorers, empty_answers="drop", default_data_source=script.default_data_source,
    )  # fmt: skip
    reward.check(dataset)
    return dataset, verifier


TYPES = FSPOArguments, FactGRPOConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("fspo", TYPES, words, ("--train_files", "--dataset_name"))
    if own:
        demo, name = None, model.model_name_or_path
        dataset, verifier = _load_data(script, training, model)
    else:
        demo = ClosedWorldDemo()
        name, dataset, verifier = demo.model_dir, demo.train_dataset, load_verifier(script.verifier or demo.verifier)
    set_model_kwargs(training, model)
    trainer = FactGRPOTrainer(
        name, answer_reward(script.scorers), training, dataset, verifier=verifier,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip
    train_and_publish(trainer, script.dataset_name, demo)
