"""The self-correction experiment: two-hop questions, a base that knows the form of two turns, and arms that learn when to use it.

The form is taught by SFT on the base's own answers with verdicts and revisions at random, so that it says nothing about which
answers are right. Its tokens (two verdicts, the request for a revision) are added to the base's tokenizer.
"""

import random

import torch
from datasets import Dataset
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.data import CorrectionConfig, build_corrections, read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.functional.answers import exact_match, extract_answer
from hf_factuality.functional.correction import CHECKED_RIGHT, CHECKED_WRONG, correction_figures, self_verdict
from hf_factuality.rewards import CorrectionReward
from hf_factuality.trainers import CorrectionRollout
from hf_factuality.verifiers import GoldVerifier


REVISE, VERDICTS = "[REVISE]", (CHECKED_RIGHT, CHECKED_WRONG)
TOKENS, BATCH = 64, 512
SETTINGS = {
    "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, "bf16": False, "gradient_checkpointing": False,
    "save_strategy": "no", "report_to": "none", "logging_steps": 50, "disable_tqdm": True,
}  # fmt: skip


def settings(run, rate, **more):
    own = {"learning_rate": rate, "output_dir": str(run.folder), "seed": run.seed}
    return {**SETTINGS, **own, "use_cpu": not torch.cuda.is_available(), **more}


def sampler(model, tokenizer=None, number=4):
    return TransformersSampler(model, tokenizer, SamplingConfig(number, 1.0, top_k=0, max_new_tokens=TOKENS), BATCH)


def sft(run, model, tokenizer, rows, rate, epochs):
    args = SFTConfig(
        **settings(run, rate), assistant_only_loss=True, num_train_epochs=epochs, per_device_train_batch_size=64, max_length=256
    )  # fmt: skip
    data = Dataset.from_list([{"messages": row} for row in rows])
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    return with_form(trainer.model, tokenizer)


def with_form(model, tokenizer, always=False):
    model.form, model.always = tokenizer, always
    return model


def taught(run):
    """The base, which writes a verdict at random, and another answer where it was `[VERIFY] wrong`."""
    rng, prompts = random.Random(run.seed), [row["prompt"] for row in run.world.questions("train")]
    rows = []
    for prompt, (first, second) in zip(
        prompts, sampler(str(run.model_dir), number=2).sample(prompts, run.seed), strict=True
    ):
        verdict = rng.choice(VERDICTS)
        told = [*prompt, {"role": "assistant", "content": f"{first.text}\n\n{verdict}"}]
        again = [{"role": "user", "content": REVISE}, {"role": "assistant", "content": second.text}]
        rows.append(told + again * (verdict == CHECKED_WRONG))
    model = AutoModelForCausalLM.from_pretrained(run.model_dir, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(run.model_dir)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (REVISE, *VERDICTS)])
    torch.manual_seed(run.seed)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return sft(run, model, tokenizer, rows, 1e-3, 3)


def asked(run):
    return read_questions([{**row, "answer": [row["answer"]]} for row in run.world.questions("train")])


def built(run, model, output):
    return build_corrections(
        asked(run), sampler(model, model.form), GoldVerifier("world"), run.folder / output, seed=run.seed,
        corrections=CorrectionConfig(output, revise=REVISE), questions_per_batch=128, progress=False,
    )  # fmt: skip


def form(run):
    return taught(run)


def always(run):
    """Prompt only: every answer is revised."""
    model = taught(run)
    return with_form(model, model.form, always=True)


def rejection(rate):
    """SFT on right answers of one turn, as many questions and samples as the others have."""

    def train(run):
        model, rows = taught(run), []
        questions = asked(run)
        for question, found in zip(
            questions, sampler(model, model.form).sample([q.messages for q in questions], run.seed), strict=True
        ):
            right = [
                r.text
                for r in found
                if r.finished and exact_match(extract_answer(r.text) or "", [question.row["answer"][0]])
            ]
            rows += [
                [*question.messages, {"role": "assistant", "content": text.partition("[VERIFY]")[0].rstrip()}]
                for text in right
            ]
        return sft(run, model, model.form, rows, rate or run.condition, 2)

    return train


def rewarding(rate, then=None, then_rate=None):
    """SFT on trajectories of the model's own answers; then DPO on pairs of its answers, or RL."""

    def train(run):
        model = taught(run)
        model = sft(run, model, model.form, built(run, model, "trajectories")["messages"], rate or run.condition, 2)
        own = then_rate or run.condition
        if then == "DPO":
            args = DPOConfig(
                **settings(run, own), beta=0.1, num_train_epochs=1, per_device_train_batch_size=64, max_length=256
            )
            data = built(run, model, "pairs")
            trainer = DPOTrainer(model, args=args, train_dataset=data, processing_class=model.form)
        elif then == "RL":
            args = FactGRPOConfig(
                **settings(run, own, max_steps=run.steps), per_device_train_batch_size=128, num_generations=8,
                max_completion_length=TOKENS, temperature=1.0, beta=0.0, scale_rewards="none", credit="none",
                verify_scope="completion", factuality_reward_weight=0.0,
            )  # fmt: skip
            trainer = FactGRPOTrainer(
                model, CorrectionReward("world"), args, run.world.questions("train"), processing_class=model.form,
                verifier=None, rollout_func=CorrectionRollout(REVISE),
            )  # fmt: skip
        if then:
            trainer.train()
            model = with_form(trainer.model, model.form)
        return model

    return train


def measured(run, dataset, found):
    """Figures of two turns at temperature 1, where the model knows them."""
    model = run.model
    if not hasattr(model, "form"):
        return {}
    say = sampler(model, model.form, 2)
    prompts, golds = list(dataset["prompt"]), [[answer] for answer in dataset["answer"]]
    first = [one.text for one, _ in say.sample(prompts, run.seed)]
    verdicts, final = [self_verdict(text) for text in first], list(first)
    again = [place for place, said in enumerate(verdicts) if said is False or model.always]
    turns = [
        [*prompts[it], {"role": "assistant", "content": first[it]}, {"role": "user", "content": REVISE}]
        for it in again
    ]
    for place, (one, _) in zip(again, say.sample(turns, run.seed + 1) if turns else (), strict=True):
        final[place] = one.text
    right = [
        [exact_match(extract_answer(text) or "", gold) >= 0.5 for text, gold in zip(texts, golds, strict=True)]
        for texts in (first, final)
    ]
    return {"revised": len(again) / len(first), **correction_figures(*right, verdicts)}


def arms(rates):
    """All arms; a rate of `None` takes the condition."""
    return {
        "form": form,
        "prompt only": always,
        "rejection sampling": rejection(rates["sft"]),
        "self-rewarding SFT": rewarding(rates["sft"]),
        "... then DPO": rewarding(rates["sft"] or 5e-4, "DPO", rates["dpo"]),
        "... then RL": rewarding(rates["sft"] or 5e-4, "RL", rates["rl"]),
    }
