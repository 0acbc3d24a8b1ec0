"""Trains the small causal language model that lives in a [`World`], and its tokenizer.

The result is an ordinary `from_pretrained` directory; nothing about it is special except that it takes two minutes to
make and knows nothing but the world.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import CheckpointError
from hf_factuality.worlds.world import RELATIONS, World, WorldConfig


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


# Part of the cache key: raise it whenever texts, tokenizer or training change.
VERSION = 1
WORLD_FILE = "world.json"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PAD, BOS, EOS, UNK, USER, ASSISTANT = "<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ raise_exception('this model knows the roles user and assistant only') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@dataclass(frozen=True)
class WorldModelConfig:
    """Size and training of the world's model.

    Args:
        hidden_size (`int`, *optional*, defaults to `128`):
            Width, a multiple of 8; there are 4 attention heads.
        intermediate_size (`int`, *optional*, defaults to `352`):
            Width of the feed-forward layers.
        num_layers (`int`, *optional*, defaults to `3`):
            Depth.
        steps (`int`, *optional*, defaults to `1200`):
            Optimizer steps.
        batch_size (`int`, *optional*, defaults to `64`):
            Texts per step.
        learning_rate (`float`, *optional*, defaults to `3e-3`):
            Peak, reached after 50 steps and held for 30 % of the steps, then linear decay to 0.
        demonstrations (`float`, *optional*, defaults to `0.5`):
            Share of the texts that are worked answers; the others are biographies.
        seed (`int`, *optional*, defaults to `0`):
            Initial weights and texts.
    """

    hidden_size: int = 128
    intermediate_size: int = 352
    num_layers: int = 3
    steps: int = 1200
    batch_size: int = 64
    learning_rate: float = 3e-3
    demonstrations: float = 0.5
    seed: int = 0


def build_world_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """Word-level tokenizer of the world's texts, which decodes to exactly the text that was encoded.

    A token is a word, a punctuation mark or a tag, with or without the space before it; decoding only joins them. The
    tags of the answer format are ordinary tokens (they stay when special tokens are skipped); the markers of the chat
    are special.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    units = [*TAGS, ".", ",", "?", "!", *world.words()]
    pieces = [PAD, BOS, EOS, UNK, USER, ASSISTANT, " ", "\n", *units, *(f" {unit}" for unit in units)]
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?(?:</?(?:think|answer)>|\w+|[^\w\s])|\s"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=256,
        chat_template=CHAT_TEMPLATE,
    )


