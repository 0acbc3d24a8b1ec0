"""The abstention experiment: questions for single facts, arms that learn when to decline or how sure to be, and what they learnt.

An answer is `<answer> Vellin </answer>`, and goes on with a confidence or R-Tuning's words. Names are single tokens, so that
what a policy would say to a question is read off its probabilities, not estimated from samples.
"""

import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.functional.calibration import auroc, expected_calibration_error
from hf_factuality.functional.metrics import average_precision
from hf_factuality.generation.sureness import SURE_WORDS
from hf_factuality.methods.abstention.data import VARIANTS, RefusalConfig, refusals_from
from hf_factuality.methods.confidence.formula import rlcr
from hf_factuality.reading.marks import stated_confidence
from hf_factuality.rewards import DCPORewards, RLCRReward, abstention_reward
from hf_factuality.verifiers import GoldVerifier
from hf_factuality.worlds import WorldConfig, WorldModelConfig


# The base knows nearly all about popular people and less about others. It declines every other time, whoever is asked about.
WORLD = WorldConfig(
    num_people=300,
    popularity_exponent=1.2,
    filler=0.0,
    unknown=0.02,
    hedged=0.0,
    hop_share=0.0,
    stated=1.0,
    declined=0.5,
)
MODEL = WorldModelConfig(
    hidden_size=128, intermediate_size=352, num_layers=2, steps=1300, questions=0.0, short_answers=0.5
)
MAX_TOKENS = 12
WORDS = replace(SURE_WORDS["en"], question="")
EVERYBODY = "everybody"
BINS = 12


