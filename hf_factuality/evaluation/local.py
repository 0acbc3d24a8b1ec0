"""A model in this process that answers benchmarks: loaded by its name, named in the results, asked in any format."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.evaluation.engines import Request
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.generation.causal import CausalModel, render
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.hub.results import folder_fingerprint
from hf_factuality.io.upload import naming_model


logger = logging.getLogger(__name__)

DTYPES = ("auto", "float32", "bfloat16", "float16")
PROMPT_FORMATS = ("auto", "chat", "plain")


class LocalEngine(CausalModel):
    """A causal language model by name, a folder or an id on the Hub, of a model or of a PEFT adapter; `CheckpointError` if it
    cannot be loaded. Knows temperature and nucleus alone; each completion has its own seed."""

    generates = True

    def __init__(
        self,
        name: str,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int = 8,
        prompt_format: str = "auto",
        template_arguments: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ):
        for flag, value, known in (("dtype", dtype, DTYPES), ("prompt_format", prompt_format, PROMPT_FORMATS)):
            if value not in known:
                raise ValueError(f"`{flag}` must be one of {', '.join(known)}, got {value!r}")
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self._name, self._revision = name, revision
        folder = Path(name)
        self._folder = folder if folder.is_dir() else None
        if self._folder and (folder / "adapter_config.json").is_file() and not importlib.util.find_spec("peft"):
            raise ImportError(f"{folder.name} is an adapter, which needs peft: pip install hf_factuality[peft]")
        device = _device(device)
        common = {"revision": revision, "trust_remote_code": trust_remote_code}
        kind = dtype if dtype == "auto" else getattr(torch, dtype)
        placed = "auto" if device == "auto" else None
        try:
            with naming_model(name):
                model = AutoModelForCausalLM.from_pretrained(name, dtype=kind, device_map=placed, **common)
            tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_source(model), **common)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"`model` {name} cannot be loaded: {str(error):.500}") from error
        self._use((model if device == "auto" else model.to(device)).eval(), tokenizer)
        self.chat = False
        self.use_format(prompt_format)
        self.template_arguments = dict(template_arguments or {})
        self.split_choices = 0

    def use_format(self, prompt_format: str) -> None:
        """Render prompts in another of [`PROMPT_FORMATS`] from now on."""
        template = self.tokenizer.chat_template is not None
        if prompt_format == "chat" and not template:
            raise ValueError(f"`prompt_format` chat: the tokenizer of {self._name} has no chat template; take plain")
        self.chat = template if prompt_format == "auto" else prompt_format == "chat"

    def _tokenizer_source(self, model: Any) -> str:
        if self._folder and not any(self._folder.glob("tokenizer*")) and not any(self._folder.glob("*.model")):
            return self._base(model) or self._name
        return self._name

    @staticmethod
    def _base(model: Any) -> str | None:
        """Model that an adapter stands on; `None` without an adapter."""
        adapters = getattr(model, "peft_config", None) or {}
        return next((config.base_model_name_or_path for config in adapters.values()), None)

    def identity(self) -> dict[str, Any]:
        """The entry `model` of the results; folders by their last name and a hash of their weights."""
        base = self._base(self.model)
        own = self._folder.resolve().name if self._folder else self._name
        found: dict[str, Any] = {
            "name": own if base is None else Path(base).name if Path(base).is_dir() else base,
            "revision": getattr(self.model.config, "_commit_hash", None) or (self._revision if base is None else None),
            "adapter": None if base is None else own,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "server": None,
        }
        if base is not None and not self._folder:
            found["adapter_revision"] = self._revision
        if self._folder:
            found["fingerprint"] = folder_fingerprint(self._folder)
        return found

    def settings(self) -> dict[str, Any]:
        return {
            "prompt_format": "chat" if self.chat else "plain",
            "chat_template_kwargs": self.template_arguments if self.chat else {},
        }

    def prompt(self, item: BenchmarkItem) -> str:
        """Text that the model is given."""
        return render(self.tokenizer, item.messages, self.chat, self.template_arguments)

    def _ends(self) -> set[int]:
        return self._settings_ends() or super()._ends()

    def _encode(self, text: str) -> list[int]:
        """Ids with the tokens that the tokenizer begins a text with (the template writes them itself), without an end."""
        plain = super()._encode(text)
        if self.chat:
            return plain
        ids = self.tokenizer(text)["input_ids"]
        return ids[:-1] if len(ids) > len(plain) and ids[-1] in self._ends() and ids[-1:] != plain[-1:] else ids

    def check(self, items: Sequence[BenchmarkItem], sampling: SamplingConfig | None) -> None:
        """Raises `DataError` if a prompt is empty, or does not fit into the model with what is to follow it."""
        self.split_choices, positions = 0, self._positions()
        for item in items:
            for text in (self.prompt(item), *item.choices):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    message = f"item {item.id!r} holds half of a surrogate pair: {error}; repair its text"
                    raise DataError(message) from None
            if sampling is None:
                lengths = [len(prompt) + len(choice) for prompt, choice in self._pairs(item)]
                needed, what = max(lengths, default=0), "its longest choice"
            else:
                prompt = len(self._encode(self.prompt(item)))
                if not prompt:
                    raise DataError(f"item {item.id!r} has an empty prompt")
                needed, what = prompt + sampling.max_new_tokens, f"`max_new_tokens` {sampling.max_new_tokens}"
            if positions and needed > positions:
                fix = "" if sampling is None else f"; lower it by {needed - positions}"
                size = f"{needed} tokens, and the model has {positions} positions"
                raise DataError(f"item {item.id!r}: the prompt and {what} are {size}{fix}")
        if self.split_choices:
            logger.warning("%d choices merge with their prompt and were encoded apart", self.split_choices)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        """A completion per request, the longest prompts first."""
        ids = {request.item.id: self._encode(self.prompt(request.item)) for request in requests}
        seed = sampling.seed
        rows = [(it, ids[it.item.id], it.seed(seed), it.chat(sampling)) for it in requests]
        for request, text, reason in self._complete(rows):
            yield request, ChatAnswer(text, reason)

    @torch.inference_mode()
    def log_likelihoods(self, items: Sequence[BenchmarkItem]) -> Iterator[tuple[str, list[float]]]:
        """Per item the log-probabilities of its choices, as soon as the last of them is known."""
        pairs = [(item.id, number, pair) for item in items for number, pair in enumerate(self._pairs(item))]
        found: dict[str, list[float | None]] = {item.id: [None] * len(item.choices) for item in items}
        for place, value in self._scored([pair for _, _, pair in pairs]):
            name, number, _ = pairs[place]
            found[name][number] = value
            if None not in found[name]:
                yield name, found.pop(name)

    def _pairs(self, item: BenchmarkItem) -> list[tuple[list[int], list[int]]]:
        """Per choice, tokens of the prompt and of the choice, encoded together but where that changes the prompt's (which
        `split_choices` counts)."""
        text = self.prompt(item)
        prompt = self._encode(text)
        pairs = []
        for choice in item.choices:
            tokens = self._encode(text + choice)
            if tokens[: len(prompt)] == prompt and len(tokens) > len(prompt):
                tokens = tokens[len(prompt) :]
            else:
                tokens = self._continuation(choice)
                self.split_choices += 1
            if not prompt or not tokens:
                raise DataError(f"item {item.id!r}: the {'choice' if prompt else 'prompt'} is empty: {choice!r:.100}")
            pairs.append((prompt, tokens))
        return pairs

    def _continuation(self, choice: str) -> list[int]:
        # Behind another character, since some tokenizers put a space before the first word of a text.
        mark = self.tokenizer("\n", add_special_tokens=False)["input_ids"]
        both = self.tokenizer("\n" + choice, add_special_tokens=False)["input_ids"]
        if mark and both[: len(mark)] == mark:
            return both[len(mark) :]
        return self.tokenizer(choice, add_special_tokens=False)["input_ids"]


def _device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "auto":
        return name
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"`device` must be cpu, cuda, cuda:NUMBER or auto, got {name!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` {name}: there is no CUDA device; take cpu")
    return name
