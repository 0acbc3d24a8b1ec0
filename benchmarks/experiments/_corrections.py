"""The self-correction experiment: two-hop questions, a base that knows the form of two turns, and arms that learn when to use it.

The form is taught by SFT on the base's own answers with verdicts and revisions at random, so that it says nothing about which
answers are right: about all people, since the base would forget those who are left out. Its tokens (two verdicts, the request for a revision) are added to the base's tokenizer. What several arms of
a seed start from is made once and kept beside the bases.
"""

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import torch
from datasets import Dataset
from harness import code_version
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.data import CorrectionConfig, corrections_from, read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.functional.answers import exact_match
from hf_factuality.methods.self_correction.formula import CHECKED_RIGHT, CHECKED_WRONG, correction_figures
from hf_factuality.reading.marks import extract_answer, self_verdict
from hf_factuality.rewards import CorrectionReward
from hf_factuality.trainers import CorrectionRollout
from hf_factuality.verifiers import GoldVerifier


REVISE, VERDICTS = "[REVISE]", (CHECKED_RIGHT, CHECKED_WRONG)
TOKENS, BATCH, EPOCHS = 64, 512, 4
MISLED = 0.1  # at the default, .5, three of four answers were found wrong after SFT (seed 0)
SETTINGS = {
    "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, "bf16": False, "gradient_checkpointing": False,
    "save_strategy": "no", "report_to": "none", "logging_steps": 10, "disable_tqdm": True,
}  # fmt: skip


def settings(run, rate, **more):
    own = {"learning_rate": rate, "output_dir": str(run.folder), "seed": run.seed}
    return {**SETTINGS, **own, "use_cpu": not torch.cuda.is_available(), **more}


def sampler(model, tokenizer=None, number=4, temperature=1.0):
    return TransformersSampler(
        model, tokenizer, SamplingConfig(num_samples=number, temperature=temperature, max_new_tokens=TOKENS), BATCH
    )


def loaded(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def kept(run, name, make):
    """Folder of what arms of a seed share, made once by `make(folder)`; another base, code or text of this file has another."""
    key = [name, run.model_dir.name, run.seed, code_version(), Path(__file__).read_text(encoding="utf-8")]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    folder = run.model_dir.parent.with_name("corrections") / digest
    if not folder.exists():
        partial = folder.with_name(f".{digest}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        partial.rename(folder)
    return folder


def write(folder, rows):
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def read(folder):
    return json.loads((folder / "rows.json").read_text(encoding="utf-8"))


def sft(run, model, tokenizer, rows, rate, epochs, folder=None):
    args = SFTConfig(
        **settings(run, rate), assistant_only_loss=True, num_train_epochs=epochs, per_device_train_batch_size=64,
        max_length=256,
    )  # fmt: skip
    data = Dataset.from_list([{"messages": row} for row in rows])
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    if folder is not None:
        trainer.save_model(str(folder))  # with the tokenizer
    return trainer.model


def formed(model, tokenizer, always=False):
    """A model that is measured in two turns; with `always` every answer is revised, whatever it says of itself."""
    model.form, model.always = tokenizer, always
    return model


def taught(run):
    """Folder of the base that writes a verdict at random, and another answer where it was `[VERIFY] wrong`."""

    def make(folder):
        rng, rows = random.Random(run.seed), []
        prompts = [row["prompt"] for split in ("train", "test") for row in run.world.questions(split)]
        for prompt, said in zip(prompts, sampler(str(run.model_dir)).sample(prompts, run.seed), strict=True):
            for first, second in (said[:2], said[2:]):
                verdict = rng.choice(VERDICTS)
                told = [*prompt, {"role": "assistant", "content": f"{first.text}\n\n{verdict}"}]
                again = [{"role": "user", "content": REVISE}, {"role": "assistant", "content": second.text}]
                rows.append(told + again * (verdict == CHECKED_WRONG))
        model, tokenizer = loaded(run.model_dir)
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (REVISE, *VERDICTS)])
        torch.manual_seed(run.seed)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        sft(run, model, tokenizer, rows, 5e-4, EPOCHS, folder)

    return kept(run, "taught", make)


def asked(run):
    return read_questions([{**row, "answer": [row["answer"]]} for row in run.world.questions("train")])


def built(run, model, tokenizer, output):
    return corrections_from(
        asked(run), sampler(model, tokenizer), GoldVerifier("world"), run.folder / output, seed=run.seed,
        corrections=CorrectionConfig(output, misled=MISLED, revise=REVISE), questions_per_batch=128, progress=False,
    )  # fmt: skip


def rewarded(run, rate):
    """Folder of the taught base after SFT on trajectories of its own answers."""

    def trajectories(folder):
        write(folder, list(built(run, *loaded(taught(run)), "trajectories")["messages"]))

    def make(folder):
        sft(run, *loaded(taught(run)), read(kept(run, "trajectories", trajectories)), rate, 3, folder)

    return kept(run, f"self-rewarding {rate}", make)


