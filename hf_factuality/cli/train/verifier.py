"""A judge of your own: an encoder that tells whether evidence supports a claim, calibrated, saved as a verifier pipeline.

hf-factuality train verifier                            # a small encoder on made-up passages, minutes on a CPU
hf-factuality train verifier --config recipes/verifier/deberta-v3-base.yaml \
    --train_files claims.jsonl --passage_files passages.jsonl --eval_files held_out.jsonl
"""

from dataclasses import dataclass, field
from pathlib import Path

from trl import ModelConfig, ScriptArguments, get_peft_config

from hf_factuality.cli.train.shared import model_name, print_measured, read_flags, set_model_kwargs
from hf_factuality.data.reading import read_parts
from hf_factuality.demos import own_verifier
from hf_factuality.methods.verifier.data import (
    claims_dataset,
    read_labelled_claims,
    read_passages,
    synthetic_claims,
)
from hf_factuality.trainers import VerifierConfig, VerifierTrainer
from hf_factuality.trainers.log import use_training_log


@dataclass
class VerifierArguments(ScriptArguments):
    train_files: list[str] | None = field(
        default=None, metadata={"help": "files to train on: claims with evidence and labels, or WiCE's"}
    )
    passage_files: list[str] | None = field(
        default=None, metadata={"help": "files of passages, from which claims are made by edits"}
    )
    eval_files: list[str] | None = field(default=None, metadata={"help": "claims that the card's figures are of"})
    num_claims: int = field(default=8000, metadata={"help": "claims to make from --passage_files"})
    max_words: int = field(default=40, metadata={"help": "words of the longest sentence that is edited"})
    edits: list[str] | None = field(
        default=None, metadata={"help": "edits of passages, by name (default all); see docs/verifier-quality.md"}
    )


TYPES = VerifierArguments, VerifierConfig, ModelConfig


def load_claims(script, seed):
    """Claims to train on and to measure on, read before any weights are loaded."""
    if not (script.train_files or script.dataset_name or script.passage_files):
        raise ValueError("give claims (--train_files or --dataset_name), passages (--passage_files), or both")
    if script.num_claims < 1:
        raise ValueError(f"--num_claims {script.num_claims} must be at least 1")
    rows, said = [], []
    if script.train_files or script.dataset_name:
        named = script.dataset_name, script.dataset_config, script.dataset_train_split
        rows += read_labelled_claims(read_parts(script.train_files, *named), seed)
        said.append(f"{len(rows)} labelled claims")
    if script.passage_files:
        passages = read_passages(read_parts(script.passage_files, None, None, ""))
        made = synthetic_claims(passages, script.num_claims, seed, script.edits, script.max_words)
        rows += made
        said.append(f"{len(made)} claims made from passages by edits")
    test = read_labelled_claims(read_parts(script.eval_files, None, None, "")) if script.eval_files else None
    return claims_dataset(rows, " and ".join(said)), test and claims_dataset(test)


def main(words):
    real = ("--train_files", "--dataset_name", "--passage_files")
    own, script, training, model = read_flags("verifier", TYPES, words, real)
    if own:
        name, (train, test) = model_name(model), load_claims(script, training.seed)
    else:
        world = own_verifier.demo_world()
        name = own_verifier.build_encoder(
            Path(training.output_dir) / "encoder", own_verifier.world_passages(world, "train")
        )
        train, test = (
            own_verifier.synthetic_world_claims(world, split, count)
            for split, count in (("train", script.num_claims), ("test", 400))
        )
    set_model_kwargs(training, model)
    trainer = VerifierTrainer(name, training, train, test, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    print_measured(trainer)
    trainer.accelerator.print(
        f"The verifier, 'pipeline:{training.output_dir}', and its card are in {training.output_dir}"
    )
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
