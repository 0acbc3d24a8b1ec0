"""A causal language model of transformers in this process: prompts to tokens, seeded draws, exact log-likelihoods."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_factuality.generation.base import ChatRequest, cut


if TYPE_CHECKING:  # both are loaded when a model is asked
    import torch
    from transformers import LogitsProcessorList


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    chat: bool,
    template_arguments: Mapping[str, Any] | None = None,
) -> str:
    """Text of a prompt, whose last message is continued if it is the assistant's.

    Without `chat` the contents stand one after the other, a line feed between them, without roles: for models that were
    not trained on chats.
    """
    if not chat:
        return "\n".join(message["content"] for message in messages)
    messages, arguments = list(messages), dict(template_arguments or {})
    if not messages or messages[-1]["role"] != "assistant":
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True, **arguments)
    except ValueError:  # templates that cut reasoning out of the assistant's messages
        start = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True, **arguments)
        prefill = messages[-1]["content"]
        return start if start.rstrip().endswith(prefill.strip()) else start + prefill


class SeededSampler:
    """Draws a token of each row from the row's own generator, so that a row's text does not depend on its batch.

    Adds Gumbel noise, after which the largest score is a sample of the softmax; decoding is then greedy. Rounding that
    depends on the shape of a batch can still change a token, mostly in half precision.
    """

    def __init__(self, seeds: Sequence[int]):
        self._seeds = seeds
        self._generators: list[torch.Generator] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of shape (B, V) with noise added."""
        import torch

        scores = scores.float()
        if not self._generators:
            self._generators = [torch.Generator(scores.device).manual_seed(seed) for seed in self._seeds]
        noise = torch.empty_like(scores)
        for row, generator in zip(noise, self._generators, strict=True):
            row.exponential_(generator=generator)
        return scores - noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_()


