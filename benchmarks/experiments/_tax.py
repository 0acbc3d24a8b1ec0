"""The alignment tax: a base of two languages, two aligned policies, their averages with it, and what each can still do."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, replace
from itertools import count, islice
from pathlib import Path

import torch
from _mask_dpo import SETTINGS as DPO_SETTINGS
from datasets import Dataset
from filelock import FileLock
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_factuality.io.files import whole_folder
from hf_factuality.worlds import World, WorldConfig, WorldModelConfig, evaluate_world, lm, texts
from hf_factuality.worlds.tokenizer import TAGS, UNK, build_world_tokenizer


WORLD = WorldConfig(num_people=300, num_attributes=3)
MODEL = WorldModelConfig(
    hidden_size=128, intermediate_size=352, num_layers=9, steps=1300, learning_rate=2e-3, questions=0.4, short_answers=0.2
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
    kept = {name: getattr(found, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")}
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
            loss = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
            ) / mean
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * lm._learning_rate(step, config.steps)
            optimizer.step()
            optimizer.zero_grad()
        if progress and step % 50 == 0:
            print(f"base: step {step} of {config.steps}, loss {float(loss):.3f}", flush=True)
    return model.eval()
