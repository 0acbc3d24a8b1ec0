"""The alignment tax: a base of two languages, two aligned policies, their averages with it, and what each can still do."""

from __future__ import annotations

import hashlib
import json
import math
import random
from dataclasses import asdict, replace
from itertools import count, islice
from pathlib import Path

import torch
from _fspo import SETTINGS as FSPO_SETTINGS
from _mask_dpo import SETTINGS as DPO_SETTINGS
from _mask_dpo import preference_pairs
from datasets import Dataset
from filelock import FileLock
from peft import LoraConfig
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, MaskDPOConfig, MaskDPOTrainer
from hf_factuality.functional import judged_units, mean_factuality
from hf_factuality.io.files import whole_folder
from hf_factuality.methods.averaging.formula import average_tensors
from hf_factuality.rewards import answer_reward
from hf_factuality.trainers import AdaptiveAveragingConfig, AdaptiveAveragingTrainer
from hf_factuality.worlds import World, WorldConfig, WorldModelConfig, WorldVerifier, evaluate_world, lm, texts
from hf_factuality.worlds.tokenizer import TAGS, UNK, build_world_tokenizer


WORLD = WorldConfig(num_people=300, num_attributes=3)
MODEL = WorldModelConfig(
    hidden_size=128,
    intermediate_size=352,
    num_layers=9,
    steps=700,
    learning_rate=2e-3,
    questions=0.4,
    short_answers=0.2,
)


def other(world: WorldConfig) -> WorldConfig:
    """The same people's world in the other language: names and facts of its own."""
    return replace(world, language="zh")


def bilingual_base(config: WorldConfig, model_config: WorldModelConfig, progress: bool = True) -> Path:
    """A model that has read the texts of both worlds in turn, `model_config.steps` batches of each."""
    record = {"world": asdict(config), "model": asdict(model_config), "languages": ["en", "zh"], "version": lm.VERSION}
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    target = lm._cache_dir() / "worlds" / f"bilingual-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            worlds = [World(config), World(other(config))]
            tokenizer = both_languages(*worlds)
            model = _read(worlds, tokenizer, model_config, progress)
            with whole_folder(target) as folder:
                lm._save(model, tokenizer, record, [], folder)
    return target


