"""RAG-Reward (arXiv 2501.13264): a reward model of answers to questions with passages, with a head per axis or one for all.

hf-factuality train rag_reward                    # a small model in a closed world, minutes on a CPU
hf-factuality build-rag-preferences questions.jsonl --model MODEL --verifier compare:JUDGE --verifier_base_url URL --out pairs
accelerate launch --config_file recipes/accelerate/zero3.yaml -m hf_factuality train rag_reward \
    --config recipes/rag_reward/llama3.1-8b-instruct.yaml --dataset_name pairs
"""

from pathlib import Path

from trl import ModelConfig, ScriptArguments, get_peft_config

from hf_factuality.cli.train.shared import load_split, model_name, print_measured, read_flags, set_model_kwargs
from hf_factuality.data import rag_preferences_from, read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.demos.closed_world import BiographyDemo
from hf_factuality.demos.comparing import SaysMore
from hf_factuality.trainers import RAGRewardConfig, RAGRewardTrainer
from hf_factuality.trainers.log import use_training_log


def compare_answers(demo, rows, folder):
    """Pairs of the small model's biographies: which has the larger share of true sentences, and which has more of them."""
    sampling = SamplingConfig(num_samples=4, max_new_tokens=demo.max_new_tokens)
    judges = {"hallucination": demo.verifier, "comprehensiveness": SaysMore(demo.verifier)}
    sampler = TransformersSampler(demo.model_dir, config=sampling, batch_size=256)
    return rag_preferences_from(read_questions(list(rows)), sampler, judges, folder, questions_per_batch=64)


TYPES = ScriptArguments, RAGRewardConfig, ModelConfig


def main(words):
    own, script, training, model = read_flags("rag_reward", TYPES, words, ("--dataset_name",))
    if own:
        if not script.dataset_name:
            raise ValueError("give --dataset_name: a repository, or the folder of hf-factuality build-rag-preferences")
        found = load_split(script, ("question", "chosen", "rejected"))
        # By questions: the pairs of one are never on both sides.
        apart = sorted({*found["question"]})[::20]
        name, train = model_name(model), found.filter(lambda row: row["question"] not in apart)
        if not len(train):
            raise ValueError(
                f"{script.dataset_name} has {len({*found['question']})} question, and one is kept apart to measure"
            )
        test = found.filter(lambda row: row["question"] in apart)
    else:
        demo, folder = BiographyDemo(), Path(training.output_dir) / "pairs"
        train, test = (compare_answers(demo, getattr(demo, f"{it}_dataset"), folder / it) for it in ("train", "test"))
        name = demo.model_dir
    set_model_kwargs(training, model)
    trainer = RAGRewardTrainer(name, training, train, test, peft_config=get_peft_config(model))
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.create_model_card(dataset_name=script.dataset_name)
    print_measured(trainer)
    trainer.accelerator.print(f"The reward model, for TRL and as 'reward:FOLDER', is in {training.output_dir}")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
