"""A causal language model of transformers in this process: prompts to tokens, seeded draws, exact log-likelihoods."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_factuality.generation.base import Backend, ChatRequest, cut


if TYPE_CHECKING:  # both are loaded when a model is asked
    import torch
    from transformers import DynamicCache, LogitsProcessorList, StoppingCriteriaList


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


class CausalModel(Backend):
    """A model (or `PeftModel`) in this process in terms of tokens; `batch_size` rows go through it at once."""

    model: Any = None
    batch_size: int
    prompt_format: str = "chat"

    def _use(self, model: Any, tokenizer: Any) -> None:
        from transformers import GenerationMixin

        self.model, self.tokenizer = model, tokenizer
        # A `generate` of the model's own may return something else, and vision-language models keep the positions of the batch
        # before.
        own = getattr(type(base_model(model)), "generate", None) is not GenerationMixin.generate
        self._reads_once = not own and not any(hasattr(module, "rope_deltas") for module in model.modules())
        self._keeps_logits = "logits_to_keep" in inspect.signature(base_model(model).forward).parameters

    def _ends(self) -> set[int]:
        """Tokens that end a completion: those of the model's generation settings, and its tokenizer's."""
        found = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        known = {found} if isinstance(found, int) else set(found or ())
        return known | ({getattr(self.tokenizer, "eos_token_id", None)} - {None})

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
        """Ids of a rendered prompt: a template writes the tokens that begin a text itself; a plain text gets those that its
        tokenizer adds, without an end."""
        bare = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self.prompt_format == "chat":
            return bare
        ids = self.tokenizer(text)["input_ids"]
        return ids[:-1] if len(ids) > len(bare) and ids[-1] in self._ends() and ids[-1:] != bare[-1:] else ids

    def _padded(self, rows: Sequence[Sequence[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and attention mask (1: a token), both int64 of shape (B, T)."""
        import torch

        side, pad = "left" if left else "right", torch.nn.utils.rnn.pad_sequence
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        tokens = pad(tensors, True, self._padding(), side)
        mask = pad([torch.ones_like(tensor) for tensor in tensors], True, 0, side)
        device = self.model.get_input_embeddings().weight.device
        return tokens.to(device), mask.to(device)

    def _text(self, row: Sequence[int], stop: Sequence[str] = ()) -> tuple[str, str]:
        """Text up to the first token or text that ends it, and `"stop"` or `"length"`."""
        ended = bool(row) and row[-1] in self._ends()
        text, stopped = cut(self.tokenizer.decode(row[: len(row) - ended], skip_special_tokens=True), stop)
        return text, "stop" if stopped or ended else "length"

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Around each pass of the model, and never around what the caller does between two of them."""
        import torch

        with torch.inference_mode():
            yield

    def _complete(
        self, rows: Sequence[tuple[Any, Sequence[int], int, ChatRequest]]
    ) -> Iterator[tuple[Any, list[int]]]:
        """For rows of (key, ids of the prompt, seed, settings): key and new tokens, with the one that ends them. What a row
        says does not depend on its batch, nor on the model's own generation settings (a repetition penalty, top-k). The
        longest prompts come first, so that what does not fit into memory fails at once."""
        from transformers import GenerationConfig

        groups: dict[ChatRequest, list[tuple]] = {}
        for row in rows:
            groups.setdefault(replace(row[-1], messages=(), seed=None, chat_template_kwargs={}), []).append(row)
        ends = self._ends()
        for request, group in groups.items():
            group.sort(key=lambda row: (len(row[1]), row[1]), reverse=True)  # equal prompts beside each other
            settings = GenerationConfig(
                max_new_tokens=request.max_new_tokens,
                do_sample=False,  # the draws are made by the processors, row by row
                use_cache=True,
                eos_token_id=sorted(ends) or None,
                pad_token_id=self._padding(),
            )
            stops = _stops(self.tokenizer, request.stop)
            for start in range(0, len(group), self.batch_size):
                keys, prompts, seeds, _ = zip(*group[start : start + self.batch_size], strict=True)
                with self._asking(), _default_generation(base_model(self.model)):
                    tokens, mask = self._padded(prompts, left=True)
                    found = self.model.generate(
                        input_ids=tokens,
                        attention_mask=mask,
                        past_key_values=self._read_once(prompts, tokens, mask),
                        generation_config=settings,
                        logits_processor=processors(request, seeds),
                        stopping_criteria=stops,
                    )
                for key, row in zip(keys, found[:, tokens.shape[1] :].tolist(), strict=True):
                    end = next((place for place, token in enumerate(row) if token in ends), len(row))
                    yield key, row[: end + 1]

    def _read_once(
        self, prompts: Sequence[Sequence[int]], tokens: torch.Tensor, mask: torch.Tensor
    ) -> DynamicCache | None:
        """Keys and values of the prompts but for their last tokens, where several rows answer one prompt: each is read once.

        `None` where that would save little, or where the model keeps something else (a sliding window, a state, a prefix).
        """
        import torch
        from transformers import DynamicCache, GenerationConfig
        from transformers.cache_utils import DynamicLayer

        places: dict[tuple[int, ...], int] = {}
        for number, prompt in enumerate(prompts):
            places.setdefault(tuple(prompt), number)
        if 2 * len(places) > len(prompts) or tokens.shape[1] < 2 or not self._reads_once:
            return None
        first = torch.tensor(list(places.values()), device=tokens.device)
        # Positions and masks of padded rows are those of `generate`, which reads the prompt and adds a token that is left out.
        settings = GenerationConfig(
            max_new_tokens=1,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            pad_token_id=self._padding(),
        )
        cache = self.model.generate(
            input_ids=tokens[first], attention_mask=mask[first], generation_config=settings
        ).past_key_values
        plain = type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)
        if not plain or cache.get_seq_length() != tokens.shape[1]:  # a learnt prefix is in the cache, too
            self._reads_once = False
            return None
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., :-1, :], layer.values[..., :-1, :]
        order = {prompt: number for number, prompt in enumerate(places)}
        # An index on the CPU fits layers of any device.
        cache.batch_select_indices(torch.tensor([order[tuple(prompt)] for prompt in prompts]))
        return cache

    def _scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[int, float]]:
        """Number of a pair of prompt and answer, and the answer's log-likelihood, the longest pairs first."""
        order = sorted(range(len(pairs)), key=lambda number: -sum(map(len, pairs[number])))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            with self._asking():
                found = self._log_likelihoods([pairs[number] for number in batch])
            yield from zip(batch, found, strict=True)

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


def _stops(tokenizer: Any, stop: Sequence[str]) -> StoppingCriteriaList:
    """What ends a row at one of the texts."""
    from transformers import StoppingCriteriaList, StopStringCriteria

    try:
        return StoppingCriteriaList([StopStringCriteria(tokenizer, list(stop))] if stop else [])
    except ValueError:  # of some tokenizers it does not find out what a token adds to a text; the answer is cut then
        return StoppingCriteriaList()


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