def build_world_model(
    config: WorldConfig | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    model_config: WorldModelConfig | None = None,
    *,
    steps: int | None = None,
    num_threads: int | None = 1,
    progress: bool = True,
) -> Path:
    """Trains the model of a world from scratch, or returns the one that was trained before.

    The directory holds configuration, safetensors weights, generation configuration, tokenizer with chat template and
    `world.json` ([`load_world`]). It is written under another name and renamed when it is complete: a killed build
    leaves no half model, and of two processes that build the same one at once the second to finish uses the first's.

    Args:
        config ([`WorldConfig`], *optional*):
            The world.
        output_dir (`str` or `os.PathLike`, *optional*):
            Where to put the model. Defaults to a directory named after the hash of all settings under
            `$HF_FACTUALITY_CACHE`, or under `~/.cache/hf_factuality`.
        model_config ([`WorldModelConfig`], *optional*):
            Size and training of the model.
        steps (`int`, *optional*):
            Replaces `model_config.steps`; a few make a bad model in seconds, for tests.
        num_threads (`int`, *optional*, defaults to `1`):
            Threads of torch during the build; `None` leaves them as they are. For matrices this small a second thread
            saves a fifth of the time on an idle machine and costs a multiple of it on a busy one.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar with the loss.

    Returns:
        `pathlib.Path`: the model directory.

    Raises:
        `CheckpointError`: `output_dir` exists and holds something else than this model.
    """
    config = config if config is not None else WorldConfig()
    model_config = model_config if model_config is not None else WorldModelConfig()
    if steps is not None:
        model_config = replace(model_config, steps=steps)
    record = {"version": VERSION, "world": asdict(config), "model": asdict(model_config)}
    if output_dir is None:
        key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
        target = _cache_dir() / "worlds" / key
    else:
        target = Path(output_dir)
    if _is_built(target, record):
        return target

    world = World(config)
    tokenizer = build_world_tokenizer(world)
    model = _train(world, tokenizer, model_config, num_threads, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _save(model, tokenizer, record, temporary)
        try:
            os.rename(temporary, target)
        except OSError:
            # Another process was quicker: its model is as good as ours. Anything else there is an error.
            if not _is_built(target, record):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def load_world(model_dir: str | os.PathLike[str]) -> World:
    """The world that a model directory was built for.

    Raises:
        `CheckpointError`: there is no readable `world.json`.
    """
    path = Path(model_dir) / WORLD_FILE
    try:
        return World(WorldConfig(**json.loads(path.read_text(encoding="utf-8"))["world"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not describe a world: {error}") from error


def _cache_dir() -> Path:
    return Path(os.environ.get("HF_FACTUALITY_CACHE") or Path.home() / ".cache" / "hf_factuality").expanduser()


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, record: dict[str, Any], folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / WORLD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    folder.chmod(0o755)  # mkdtemp makes it private


def _is_built(target: Path, record: dict[str, Any]) -> bool:
    """Whether `target` holds the model of `record`; raises if something else is in the way."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / WORLD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != record:
        raise CheckpointError(
            f"{target} holds something else than the requested world model; choose another directory"
        )
    return True


def _train(
    world: World, tokenizer: PreTrainedTokenizerFast, config: WorldModelConfig, num_threads: int | None, progress: bool
) -> PreTrainedModel:
    import torch
    import torch.nn.functional as F
    from tqdm.auto import tqdm
    from transformers import LlamaForCausalLM

    threads_before = torch.get_num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        # A build in the middle of somebody's run leaves their random numbers alone.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = LlamaForCausalLM(_llama_config(tokenizer, config))
        model.train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate(step, config.steps))
        average = None
        batches = _batches(world, tokenizer, config)
        with tqdm(total=config.steps, desc="world model", unit="step", mininterval=1.0, disable=not progress) as bar:
            for _ in range(config.steps):
                input_ids, labels, mean_tokens = next(batches)
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits
                # Not the mean of the batch: that would weigh short texts more, and the model would learn to say less.
                loss = F.cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
                loss = loss / mean_tokens
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
                bar.update()
                bar.set_postfix(loss=f"{average:.3f}", refresh=False)
    finally:
        torch.set_num_threads(threads_before)
    return model.eval()


def _llama_config(tokenizer: PreTrainedTokenizerFast, config: WorldModelConfig):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _learning_rate(step: int, steps: int) -> float:
    """Warm-up, plateau, linear decay to 0; as a factor of the peak."""
    return min(1.0, (step + 1) / 50) * min(1.0, (1 - step / steps) / 0.7)


def _batches(world: World, tokenizer: PreTrainedTokenizerFast, config: WorldModelConfig):
    """Yields `input_ids` and `labels`, both (B, L) and right-padded, and the usual number of labels in a batch.

    Texts of like length share a batch, which saves a quarter of the time. Prompts and padding have the label -100.
    """
    import torch

    rng = random.Random(f"texts {config.seed}")
    group = 16  # batches that are sorted by length together
    size = len(world.people)
    step = 0
    while True:
        # Few people at first: a model that has learnt to recall some facts picks up further ones much faster.
        progress = min(1.0, max(0.0, step / config.steps - 0.05) / 0.35)
        known = round(math.exp(math.log(min(40, size)) * (1 - progress) + math.log(size) * progress))
        texts = []
        for person in world.sample_people(rng, group * config.batch_size, known):
            if rng.random() < config.demonstrations:
                relation = rng.choice(RELATIONS)
                prompt = [{"role": "user", "content": world.question(person, relation)}]
                prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
                texts.append((prompt, world.demonstration(person, relation, rng)))
            else:
                texts.append((BOS, world.biography(person, rng)))
        prompts = tokenizer([prompt for prompt, _ in texts])["input_ids"]
        wholes = tokenizer([prompt + text + EOS for prompt, text in texts])["input_ids"]
        rows = sorted(zip(wholes, map(len, prompts), strict=True), key=lambda row: len(row[0]))
        batches = [rows[start : start + config.batch_size] for start in range(0, len(rows), config.batch_size)]
        rng.shuffle(batches)
        mean_tokens = sum(len(ids) - prompt_length for ids, prompt_length in rows) / len(batches)
        for batch in batches:
            length = max(len(ids) for ids, _ in batch)
            input_ids = torch.full((len(batch), length), tokenizer.pad_token_id)
            labels = torch.full((len(batch), length), -100)
            for row, (ids, prompt_length) in enumerate(batch):
                input_ids[row, : len(ids)] = torch.tensor(ids)
                labels[row, prompt_length : len(ids)] = torch.tensor(ids[prompt_length:])
            yield input_ids, labels, mean_tokens
            step += 1