def test_sets(run):
    """300 facts each of the popular and the other half of the people held out, and 200 rumours about them."""
    world, facts = run.world, list(run.world.questions("test", hops=1))
    rank = {person.name: place for place, person in enumerate(world.people)}
    middle = sorted(rank[person.name] for person in world.split("test"))[len(world.split("test")) // 2]
    popular = [row for row in facts if rank[row["person"]] < middle][:300]
    rare = [row for row in facts if rank[row["person"]] >= middle][:300]
    rumours = [
        rumour(world, facts[0], person, r) for person in world.split("test")[:100] for r in world.relations if r.rumour
    ]
    found = {"popular": popular, "rare": rare, "rumours": rumours, EVERYBODY: popular + rare + rumours}
    return {name: Dataset.from_list(rows) for name, rows in found.items()}


def rumour(world, like, person, relation):
    """A question whose answer no text agrees on, in a row like another one."""
    question = world.question(person, relation, 1)
    known = {"question": question, "answer": person.facts[relation.name], "evidence": [], "person": person.name}
    return {**like, **known, "prompt": [{"role": "user", "content": question}], "relation": relation.name}


class Reading(NamedTuple):
    """What a policy would say to a question: whether its likeliest value is right, the probabilities of that value, of
    declining and of a right answer if it does not decline; `sure` of R-Tuning: P(sure) after that value."""

    right: bool
    value: float
    declines: float
    correct: float
    sure: float | None = None


@torch.no_grad()
def after(model, tokenizer, texts):
    """Probabilities of the token after each text, (N, V)."""
    batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt").to(model.device)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return model.eval()(**inputs).logits[:, -1].float().softmax(-1).cpu()


def first_words(model, tokenizer, prompts):
    """Of rendered prompts: probability that a policy declines, (N,), and those of the values that it says else, (N, V)."""
    found, refusal = after(model, tokenizer, [f"{prompt}<answer>" for prompt in prompts]), tokenizer.encode(" I")
    return found[:, refusal[0]], found.index_fill(1, torch.tensor(refusal), 0.0)


def rendered(tokenizer, rows):
    return tokenizer.apply_chat_template(list(rows["prompt"]), tokenize=False, add_generation_prompt=True)


def read(model, tokenizer, rows, sure=False):
    """A [`Reading`] of each row."""
    ids, prompts = tokenizer.convert_tokens_to_ids, rendered(tokenizer, rows)
    refused, values = first_words(model, tokenizer, prompts)
    declines = refused.tolist()
    best, likeliest = (found.tolist() for found in values.max(-1))
    golds = [ids(f" {answer}") for answer in rows["answer"]]
    correct = [row[gold].item() / (1 - d + 1e-9) for row, gold, d in zip(values, golds, declines, strict=True)]
    words = [None] * len(prompts)
    if sure:
        begun = WORDS.said("{}", True).removesuffix(" sure.")
        said = [
            p + begun.format(f"<answer>{tokenizer.decode([i])} </answer>")
            for p, i in zip(prompts, likeliest, strict=True)
        ]
        yes, no = after(model, tokenizer, said)[:, [ids(" sure"), ids(" unsure")]].unbind(-1)
        words = (yes / (yes + no)).tolist()
        declines = [1 - p for p in words]
    right = [place == gold for place, gold in zip(likeliest, golds, strict=True)]
    return [Reading(*row) for row in zip(right, best, declines, correct, words, strict=True)]


@lru_cache(1)
def base_of(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), AutoTokenizer.from_pretrained(
        model_dir
    )


def outcome(text, answer):
    """`"correct"`, `"wrong"` or `"refused"`, which "I am unsure." is as well; anything but a value between tags is wrong."""
    if "I do not know" in text or WORDS.unsure in text:
        return "refused"
    found = re.match(r"<answer> (\S+) </answer>", text)
    return "correct" if found and found[1] == answer else "wrong"


def mean(values):
    return sum(values) / len(values) if values else None


def measured(run, rows, found):
    """Outcomes, and whether the confidence in the likeliest value is right: what R-Tuning or a number says where the arm has
    learnt to, else the probability that the policy says that value."""
    says, (base, tokenizer) = getattr(run.model, "says", None), base_of(str(run.model_dir))
    own, start = read(run.model, tokenizer, rows, says == "sure"), read(base, tokenizer, rows)
    said = [outcome(text, answer) for text, answer in zip(found.completions, rows["answer"], strict=True)]
    numbers = list(map(stated_confidence, found.completions))
    if says == "sure":
        confidence = [it.sure for it in own]
    elif says == "number":
        confidence = [0.0 if number is None else number for number in numbers]
    else:
        confidence = [it.value for it in own]
    sure = [1 - it.declines for it in own] if says is None else confidence
    ranks, right = [(it.value + s) / 2 for it, s in zip(own, sure, strict=True)], [it.right for it in own]
    if says == "number":  # of what was said, not of the likeliest value
        right = [it == "correct" for it in said]
    known = [it == "refused" for it, b in zip(said, start, strict=True) if b.right]
    figures = {
        "accuracy": said.count("correct") / len(said),
        "hallucination": said.count("wrong") / len(said),
        "abstention": said.count("refused") / len(said),
        "false abstention": mean(known),
        "accuracy answered": mean([it == "correct" for it in said if it != "refused"]),
        "AP": average_precision(ranks, right),
        "ECE": expected_calibration_error(confidence, right),
        "AUROC": auroc(confidence, right),
        "stated": mean([number is not None for number in numbers]),
        "paid: RLCR": mean([rlcr(it == "correct", number) for it, number in zip(said, numbers, strict=True)]),
    }
    for name, reward in REWARDS.items():
        pays = dict(zip(("correct", "refused", "wrong"), reward.rewards, strict=True))
        figures[f"paid: {name}"] = mean([pays[it] for it in said])
    facts = [place for place, name in enumerate(rows["relation"]) if not run.world.relation(name).rumour]
    if 0 < len(facts) < len(own):
        points = curve([start[place] for place in facts], [own[place] for place in facts])
        figures |= {"curve": points, "threshold": crossing(points)}
    return figures


def curve(start, own):
    """Per bin of questions of which the base is equally sure: how often the policy is right where it answers (at
    temperature 1), and how often it declines; both are probabilities."""
    pairs = sorted(zip(start, own, strict=True), key=lambda pair: pair[0].value / (1 - pair[0].declines))
    bins = [pairs[len(pairs) * n // BINS : len(pairs) * (n + 1) // BINS] for n in range(BINS)]
    return sorted((mean([it.correct for _, it in own]), mean([it.declines for _, it in own])) for own in bins)


def crossing(points):
    """Probability of being right at which the policy declines in half of the cases, by straight lines between the points after
    these were made monotone; 0 if it declines less everywhere, 1 if more."""
    pools = []
    for x, y in points:
        pools.append([[x], y])
        while len(pools) > 1 and pools[-1][1] > pools[-2][1]:  # declining less and less
            xs, last = pools.pop()
            before = pools[-1]
            before[1] = (before[1] * len(before[0]) + last * len(xs)) / (len(before[0]) + len(xs))
            before[0] += xs
    flat = [(x, y) for xs, y in pools for x in xs]
    if flat[0][1] < 0.5:
        return 0.0
    for (x, y), (next_x, next_y) in pairwise(flat):
        if next_y < 0.5 <= y:
            return x + (next_x - x) * (y - 0.5) / (y - next_y)
    return 1.0


NUMBERS = ("RLCR", "DCPO")
REWARDS = {
    "binary": abstention_reward("binary"),
    "ternary .25": abstention_reward(threshold=0.25),
    "ternary .5": abstention_reward(threshold=0.5),
    "ternary .75": abstention_reward(threshold=0.75),
    "KnowRL": abstention_reward("knowrl"),
}
ASKED = {name: reward.threshold for name, reward in REWARDS.items()}
SETTINGS = {
    "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, "bf16": False, "gradient_checkpointing": False,
    "save_strategy": "no", "report_to": "none", "logging_steps": 20, "disable_tqdm": True,
}  # fmt: skip


def _settings(run, rate, **more):
    own = {"learning_rate": rate, "output_dir": str(run.folder), "seed": run.seed, "max_steps": run.steps}
    return {**SETTINGS, **own, "use_cpu": not torch.cuda.is_available(), **more}


def grpo(name, rate):
    """An arm: GRPO with this reward, 8 answers to each of 16 questions per step, not divided by their deviation."""

    def train(run):
        rewards = {"RLCR": lambda: [RLCRReward()], "DCPO": lambda: DCPORewards().both}.get(
            name, lambda: [REWARDS[name]]
        )
        args = FactGRPOConfig(
            **_settings(run, rate or run.condition), per_device_train_batch_size=128, num_generations=8,
            max_completion_length=11 if name in NUMBERS else 6,  # holds "I do not know" with all that is paid for
            temperature=1.0, beta=0.0, scale_rewards="none", credit="none", verify_scope="completion",
            factuality_reward_weight=0.0,
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            str(run.model_dir), rewards(), args, run.world.questions("train", hops=1), verifier=None
        )
        trainer.train()
        trainer.model.says = "number" if name in NUMBERS else None
        return trainer.model

    return train


def sft(variant, rate):
    """An arm: TRL's SFT on the gold answers, or on the data of a variant of R-Tuning that the base is asked for."""

    def train(run):
        rows = [dict(row) for row in run.world.questions("train", hops=1)]
        for number, row in enumerate(rows):
            completion = [{"role": "assistant", "content": f"<answer> {row['answer']} </answer>"}]
            row |= {"id": str(number), "completion": completion}
        data = tuned(run, variant, rows) if variant else Dataset.from_list(rows)
        trainer = SFTTrainer(
            str(run.model_dir),
            SFTConfig(**_settings(run, rate or run.condition), per_device_train_batch_size=64, max_length=64),
            train_dataset=data.select_columns(["prompt", "completion"]),
        )
        trainer.train()
        trainer.model.says = "sure" if variant in ("unsure", "uncertain") else None
        return trainer.model

    return train


def tuned(run, variant, rows):
    """R-Tuning's data: what the base says where it may not decline, which it does at random; the gold answer between tags."""
    base, tokenizer = base_of(str(run.model_dir))
    values = first_words(base, tokenizer, rendered(tokenizer, {"prompt": [row["prompt"] for row in rows]}))[1]
    if variant == "uncertain":
        generator = torch.Generator().manual_seed(run.seed)
        said = torch.multinomial(values ** (1 / 0.7), 5, replacement=True, generator=generator).tolist()
    else:
        said = values.argmax(-1, keepdim=True).tolist()
    responses = {
        row["id"]: [f"<answer>{tokenizer.decode([token])} </answer>" for token in tokens]
        for row, tokens in zip(rows, said, strict=True)
    }
    asked = [{**row, "answer": [row["completion"][0]["content"], row["answer"]]} for row in rows]
    more = {"refusals": ("<answer> I do not know </answer>",)} if variant == "unknown" else {"question": ""}
    return refusals_from(
        read_questions(asked), GivenResponses(responses), GoldVerifier(), run.folder / "refusals", seed=run.seed,
        refusals=RefusalConfig(variant, **more),
    )  # fmt: skip


def arms(rate, others=()):
    """All arms, at this learning rate, or that of `others` by name; `None` takes the condition."""
    rates = dict(others)
    data = {"SFT on gold": None} | {f"R-Tuning, {name}": name for name in VARIANTS}
    found = {name: sft(variant, rates.get(name, rate)) for name, variant in data.items()}
    return found | {name: grpo(name, rates.get(name, rate)) for name in (*REWARDS, *NUMBERS)}
