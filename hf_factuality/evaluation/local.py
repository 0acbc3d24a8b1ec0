"""A model in this process, by transformers: completions with a seed each, and exact log-likelihoods of given texts."""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.evaluation.engines import Completion, Generation, Request
from hf_factuality.hub.results import folder_fingerprint
from hf_factuality.io.upload import naming_model


logger = logging.getLogger(__name__)

DTYPES = ("auto", "float32", "bfloat16", "float16")
PROMPT_FORMATS = ("auto", "chat", "plain")


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    chat: bool,
    template_arguments: Mapping[str, Any] | None = None,
) -> str:
    """Text of a prompt.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            Has the chat template.
        messages (`Sequence[Mapping[str, str]]`):
            With `role` and `content`. A last one of the assistant is continued.
        chat (`bool`):
            Whether to use the template. Otherwise the contents stand one after the other, a line feed between them,
            without roles: for models that were not trained on chats.
        template_arguments (`Mapping[str, Any]`, *optional*):
            Further arguments of the template, such as `enable_thinking`.

    Returns:
        `str`
    """
    if not chat:
        return "\n".join(message["content"] for message in messages)
    messages, arguments = list(messages), dict(template_arguments or {})
    if messages[-1]["role"] != "assistant":
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True, **arguments)
    except ValueError:  # templates that cut reasoning out of the assistant's messages
        start = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True, **arguments)
        prefill = messages[-1]["content"]
        return start if start.rstrip().endswith(prefill.strip()) else start + prefill


