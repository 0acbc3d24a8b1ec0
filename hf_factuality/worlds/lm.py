"""Trains the small causal language model that lives in a [`World`].

The result is an ordinary `from_pretrained` directory; nothing about it is special except that it is made in minutes and
knows nothing but the world.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import CheckpointError
from hf_factuality.io.files import cache_folder, whole_folder, writing
from hf_factuality.worlds import texts
from hf_factuality.worlds.sizes import SIZES, WorldModelConfig
from hf_factuality.worlds.tokenizer import EOS, build_world_tokenizer
from hf_factuality.worlds.world import CHAINED, World, WorldConfig


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


# Part of the cache key: raise it whenever texts, tokenizer or training change.
VERSION = 2
WORLD_FILE = "world.json"
CURVE_FILE = "training_curve.jsonl"
GROUP = 16
"""Batches whose texts are drawn, and sorted by length, together."""
CURVE_STEPS = 20
SAVE_SECONDS = 30.0


def build_world_model(
    config: WorldConfig | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    model_config: WorldModelConfig | None = None,
    *,
    size: str = "tiny",
    steps: int | None = None,
    device: str | None = None,
    num_threads: int | None = 1,
    progress: bool = True,
) -> Path:
    """Trains the model of a world from scratch, or returns the one that was trained before.

    The directory holds configuration, safetensors weights, generation configuration, tokenizer with chat template,
    `world.json` ([`load_world`]) and `training_curve.jsonl`. It is written under another name and renamed when it is
    complete. A killed build goes on from its last state (at most half a minute old) when it is started again, and on one
    CPU thread ends with the same weights; of two processes that build the same model, one waits for the other.

    Args:
        config ([`WorldConfig`], *optional*):
            The world; `None` takes that of `size`.
        output_dir (`str` or `os.PathLike`, *optional*):
            Where to put the model. Defaults to a directory named after the hash of all settings under
            `$HF_FACTUALITY_CACHE`, or under `~/.cache/hf_factuality`.
        model_config ([`WorldModelConfig`], *optional*):
            Size and training of the model; `None` takes that of `size`.
        size (`str`, *optional*, defaults to `"tiny"`):
            `"demo"`, `"tiny"` (2 million parameters), `"small"` (30) or `"base"` (100), see
            `hf_factuality.worlds.sizes.SIZES`.
        steps (`int`, *optional*):
            Replaces `model_config.steps`; a few make a bad model in seconds, for tests.
        device (`str`, *optional*):
            Where to train; `None` takes a CUDA device if there is one.
        num_threads (`int`, *optional*, defaults to `1`):
            Threads of torch during a build on a CPU; `None` leaves them as they are. With one, the weights are the same
            on every run. A CPU with instructions for bfloat16 computes in it, others in float32, with other weights.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar with the loss.

    Returns:
        `pathlib.Path`: the model directory.

    Raises:
        `ValueError`: no such size.
        `CheckpointError`: `output_dir` exists and holds something else than this model.
    """
    from filelock import FileLock

    if size not in SIZES:
        raise ValueError(f"size={size!r} is unknown; choose one of {list(SIZES)}")
    config = config if config is not None else SIZES[size][0]
    model_config = model_config if model_config is not None else SIZES[size][1]
    if steps is not None:
        model_config = replace(model_config, steps=steps)
    record = _record(config, model_config)
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    target = Path(output_dir) if output_dir is not None else cache_folder() / "worlds" / key
    if _is_built(target, record):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}-{key}.partial"
    with FileLock(f"{partial}.lock"):
        # Another process may have built it while this one waited.
        if _is_built(target, record):
            return target
        world = World(config)
        tokenizer = build_world_tokenizer(world, model_config.tokenizer)
        model, curve = _train(world, tokenizer, model_config, partial, device, num_threads, progress)
        try:
            with whole_folder(target) as temporary:
                _save(model, tokenizer, record, curve, temporary)
        except OSError as error:
            raise CheckpointError(f"cannot move the model to {target}: {error}; choose another directory") from error
        shutil.rmtree(partial, ignore_errors=True)
    return target


def load_world(model_dir: str | os.PathLike[str], split_seed: int | None = None) -> World:
    """The world that a model directory was built for.

    Args:
        model_dir (`str` or `os.PathLike`):
            As [`build_world_model`] returns it.
        split_seed (`int`, *optional*):
            Who is held out; `None` keeps the world's own split.

    Raises:
        `CheckpointError`: there is no readable `world.json`.
    """
    path = Path(model_dir) / WORLD_FILE
    try:
        config = WorldConfig(**json.loads(path.read_text(encoding="utf-8"))["world"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not describe a world: {error}") from error
    return World(config if split_seed is None else replace(config, split_seed=split_seed))


def _record(config: WorldConfig, model_config: WorldModelConfig) -> dict[str, Any]:
    # Who is held out changes neither texts nor weights.
    record = {"world": asdict(replace(config, split_seed=None)), "model": asdict(model_config)}
    for settings, defaults in ((record["world"], WorldConfig()), (record["model"], WorldModelConfig())):
        for name, value in settings.items():
            if isinstance(getattr(defaults, name), float):
                settings[name] = float(value)  # 0 and 0.0 are one setting
    if not config.compound:
        del record["world"]["compound"]  # models from before there was such a setting are found
    if not config.stated:
        del record["world"]["stated"], record["world"]["declined"]
    return {"version": VERSION, **record}


def _save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, record: dict[str, Any], curve: list, folder: Path
) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / CURVE_FILE).write_text("".join(json.dumps(point) + "\n" for point in curve), encoding="utf-8")
    (folder / WORLD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _is_built(target: Path, record: dict[str, Any]) -> bool:
    """Whether `target` holds the model of `record`; raises if something else is in the way."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / WORLD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != record:
        raise CheckpointError(f"{target} holds something else than the requested world model; name another directory")
    return True


