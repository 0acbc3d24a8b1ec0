"""The process reward experiment: what chooses among samples of the base, and what RAFT by it learns, for chains of facts.

An arm is a selector. All arms of a seed and chain share what is sampled from the base, the rollouts that label steps, and the
models; these stages are kept in `outputs/evidence/process-stages`, under a name that depends on their settings.
"""

import hashlib
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from hf_factuality import load_verifier
from hf_factuality.data import (
    ProcessLabelConfig,
    SamplingConfig,
    TransformersSampler,
    process_labels_from,
    read_questions,
)
from hf_factuality.evaluation.best_of import best_of_n, majority_of_n
from hf_factuality.functional.scoring import mean
from hf_factuality.io.files import write_atomically
from hf_factuality.methods.process_reward.formula import AGGREGATES, aggregate_steps
from hf_factuality.reading.marks import extract_answer
from hf_factuality.trainers import ProcessRewardConfig, ProcessRewardTrainer
from hf_factuality.verifiers import GoldVerifier, VerifierInput
from hf_factuality.worlds import evaluate_world
from hf_factuality.worlds.evaluate import world_metrics


STAGES = Path("outputs/evidence/process-stages")
SIZES = (1, 2, 4, 8, 16, 32, 64)
# Questions whose answers are labelled, answers to each, rollouts of each prefix, epochs over them; held-out questions of best of
# N; questions of RAFT, and samples of each.
NUMBERS = {
    "labelled": 300,
    "solutions": 2,
    "rollouts": 4,
    "epochs": 3,
    "held_out": 60,
    "raft_questions": 200,
    "raft": 8,
}
LABELS = {"PRM, hard": "hard", "PRM, soft": "soft", "PRM, entropy": "entropy", "outcome model": "soft"}
CURVES = {"accuracy": "accuracy, best of {}", "right for the right reasons": "right reasons, best of {}"}
TRAINING = {
    "bf16": False, "gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    "logging_steps": 50,
}  # fmt: skip


def max_tokens(run):
    """A sentence of a chain takes up to 8 tokens, tags and answer 6, a filling sentence 8."""
    return 18 + 9 * run.condition["hops"]


def test_sets(run):
    return {"held-out": run.world.questions("test", 300, run.condition["hops"])}


def stage(run, name, make):
    """What `make(folder)` returned, plain values, now or in an earlier job."""
    key = json.dumps([NUMBERS, SIZES, run.model_dir.name, run.seed, run.condition["hops"]])
    folder = STAGES / hashlib.sha256(key.encode()).hexdigest()[:12]
    path = folder / f"{name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(make(folder)))
    return json.loads(path.read_text(encoding="utf-8"))


def questions(run, split):
    return run.world.questions(
        split, NUMBERS["held_out" if split == "test" else "raft_questions"], run.condition["hops"]
    )


def samples(run, split):
    """Samples of the base for each question, and which are right, and right with nothing but true claims."""
    number = SIZES[-1] if split == "test" else NUMBERS["raft"]

    def make(folder):
        asked = questions(run, split)
        found = evaluate_world(
            AutoModelForCausalLM.from_pretrained(run.model_dir, dtype=torch.float32),
            AutoTokenizer.from_pretrained(run.model_dir), run.world, asked, num_samples=number, batch_size=512,
            max_new_tokens=max_tokens(run), seed=run.seed + 1000,
        )  # fmt: skip
        rows = [row for row in asked for _ in range(number)]
        own = [
            world_metrics([row], [text], [read])
            for row, text, read in zip(rows, found.completions, found.sentences, strict=True)
        ]
        return {
            "texts": grouped(found.completions, number),
            "right": grouped([float(figures["accuracy"]) for figures in own], number),
            "reasons": grouped([float(figures["right_for_right_reasons"]) for figures in own], number),
        }

    return stage(run, f"samples-{split}", make)


def grouped(values, number):
    return [values[first : first + number] for first in range(0, len(values), number)]


class LongestFirst(TransformersSampler):
    """Prompts that leave the shortest rest are sampled together, and end together."""

    def sample(self, prompts, seed):
        order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place][-1]["content"]))
        found = dict(zip(order, super().sample([prompts[place] for place in order], seed), strict=True))
        return [found[place] for place in range(len(prompts))]


def labelled(run, folder, how):
    """Solutions with a label per step, by the same rollouts whichever labels."""
    asked = read_questions(list(run.world.questions("train", NUMBERS["labelled"], run.condition["hops"])))
    sampling = SamplingConfig(num_samples=NUMBERS["solutions"], max_new_tokens=max_tokens(run))
    return process_labels_from(
        asked, LongestFirst(run.model_dir, config=sampling, batch_size=512), GoldVerifier("world"),
        folder / "labels", labels=ProcessLabelConfig(NUMBERS["rollouts"], "sentences", how), seed=run.seed,
        questions_per_batch=4096, progress=False,
    )  # fmt: skip