class SeededSampler(LogitsProcessor):
    """Draws a token of each row from its own generator, so that a row's text does not depend on its batch.

    Adds Gumbel noise, after which the largest score is a sample of the softmax; decoding is then greedy. Rounding that
    depends on the shape of a batch can still change a token, mostly in half precision.

    Args:
        seeds (`Sequence[int]`):
            One per row. What they draw differs between kinds of devices.
    """

    def __init__(self, seeds: Sequence[int]):
        self._seeds = seeds
        self._generators: list[torch.Generator] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of shape (B, V) with noise added."""
        scores = scores.float()
        if not self._generators:
            self._generators = [torch.Generator(scores.device).manual_seed(seed) for seed in self._seeds]
        noise = torch.empty_like(scores)
        for row, generator in zip(noise, self._generators, strict=True):
            row.exponential_(generator=generator)
        return scores - noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_()


class LocalEngine:
    """A causal language model and its tokenizer.

    Batches are sorted by length. Sampling knows temperature and nucleus alone: what the checkpoint's own generation
    settings ask for (a repetition penalty, top-k) is not used, so that every model is asked in the same way.

    Args:
        name (`str`):
            Id on the Hub or folder, of a model or of a PEFT adapter.
        revision (`str`, *optional*):
            Of the Hub.
        dtype (`str`, *optional*, defaults to `"auto"`):
            One of [`DTYPES`]; `"auto"` is the checkpoint's.
        device (`str`, *optional*):
            `"cpu"`, `"cuda:1"`, ...; `"auto"` spreads the model over all. By default CUDA if there is one.
        batch_size (`int`, *optional*, defaults to `8`):
            Rows of a forward pass.
        prompt_format (`str`, *optional*, defaults to `"auto"`):
            `"chat"`, `"plain"`, or the first if the tokenizer has a template; see [`render`].
        template_arguments (`Mapping[str, Any]`, *optional*):
            See [`render`].
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run the repository's own code.

    Raises:
        `ValueError`: an argument is none of those above, or there is no chat template to use.
        `CheckpointError`: the model cannot be loaded.
        `ImportError`: an adapter needs `peft`.
    """

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
                raise ValueError(f"--{flag} must be one of {', '.join(known)}, got {value!r}")
        if batch_size < 1:
            raise ValueError(f"--batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self._name, self._revision = name, revision
        folder = Path(name)
        self._folder = folder if folder.is_dir() else None
        if self._folder and (folder / "adapter_config.json").is_file() and not importlib.util.find_spec("peft"):
            raise ImportError(f"{folder.name} is an adapter, which needs peft: pip install hf_factuality[peft]")
        device = _device(device)
        common = {"revision": revision, "trust_remote_code": trust_remote_code}
        try:
            with naming_model(name):
                model = AutoModelForCausalLM.from_pretrained(
                    name,
                    dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                    device_map="auto" if device == "auto" else None,
                    **common,
                )
            self.tokenizer = AutoTokenizer.from_pretrained(self._tokenizer_source(model), **common)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"--model {name} cannot be loaded: {str(error):.500}") from error
        self.model = (model if device == "auto" else model.to(device)).eval()
        self.chat = False
        self.use_format(prompt_format)
        self.template_arguments = dict(template_arguments or {})
        ends = model.generation_config.eos_token_id
        ends = self.tokenizer.eos_token_id if ends is None else ends
        self._ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        self._pad = next(
            (token for token in (self.tokenizer.pad_token_id, *sorted(self._ends)) if token is not None), 0
        )
        # Otherwise `generate` fills what is not said here from it.
        self.model.generation_config = GenerationConfig(
            eos_token_id=sorted(self._ends) or None, pad_token_id=self._pad
        )
        self._keeps_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._positions = positions if isinstance(positions, int) and positions > 0 else None
        self.split_choices = 0

    def use_format(self, prompt_format: str) -> None:
        """Render prompts in another of [`PROMPT_FORMATS`] from now on."""
        template = self.tokenizer.chat_template is not None
        if prompt_format == "chat" and not template:
            raise ValueError(f"--prompt_format chat: the tokenizer of {self._name} has no chat template; take plain")
        self.chat = template if prompt_format == "auto" else prompt_format == "chat"

    def _tokenizer_source(self, model: Any) -> str:
        if self._folder and not any(self._folder.glob("tokenizer*")) and not any(self._folder.glob("*.model")):
            base = self._base(model)
            if base is not None:
                return base
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

    def _encode(self, text: str) -> list[int]:
        """Ids with the tokens that the tokenizer begins a text with (the template writes them itself), without an end."""
        plain = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self.chat:
            return plain
        ids = self.tokenizer(text)["input_ids"]
        return ids[:-1] if len(ids) > len(plain) and ids[-1] in self._ends and ids[-1:] != plain[-1:] else ids

    def check(self, items: Sequence[BenchmarkItem], generation: Generation | None) -> None:
        """Raises `DataError` if a prompt is empty, or does not fit into the model with what is to follow it."""
        self.split_choices = 0
        for item in items:
            for text in (self.prompt(item), *item.choices):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise DataError(
                        f"item {item.id!r} holds half of a surrogate pair, which no tokenizer reads: {error}; repair its text"
                    ) from None
            if generation is None:
                lengths = [len(prompt) + len(choice) for prompt, choice in self._pairs(item)]
                needed, what = max(lengths, default=0), "its longest choice"
            else:
                prompt = len(self._encode(self.prompt(item)))
                if not prompt:
                    raise DataError(f"item {item.id!r} has an empty prompt")
                needed, what = prompt + generation.max_new_tokens, f"--max_new_tokens {generation.max_new_tokens}"
            if self._positions and needed > self._positions:
                fix = "" if generation is None else f"; lower it by {needed - self._positions}"
                raise DataError(
                    f"item {item.id!r}: the prompt and {what} are {needed} tokens, and the model has {self._positions} "
                    f"positions{fix}"
                )
        if self.split_choices:
            logger.warning(
                "%d choices were encoded apart from their prompt, since together they merge across the border",
                self.split_choices,
            )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], generation: Generation) -> Iterator[Completion]:
        """A completion per request, the longest prompts first, so that what does not fit into memory fails at once."""
        texts = {request.item.id: request.item for request in requests}
        ids = {name: self._encode(self.prompt(item)) for name, item in texts.items()}
        ordered = sorted(requests, key=lambda request: -len(ids[request.item.id]))
        for start in range(0, len(ordered), self.batch_size):
            batch = ordered[start : start + self.batch_size]
            prompts = [ids[request.item.id] for request in batch]
            tokens, mask = self._padded(prompts, left=True)
            processors = LogitsProcessorList()
            if generation.temperature:
                if generation.temperature != 1:
                    processors.append(TemperatureLogitsWarper(generation.temperature))
                if generation.top_p < 1:
                    processors.append(TopPLogitsWarper(generation.top_p))
                processors.append(SeededSampler([request.seed(generation.seed) for request in batch]))
            stops = {"stop_strings": list(generation.stop), "tokenizer": self.tokenizer} if generation.stop else {}
            found = self.model.generate(
                **stops,
                input_ids=tokens,
                attention_mask=mask,
                logits_processor=processors,
                max_new_tokens=generation.max_new_tokens,
                do_sample=False,
            )
            for request, row in zip(batch, found[:, tokens.shape[1] :].tolist(), strict=True):
                end = next((place for place, token in enumerate(row) if token in self._ends), None)
                text, stopped = generation.cut(self.tokenizer.decode(row[:end], skip_special_tokens=True))
                reason = "stop" if stopped or end is not None else "length"
                yield Completion(request.item.id, request.sample, text, reason)

    @torch.inference_mode()
    def log_likelihoods(self, items: Sequence[BenchmarkItem]) -> Iterator[tuple[str, list[float]]]:
        """Per item the log-probabilities of its choices, as soon as the last of them is known."""
        rows = [
            (item.id, number, prompt, choice)
            for item in items
            for number, (prompt, choice) in enumerate(self._pairs(item))
        ]
        rows.sort(key=lambda row: -len(row[2]) - len(row[3]))
        found: dict[str, list[float | None]] = {item.id: [None] * len(item.choices) for item in items}
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            values = self._sums([(prompt, choice) for _, _, prompt, choice in batch])
            for (name, number, _, _), value in zip(batch, values, strict=True):
                found[name][number] = value
            for name in dict.fromkeys(row[0] for row in batch):
                if None not in found[name]:
                    yield name, found.pop(name)

    def _pairs(self, item: BenchmarkItem) -> list[tuple[list[int], list[int]]]:
        """Per choice, tokens of the prompt, which are the same for all, and of the choice.

        The two are encoded together. Where that merges characters across the border, so that the prompt's tokens are not
        what they are without the choice, the choice is encoded for itself; `split_choices` counts how often.

        Raises:
            `DataError`: prompt or choice has no tokens.
        """
        text = self.prompt(item)
        prompt = self._encode(text)
        pairs = []
        for choice in item.choices:
            whole = self._encode(text + choice)
            if whole[: len(prompt)] == prompt and len(whole) > len(prompt):
                tokens = whole[len(prompt) :]
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

    def _sums(self, batch: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        tokens, mask = self._padded([prompt + choice for prompt, choice in batch], left=False)
        # The logits of a whole vocabulary are large: only those that predict a choice are computed.
        first = min(len(prompt) for prompt, _ in batch) - 1
        keep = {"logits_to_keep": tokens.shape[1] - first}
        logits = self.model(
            input_ids=tokens, attention_mask=mask, use_cache=False, **(keep if self._keeps_logits else {})
        ).logits
        if not self._keeps_logits:
            logits = logits[:, first:]
        sums = []
        for row, (prompt, choice) in zip(logits, batch, strict=True):
            start = len(prompt) - 1 - first
            scores = row[start : start + len(choice)].float().log_softmax(-1)
            wanted = torch.tensor(choice, device=scores.device)[:, None]
            sums.append(scores.gather(-1, wanted).double().sum().item())
        return sums

    def _padded(self, rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and attention mask (1: a token), both int64 of shape (B, T)."""
        width = max(map(len, rows))
        tokens = torch.full((len(rows), width), self._pad, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for number, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            tokens[number, place] = torch.tensor(row)
            mask[number, place] = 1
        device = self.model.get_input_embeddings().weight.device
        return tokens.to(device), mask.to(device)


def _device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "auto":
        return name
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda, cuda:NUMBER or auto, got {name!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: there is no CUDA device; take cpu")
    return name