def _train(world, tokenizer, config: WorldModelConfig, partial: Path, device, num_threads, progress):
    """The model and the points of its curve."""
    import torch
    import torch.nn.functional as F
    from tqdm.auto import tqdm
    from transformers import LlamaForCausalLM

    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    half = device.type != "cpu" or has_bfloat16()
    threads_before = torch.get_num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        # A build in the middle of somebody's run leaves their random numbers alone.
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            torch.manual_seed(config.seed)
            model = LlamaForCausalLM(_llama_config(tokenizer, config))
        model.to(device).train()
        settings = {"lr": config.learning_rate, "betas": (0.9, 0.98), "weight_decay": 0.01}
        optimizer = torch.optim.AdamW(model.parameters(), **settings)
        state = _load_state(partial, model, optimizer, device)
        step, curve, total, tokens = state["step"], state["curve"], state["total"], state["tokens"]
        saved = time.monotonic()
        show = {"desc": "world model", "unit": "step", "mininterval": 1.0, "disable": not progress}
        with tqdm(total=config.steps, initial=step, **show) as bar, ThreadPoolExecutor(1) as pool:
            # The next texts are drawn while the model trains: a GPU would wait for them a third of the time.
            drawn = pool.submit(_batches, world, tokenizer, config, step // GROUP)
            while step < config.steps:
                batches, mean_tokens = drawn.result()
                drawn = pool.submit(_batches, world, tokenizer, config, step // GROUP + 1)
                for input_ids, labels in batches[: config.steps - step]:
                    tokens += int((labels != -100).sum())
                    input_ids, labels = input_ids.to(device), labels.to(device)
                    with torch.autocast(device.type, torch.bfloat16, enabled=half):
                        logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits
                    # Not the mean of the batch: that would weigh short texts more, and the model would learn to say less.
                    loss = F.cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
                    loss = loss / mean_tokens
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    for group in optimizer.param_groups:
                        group["lr"] = config.learning_rate * _learning_rate(step, config.steps)
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    total = total + loss.detach()
                    if step % CURVE_STEPS == 0 or step == config.steps:
                        # One wait for the device per point of the curve.
                        count = step % CURVE_STEPS or CURVE_STEPS
                        curve.append({"step": step, "tokens": tokens, "loss": float(total) / count})
                        total = torch.zeros((), device=device)
                        bar.set_postfix(loss=f"{curve[-1]['loss']:.3f}", refresh=False)
                    bar.update()
                if time.monotonic() - saved > SAVE_SECONDS and step < config.steps:
                    _save_state(partial, model, optimizer, step, curve, total, tokens)
                    saved = time.monotonic()
    finally:
        torch.set_num_threads(threads_before)
    # The memory of the optimizer is not kept for the rest of the process.
    del optimizer
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return model.cpu().eval(), curve


def has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16. Without them a step takes ten times as long as in float32."""
    import torch

    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _save_state(partial: Path, model, optimizer, step: int, curve: list, total, tokens: int) -> None:
    import torch

    partial.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with writing(partial / "state.pt") as file:
        torch.save({**state, "step": step, "curve": curve, "total": total, "tokens": tokens}, file)


def _load_state(partial: Path, model, optimizer, device) -> dict[str, Any]:
    import torch

    state = {"step": 0, "curve": [], "total": torch.zeros((), device=device), "tokens": 0}
    if (partial / "state.pt").exists():
        state = torch.load(partial / "state.pt", map_location=device, weights_only=True)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    return state


def _llama_config(tokenizer: PreTrainedTokenizerFast, config: WorldModelConfig):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _learning_rate(step: int, steps: int) -> float:
    """Warm-up, plateau, linear decay to 0; as a factor of the peak."""
    return min(1.0, (step + 1) / 50) * min(1.0, (1 - step / steps) / 0.7)


def _pair(world: World, config: WorldModelConfig, person, rng: random.Random) -> tuple[str, str]:
    """A request and what the model reads as its answer."""
    kind = rng.random()
    if kind < config.questions:
        relation = rng.choice(world.relations[:CHAINED])
        hops = rng.randint(2, world.config.max_hops)
        return world.question(person, relation, hops), texts.demonstration(world, person, relation, rng, hops)
    if kind < config.questions + config.short_answers:
        relation = rng.choice(world.relations)
        return world.question(person, relation, 1), texts.short_answer(world, person, relation, rng)
    return world.request(person), texts.biography(world, person, rng)


def _batches(world: World, tokenizer: PreTrainedTokenizerFast, config: WorldModelConfig, group: int):
    """The `GROUP` batches of a group, a function of its number, and the mean number of labels in one.

    `input_ids` and `labels` are both (B, L) and right-padded; prompts and padding have the label -100. Texts of like
    length share a batch, which saves a quarter of the time.
    """
    import torch

    def padded(rows, value):
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)

    rng = random.Random(f"texts {config.seed} {group}")
    size = len(world.people)
    # Few people at first: a model that has learnt to recall some facts picks up further ones much faster.
    progress = min(1.0, max(0.0, group * GROUP / config.steps - 0.05) / 0.35)
    known = round(math.exp(math.log(min(40, size)) * (1 - progress) + math.log(size) * progress))
    pairs = [_pair(world, config, p, rng) for p in world.sample_people(rng, GROUP * config.batch_size, known)]
    chats = [[{"role": "user", "content": request}] for request, _ in pairs]
    prompts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    wholes = [prompt + text + EOS for prompt, (_, text) in zip(prompts, pairs, strict=True)]
    encode = {"add_special_tokens": False}
    lengths = [len(ids) for ids in tokenizer(prompts, **encode)["input_ids"]]
    rows = sorted(zip(tokenizer(wholes, **encode)["input_ids"], lengths, strict=True), key=lambda row: len(row[0]))
    slices = [rows[start : start + config.batch_size] for start in range(0, len(rows), config.batch_size)]
    rng.shuffle(slices)
    batches = []
    for batch in slices:
        kept = [[-100] * prompt_length + ids[prompt_length:] for ids, prompt_length in batch]
        batches.append((padded([ids for ids, _ in batch], tokenizer.pad_token_id), padded(kept, -100)))
    return batches, sum(len(ids) - prompt_length for ids, prompt_length in rows) / GROUP