def reward_model(run, name, rate):
    """Folder and figures of the model of these labels; of the outcome model only the last step of a solution has one."""

    def make(folder):
        data, out = labelled(run, folder, LABELS[name]), folder / f"{name}-{rate}"
        if name == "outcome model":
            data = data.map(lambda row: {"labels": [None] * (len(row["labels"]) - 1) + row["labels"][-1:]})
        args = ProcessRewardConfig(
            str(out), **TRAINING, seed=run.seed, step_split="sentences", max_length=160, per_device_train_batch_size=16,
            per_device_eval_batch_size=256, num_train_epochs=NUMBERS["epochs"], learning_rate=rate, lr_scheduler_type="linear",
            warmup_steps=0.1, weight_decay=0.01, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = ProcessRewardTrainer(str(run.model_dir), args, data)
        trainer.train()
        trainer.save_model()
        return {"folder": str(out), **trainer.figures, "labels": mean([r for own in data["labels"] for r in own])}

    return stage(run, f"{name}-{rate}", make)


def step_scores(run, split, name, rate):
    """P(correct) of every step of every sample."""

    def make(folder):
        asked, found = questions(run, split), samples(run, split)["texts"]
        items = [VerifierInput(text, row["question"]) for row, own in zip(asked, found, strict=True) for text in own]
        verifier = load_verifier(f"process:{reward_model(run, name, rate)['folder']}", batch_size=128)
        scores = [[span.score for span in verdict.spans] for verdict in verifier.verify(items)]
        return grouped(scores, len(found[0]))

    return stage(run, f"scores-{split}-{name}-{rate}", make)


def worth(run, split, selector, rate, how=None):
    """What the samples are worth to a selector, by which it chooses; ER-PRM's minimum of the steps, of outcomes the last."""
    found = samples(run, split)
    if selector in LABELS:
        how = how or ("last" if selector == "outcome model" else "min")
        return [[aggregate_steps(own, how) for own in row] for row in step_scores(run, split, selector, rate)]
    if selector == "majority":
        answers = [[extract_answer(text) for text in row] for row in found["texts"]]
        return [[sum(other == own for other in row) * (own is not None) for own in row] for row in answers]
    return found["right"]


def best_of(run, selector, rate):
    """Figures of best of N of the held-out samples; of the models by every way to make one score of the steps' too."""

    def make(folder):
        found, figures = samples(run, "test"), {}
        answers = [[extract_answer(text) for text in own] for own in found["texts"]]
        for key, name in (("right", CURVES["accuracy"]), ("reasons", CURVES["right for the right reasons"])):
            by = answers if selector == "majority" else worth(run, "test", selector, rate)
            choose = majority_of_n if selector == "majority" else best_of_n
            for size in SIZES:
                figures[name.format(size)] = mean(
                    [choose(own, size, b) for own, b in zip(found[key], by, strict=True)]
                )
            for how in AGGREGATES if selector in LABELS else ():
                by = worth(run, "test", selector, rate, how)
                for size in SIZES:
                    chosen = [best_of_n(own, size, b) for own, b in zip(found[key], by, strict=True)]
                    figures[f"{name.format(size)} by {how}"] = mean(chosen)
        if selector in LABELS:
            known = reward_model(run, selector, rate)
            figures |= {f"steps: {name}": known[name] for name in ("auroc", "accuracy", "ece", "labels")}
        return figures

    return stage(run, f"best-of-{selector}-{rate if selector in LABELS else 0}", make)


def raft(selector, rates):
    """SFT on the best answer to each question; none where all are worth 0, as wrong ones by gold answers are."""

    def train(run):
        prm, sft = rates(run, selector)
        asked, found, rows = questions(run, "train"), samples(run, "train")["texts"], []
        for row, texts, own in zip(asked, found, worth(run, "train", selector, prm), strict=True):
            known = [0.0 if value is None else value for value in own]
            if max(known) > 0:
                best = texts[known.index(max(known))]
                rows.append({"prompt": row["prompt"], "completion": [{"role": "assistant", "content": best}]})
        args = SFTConfig(
            **TRAINING, output_dir=str(run.folder), seed=run.seed, max_steps=run.steps, per_device_train_batch_size=32,
            learning_rate=sft, lr_scheduler_type="constant", completion_only_loss=True, max_length=160,
            use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = SFTTrainer(str(run.model_dir), args, train_dataset=Dataset.from_list(rows))
        trainer.train()
        trainer.model.selector = (selector, prm)
        return trainer.model

    return train


def measured(run, dataset, found):
    """Best of N of the base's samples by the arm's selector, beside the figures of its RAFT."""
    return best_of(run, *run.model.selector) if hasattr(run.model, "selector") else {}


def arms(rates):
    names = ("majority", "outcome model", "PRM, hard", "PRM, soft", "PRM, entropy", "gold answers")
    return {name: raft(name, rates) for name in names}