def both_languages(english: World, chinese: World):
    """The word-level tokenizers of two worlds as one: words with their space, and single Chinese characters."""
    found = build_world_tokenizer(english)
    pieces = dict.fromkeys([*_in_order(found), *_in_order(build_world_tokenizer(chinese))])
    backend = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token=UNK))
    unit = rf" ?(?:{'|'.join(TAGS)}|[^\W\u4e00-\u9fff]+|[^\w\s])|[\s\S]"
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(unit), "isolated")
    backend.decoder = decoders.Fuse()
    kept = {
        name: getattr(found, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    }
    return type(found)(
        tokenizer_object=backend, additional_special_tokens=["<user>", "<assistant>"], padding_side="left",
        clean_up_tokenization_spaces=False, model_max_length=256, **kept,
    )  # fmt: skip


def _in_order(tokenizer):
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


def _read(worlds, tokenizer, config, progress):
    torch.manual_seed(config.seed)
    model = LlamaForCausalLM(lm._llama_config(tokenizer, config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def batches(world):
        for group in count():
            found, mean = lm._batches(world, tokenizer, config, group)
            yield from ((ids, labels, mean) for ids, labels in found)

    pairs = islice(zip(*map(batches, worlds), strict=True), config.steps)
    for step, pair in enumerate(pairs):
        for ids, labels, mean in pair:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(input_ids=ids[:, :-1], use_cache=False).logits
            loss = (
                torch.nn.functional.cross_entropy(
                    logits.float().flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
                )
                / mean
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * lm._learning_rate(step, config.steps)
            optimizer.step()
            optimizer.zero_grad()
        if progress and step % 50 == 0:
            print(f"base: step {step} of {config.steps}, loss {float(loss):.3f}", flush=True)
    return model.eval()


# The policies, and what is tried against their tax.
PEOPLE, CHINESE, QUESTIONS = 100, 50, 150
BIOGRAPHY, CHINESE_BIOGRAPHY, ANSWER, SHORT = 110, 200, 48, 24  # tokens
MASK_DPO = {**DPO_SETTINGS, "learning_rate": 2e-4}
FSPO = {**FSPO_SETTINGS, "learning_rate": 2e-4, "bf16": False, "max_completion_length": ANSWER, "num_generations": 8}
STEPS = {"Mask-DPO": 40, "FSPO": 60}
# DPO's own beta (.1 in the policy), and that of the KL term of GRPO's loss (0 there).
BETA = {"Mask-DPO": 0.5, "FSPO": 0.1}
CPU = {"use_cpu": not torch.cuda.is_available()}


def trained(run, faster=1, **settings):
    """Folder of a policy of `run.condition`, trained once for all arms that ask for the same settings."""
    rate = faster * (MASK_DPO if run.condition == "Mask-DPO" else FSPO)["learning_rate"]
    settings = {"steps": STEPS[run.condition], "lora": False, "learning_rate": rate, **settings}
    about = [run.model_dir.name, run.seed, run.condition, settings, MASK_DPO if run.condition == "Mask-DPO" else FSPO]
    key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]
    target = run.model_dir.parent.parent / "policies" / key
    target.parent.mkdir(exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            model = (_mask_dpo_policy if run.condition == "Mask-DPO" else _fspo_policy)(run, **settings)
            model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
            with whole_folder(target) as folder:
                model.float().save_pretrained(folder)
                AutoTokenizer.from_pretrained(run.model_dir).save_pretrained(folder)
    return target


def _lora(lora):
    return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None


def _mask_dpo_policy(run, steps, lora, **settings):
    args = MaskDPOConfig(
        **{**MASK_DPO, **settings}, output_dir=str(run.folder), seed=run.seed, max_steps=steps, **CPU
    )  # fmt: skip
    pairs = preference_pairs(run)
    trainer = MaskDPOTrainer(str(run.model_dir), args=args, train_dataset=pairs, peft_config=_lora(lora))
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)


def _fspo_policy(run, steps, lora, **settings):
    args = FactGRPOConfig(**{**FSPO, **settings}, output_dir=str(run.folder), seed=run.seed, max_steps=steps, **CPU)
    trainer = FactGRPOTrainer(
        str(run.model_dir), answer_reward(), args, run.world.questions("train"), verifier=WorldVerifier(run.world, True),
        peft_config=_lora(lora),
    )  # fmt: skip
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def policy(**settings):
    """An arm: a policy as it is."""
    return lambda run: load(trained(run, **settings))


def kl():
    """An arm: a policy that is held nearer to the base."""
    return lambda run: load(trained(run, beta=BETA[run.condition]))


def early(share):
    """An arm: a policy that is stopped before the end."""
    return lambda run: load(trained(run, steps=round(share * STEPS[run.condition])))


def averaged(run, ratio_of):
    """The policy averaged with the base, by the ratio of each parameter."""
    before, model = dict(load(run.model_dir).named_parameters()), load(trained(run))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(average_tensors(before[name], parameter, ratio_of[name]))
    return model


def uniform(alpha):
    """An arm: one ratio for all."""

    def train(run):
        return averaged(run, dict.fromkeys(dict(load(run.model_dir).named_parameters()), alpha))

    return train


def best_answers(run, model, samples=4):
    """The better half of what the policy says about the people that it was aligned on, by the oracle."""
    tokenizer = AutoTokenizer.from_pretrained(run.model_dir)
    biographies = run.condition == "Mask-DPO"
    asked = run.world.biographies("train") if biographies else run.world.questions("train", 150)
    rows = [row for row in asked for _ in range(samples)]
    found = evaluate_world(
        model, tokenizer, run.world, asked, num_samples=samples, max_new_tokens=BIOGRAPHY if biographies else ANSWER,
        seed=run.seed,
    )  # fmt: skip
    scores = [mean_factuality(judged_units(read)) or 0.0 for read in found.verifications]
    if not biographies:
        columns = {name: [row[name] for row in rows] for name in asked.column_names if name != "prompt"}
        right = answer_reward()([row["prompt"] for row in rows], found.completions, **columns)
        scores = [s + r for s, r in zip(scores, right, strict=True)]
    order = sorted(range(len(rows)), key=lambda n: -scores[n])[: len(rows) // 2]
    random.Random(run.seed).shuffle(order)
    message = [
        {"prompt": rows[n]["prompt"], "completion": [{"role": "assistant", "content": found.completions[n]}]}
        for n in order
    ]
    return Dataset.from_list(message)


def ama(blocks, alpha, learning_rate=0.05, steps=40):
    """An arm: ratios of blocks, learned on the policy's high-reward answers."""

    def train(run):
        folder = trained(run)
        args = AdaptiveAveragingConfig(
            str(run.folder), alpha=alpha, blocks=blocks, learning_rate=learning_rate, max_steps=steps, seed=run.seed,
            per_device_train_batch_size=16, max_length=256, bf16=False, gradient_checkpointing=False, save_strategy="no",
            report_to="none", disable_tqdm=True, logging_steps=steps, **CPU,
        )  # fmt: skip
        trainer = AdaptiveAveragingTrainer(str(folder), str(run.model_dir), args, best_answers(run, load(folder)))
        trainer.train()
        print(f"{run.condition}, seed {run.seed}, K={blocks}, mean {alpha}: {trainer.ratios.ratios}", flush=True)
        return averaged(run, trainer._map.ratios(trainer.ratios.ratios))

    return train


# What is measured, all of it at temperature 1.
FACTS = 6  # that a biography of the base states, about
FIGURES = (
    "gain", "kept", "correct", "wrong", "decided_precision", "two_hops", "single_facts", "chinese", "chinese_questions",
    "perplexity", "perplexity_zh",
)  # fmt: skip


def test_sets(run):
    return {"held-out": run.world.biographies("test", PEOPLE)}


def measure(run, rows, found):
    """`gain` is of the task that the policy was aligned on: true less false facts of a biography, or FSPO's reward of two-hop
    questions. `kept` is the mean of the other abilities, all of which count what is right: declining
    wins nothing. Biographies count as true facts of six.
    """
    tokenizer = AutoTokenizer.from_pretrained(run.model_dir)

    def asked(world, dataset, tokens):
        return evaluate_world(run.model, tokenizer, world, dataset, max_new_tokens=tokens, seed=run.seed).metrics

    chinese = World(replace(other(run.world.config), split_seed=run.seed))
    correct, wrong = found.metrics["correct"], found.metrics["wrong"]
    two_hops = asked(run.world, run.world.questions("test", QUESTIONS), ANSWER)
    figures = {
        "two_hops": two_hops["accuracy"],
        "single_facts": asked(run.world, run.world.questions("test", QUESTIONS, 1), SHORT)["correct"],
        "chinese": asked(chinese, chinese.biographies("test", CHINESE), CHINESE_BIOGRAPHY)["correct"] / FACTS,
        "chinese_questions": asked(chinese, chinese.questions("test", QUESTIONS), ANSWER)["accuracy"],
    }
    biographies = run.condition == "Mask-DPO"
    kept = [figures[name] for name in figures if biographies or name != "two_hops"] + [correct / FACTS] * (
        not biographies
    )
    return {
        **figures, "gain": correct - wrong if biographies else two_hops["reward"], "kept": sum(kept) / len(kept),
        "perplexity": perplexity(run.model, tokenizer, run.world, run.seed),
        "perplexity_zh": perplexity(run.model, tokenizer, chinese, run.seed),
    }  # fmt: skip


def perplexity(model, tokenizer, world, seed, count=64):
    """Of held-out texts of the world: biographies as its books have them, by token."""
    rng, total, tokens = random.Random(f"perplexity {seed}"), 0.0, 0
    people = world.split("test")[:count]
    chats = [[{"role": "user", "content": world.request(p)}] for p in people]
    prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    for prompt, person in zip(prompts, people, strict=True):
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        ids = tokenizer(prompt + texts.biography(world, person, rng), add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        with torch.no_grad():
            logits = model(ids).logits[0, start - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, ids[0, start:], reduction="sum").item()
        tokens += ids.size(1) - start
    return math.exp(total / tokens)