def form(run):
    return formed(*loaded(taught(run)))


def always(run):
    """Prompt only: every answer is revised."""
    return formed(*loaded(taught(run)), always=True)


def right_answers(run):
    """Conversations of one turn, without its verdict, in which the taught base is right."""

    def make(folder):
        rows, questions = [], asked(run)
        found = sampler(*loaded(taught(run))).sample([question.messages for question in questions], run.seed)
        for question, responses in zip(questions, found, strict=True):
            texts = [response.text for response in responses if response.complete]
            right = [text for text in texts if is_right(text, question.row["answer"])]
            rows += [[*question.messages, {"role": "assistant", "content": bare(text)}] for text in right]
        write(folder, rows)

    return read(kept(run, "right answers", make))


def rejection(rate):
    """SFT on right answers, of as many questions and samples as the others have; revised by the prompt alone, as the paper's."""

    def train(run):
        model, tokenizer = loaded(taught(run))
        return formed(sft(run, model, tokenizer, right_answers(run), rate(run), 3), tokenizer, always=True)

    return train


def bare(text):
    return text.partition("[VERIFY]")[0].rstrip()


def is_right(text, golds):
    return exact_match(extract_answer(text) or "", list(golds)) >= 0.5


def rewarding(rate):
    """SFT on trajectories of the model's own answers."""
    return lambda run: formed(*loaded(rewarded(run, rate(run))))


def dpo(start, rate):
    """... then DPO on pairs of its own answers."""

    def train(run):
        def pairs(folder):
            rows = built(run, model, tokenizer, "pairs").select_columns(["prompt", "chosen", "rejected"])
            write(folder, list(rows))

        model, tokenizer = loaded(rewarded(run, start))
        args = DPOConfig(
            **settings(run, rate(run)), beta=0.1, num_train_epochs=1, per_device_train_batch_size=64, max_length=256
        )
        data = Dataset.from_list(read(kept(run, f"pairs {start}", pairs)))
        trainer = DPOTrainer(model, args=args, train_dataset=data, processing_class=tokenizer)
        trainer.train()
        return formed(trainer.model, tokenizer)

    return train


def rl(start, rate):
    """... then RL with what its last turn is worth: 8 answers to each of 16 questions per step."""

    def train(run):
        model, tokenizer = loaded(rewarded(run, start))
        args = FactGRPOConfig(
            **settings(run, rate(run), max_steps=run.steps), per_device_train_batch_size=128, num_generations=8,
            max_completion_length=TOKENS, temperature=1.0, beta=0.0, scale_rewards="none", credit="none",
            verify_scope="completion", factuality_reward_weight=0.0,
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            model, CorrectionReward("world"), args, run.world.questions("train"), processing_class=tokenizer,
            verifier=None, rollout_func=CorrectionRollout(REVISE),
        )  # fmt: skip
        trainer.train()
        return formed(trainer.model, tokenizer)

    return train


def measured(run, dataset, found):
    """Figures of two turns; of one, which is the last as well, where the model was not taught the form."""
    model, again = run.model, []
    tokenizer = getattr(model, "form", None) or AutoTokenizer.from_pretrained(run.model_dir)
    say = sampler(model, tokenizer, 2 if run.temperature else 1, run.temperature)
    samples = say.sample(list(dataset["prompt"]), run.seed)
    rows = [
        (prompt, [gold], response.text)
        for prompt, gold, responses in zip(dataset["prompt"], dataset["answer"], samples, strict=True)
        for response in responses
    ]
    verdicts, final = [self_verdict(text) for *_, text in rows], [[text] for *_, text in rows]
    if hasattr(model, "form"):
        again = [place for place, said in enumerate(verdicts) if said is False or model.always]
    turns = [
        [*rows[it][0], {"role": "assistant", "content": rows[it][2]}, {"role": "user", "content": REVISE}]
        for it in again
    ]
    for place, responses in zip(again, say.sample(turns, run.seed + 1) if turns else (), strict=True):
        final[place] = [response.text for response in responses]
    # Each answer with each of its revisions, and as often where it has none.
    times = len(samples[0])
    cases = [
        (is_right(text, golds), is_right(last, golds), said)
        for (_, golds, text), lasts, said in zip(rows, final, verdicts, strict=True)
        for last in (lasts if len(lasts) == times else lasts * times)
    ]
    return {"revised": len(again) / len(rows), **correction_figures(*zip(*cases, strict=True))}


def arms(start, **rates):
    """All arms, at these learning rates by name, or the condition; DPO and RL go on from SFT at the rate `start`."""

    def rate(name):
        return lambda run: rates.get(name) or run.condition

    return {
        "form": form,
        "prompt only": always,
        "rejection sampling": rejection(rate("rejection")),
        "self-rewarding SFT": rewarding(rate("sft")),
        "... then DPO": dpo(start, rate("dpo")),
        "... then RL": rl(start, rate("rl")),
    }