def processors(request: ChatRequest, seeds: Sequence[int]) -> LogitsProcessorList:
    """What makes greedy decoding a draw with one seed per row, by the settings of a request; empty at temperature 0."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    found = LogitsProcessorList()
    if request.temperature:
        if request.temperature != 1:
            found.append(TemperatureLogitsWarper(float(request.temperature)))
        if request.top_k:
            found.append(TopKLogitsWarper(request.top_k))
        if request.top_p < 1:
            found.append(TopPLogitsWarper(float(request.top_p)))
        if request.min_p:
            found.append(MinPLogitsWarper(float(request.min_p)))
        found.append(SeededSampler(seeds))
    return found


class CausalModel:
    """What all that ask a model (or `PeftModel`) in this process share; `batch_size` rows go through it at once."""

    model: Any = None

    def __init__(self, model: Any, tokenizer: Any, batch_size: int):
        self.batch_size = batch_size
        self._use(model, tokenizer)

    def _use(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._keeps_logits = "logits_to_keep" in inspect.signature(base_model(model).forward).parameters

    def _ends(self) -> set[int]:
        """Tokens that end a completion."""
        return self._settings_ends() | ({getattr(self.tokenizer, "eos_token_id", None)} - {None})

    def _settings_ends(self) -> set[int]:
        """Those of the model's generation settings."""
        found = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        return {found} if isinstance(found, int) else set(found or ())

    def _padding(self) -> int:
        known = getattr(self.tokenizer, "pad_token_id", None)
        return known if known is not None else min(self._ends(), default=0)

    def _positions(self) -> int | None:
        """Tokens that the model can read; `None` if its configuration does not say."""
        config = self.model.config
        get = getattr(config, "get_text_config", None)
        positions = getattr(get() if callable(get) else config, "max_position_embeddings", None)
        return positions if isinstance(positions, int) and positions > 0 else None

    def _encode(self, text: str) -> list[int]:
        """Ids of a rendered prompt: a template writes the tokens that begin a text itself."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _padded(self, rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and attention mask (1: a token), both int64 of shape (B, T)."""
        import torch

        side, pad = "left" if left else "right", torch.nn.utils.rnn.pad_sequence
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        tokens = pad(tensors, True, self._padding(), side)
        mask = pad([torch.ones_like(tensor) for tensor in tensors], True, 0, side)
        device = self.model.get_input_embeddings().weight.device
        return tokens.to(device), mask.to(device)

    def _texts(self, rows: Sequence[Sequence[int]], stop: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
        """Text up to the first token or text that ends it, and `"stop"` or `"length"`."""
        ends = self._ends()
        for row in rows:
            end = next((place for place, token in enumerate(row) if token in ends), None)
            text, stopped = cut(self.tokenizer.decode(row[:end], skip_special_tokens=True), stop)
            yield text, "stop" if stopped or end is not None else "length"

    def draw(self, prompts: Sequence[str], seed: int, **settings: Any) -> list[list[int]]:
        """New tokens for each rendered prompt by `generate`, all from one stream of random numbers, so that they depend
        on what is drawn together. The model's mode and the global random state are left alone.
        """
        import torch

        rows = {text: self._encode(text) for text in prompts}
        was_training = self.model.training
        self.model.eval()
        found: list[list[int]] = []
        try:
            with torch.inference_mode(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(seed)
                for first in range(0, len(prompts), self.batch_size):
                    batch = [rows[text] for text in prompts[first : first + self.batch_size]]
                    tokens, mask = self._padded(batch, left=True)
                    output = self.model.generate(
                        input_ids=tokens, attention_mask=mask, eos_token_id=sorted(self._ends()),
                        pad_token_id=self._padding(), **settings,
                    )  # fmt: skip
                    found += output[:, tokens.shape[1] :].tolist()
        finally:
            self.model.train(was_training)
        return found

    def _complete(self, rows: Sequence[tuple[Any, Sequence[int], int, ChatRequest]]) -> Iterator[tuple[Any, str, str]]:
        """For rows of (key, ids of the prompt, seed, settings): key, text and why it ended. What a row says does not
        depend on its batch, nor on the model's own generation settings (a repetition penalty, top-k). The longest
        prompts come first, so that what does not fit into memory fails at once."""
        from transformers import GenerationConfig

        groups: dict[ChatRequest, list[tuple]] = {}
        for row in rows:
            groups.setdefault(replace(row[-1], messages=(), seed=None), []).append(row)
        for request, group in groups.items():
            group.sort(key=lambda row: len(row[1]), reverse=True)
            settings = GenerationConfig(
                max_new_tokens=request.max_new_tokens,
                do_sample=False,  # the draws are made by the processors, row by row
                use_cache=True,
                eos_token_id=sorted(self._ends()) or None,
                pad_token_id=self._padding(),
                stop_strings=list(request.stop) or None,
            )
            more = {"tokenizer": self.tokenizer} if request.stop else {}
            for start in range(0, len(group), self.batch_size):
                keys, prompts, seeds, _ = zip(*group[start : start + self.batch_size], strict=True)
                tokens, mask = self._padded(prompts, left=True)
                draws = processors(request, seeds)
                with _default_generation(base_model(self.model)):
                    found = self.model.generate(
                        input_ids=tokens,
                        attention_mask=mask,
                        generation_config=settings,
                        logits_processor=draws,
                        **more,
                    )
                texts = self._texts(found[:, tokens.shape[1] :].tolist(), request.stop)
                for key, (text, reason) in zip(keys, texts, strict=True):
                    yield key, text, reason

    def _scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[int, float]]:
        """Number of a pair of prompt and answer, and the answer's log-likelihood, the longest pairs first."""
        order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            yield from zip(batch, self._log_likelihoods([pairs[number] for number in batch]), strict=True)

    def _log_likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Of a batch: log-probability of each answer after its prompt, summed over its tokens."""
        import torch

        tokens, mask = self._padded([prompt + answer for prompt, answer in pairs], left=False)
        starts = [len(prompt) - 1 for prompt, _ in pairs]
        # The logits of a whole vocabulary are large: only those that predict an answer are computed.
        places = {start + n for start, (_, answer) in zip(starts, pairs, strict=True) for n in range(len(answer))}
        kept = torch.tensor(sorted(places))
        more = {"logits_to_keep": kept} if self._keeps_logits else {}
        logits = self.model(input_ids=tokens, attention_mask=mask, use_cache=False, **more).logits
        if not self._keeps_logits:
            logits = logits[:, kept]
        sums = []
        for row, start, (_, answer) in zip(logits, starts, pairs, strict=True):
            first = int(torch.searchsorted(kept, start))
            scores = row[first : first + len(answer)].float().log_softmax(-1)
            wanted = torch.tensor(answer, device=scores.device)[:, None]
            sums.append(scores.gather(-1, wanted).double().sum().item())
        return sums


def base_model(model: Any) -> Any:
    """The model under a `PeftModel`, whose `forward` tells its arguments."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _default_generation(model: Any) -> Iterator[None]:
    """`generate` takes what the caller leaves open (penalties, biases, stop strings) from the model's own settings."""
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own
