"""A chat client without a server: the model in this process, such as the policy that is being trained.

[`LocalChat`] answers what [`~hf_factuality.chat.client.ChatClient`] answers, so every judge and extractor takes
either. Differs from a server in two ways: a constrained choice is exact, and the model is left as it was found.
"""

from __future__ import annotations

import inspect
import logging
import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.chat.client import ChatAnswer, ChatRequest, TokenLogprobs
from hf_factuality.errors import JudgingError


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


__all__ = ["LocalChat", "bind_policy"]

logger = logging.getLogger(__name__)

# Of a model whose configuration does not say how much it can read.
_MAX_LENGTH = 4096
# Two calls on one model at once would restore each other's state; clients may share a model.
_LOCK = threading.Lock()


@dataclass
class _Row:
    """A request as tokens: of its prompt, and of each allowed answer."""

    request: ChatRequest
    prompt: list[int]
    choices: list[list[int]]
    limit: int  # tokens of the answer


class LocalChat:
    """Chat requests answered by a model in this process, in batches padded on the left.

    A request with `choices` is answered by the likelihoods of the whole answers: the most likely one at temperature 0,
    else one drawn. Their probabilities among the choices come with the answer, as one "token" per choice. (The end of
    the turn counts only where one choice begins with another.) Other requests are generated; each row has its own
    temperature, nucleus and stream of random numbers, so a draw does not depend on what else is in the batch.

    Runs in eval mode without gradients. Afterwards the training mode of every module, adapters, `requires_grad` and the
    random number generators are as before; parameters, configuration and gradient checkpointing are not touched.

    Args:
        model (`PreTrainedModel` or `PeftModel`, *optional*):
            The unwrapped model; may come later, by [`LocalChat.bind`].
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            With a chat template.
        adapter (`str`, *optional*, defaults to `"policy"`):
            `"policy"`: the model as it is. `"base"`: with its PEFT adapter switched off, which is the reference policy.
        batch_size (`int`, *optional*, defaults to `16`):
            Sequences in a forward pass; every allowed answer is one.
        max_length (`int`, *optional*):
            Tokens of prompt and answer together. `None`: what the model's configuration allows.
        seed (`int`, *optional*, defaults to `0`):
            For requests that are sampled without a seed of their own.
        template_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        `ValueError`: an argument is out of range, or see [`LocalChat.bind`].

    Example:

        >>> client = LocalChat(model, tokenizer)
        >>> client.chat([ChatRequest((("user", "Is water wet?"),), choices=("yes", "no"))])[0].text
        'yes'
    """

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        adapter: str = "policy",
        batch_size: int = 16,
        max_length: int | None = None,
        seed: int = 0,
        template_kwargs: Mapping[str, Any] | None = None,
    ):
        if adapter not in ("policy", "base"):
            raise ValueError(f'adapter must be "policy" or "base" (the adapter switched off), got {adapter!r}')
        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"batch_size and max_length must be at least 1, got {batch_size!r} and {max_length!r}")
        self.model: Any = None
        self.tokenizer: Any = tokenizer
        self.adapter = adapter
        self.batch_size = batch_size
        self.max_length = max_length
        self.seed = seed
        self.template_kwargs = dict(template_kwargs or {})
        self._drawn = 0
        self._warned = False
        if model is not None:
            self.bind(model, tokenizer)

    def __repr__(self) -> str:
        name = "not bound" if self.model is None else type(self.model).__name__
        return f"{type(self).__name__}({name}, adapter={self.adapter!r})"

    def config(self) -> dict[str, Any]:
        """Arguments that make this client again; the model is left out and must be bound again."""
        return {
            name: getattr(self, name) for name in ("adapter", "batch_size", "max_length", "seed", "template_kwargs")
        }

    def bind(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> LocalChat:
        """Use this model from now on; returns itself.

        Args:
            model (`PreTrainedModel` or `PeftModel`):
                The model itself, not DistributedDataParallel's or another wrapper.
            tokenizer (`PreTrainedTokenizerBase`, *optional*):
                `None`: the one it has.

        Raises:
            `ValueError`: the model cannot generate, is an encoder-decoder or has no adapter to switch off, or the
                tokenizer is missing or has no chat template.
        """
        tokenizer = tokenizer if tokenizer is not None else self.tokenizer
        if not callable(getattr(model, "generate", None)) or not hasattr(model, "config"):
            raise ValueError(
                f"a {type(model).__name__} cannot generate; hand over the model itself, as from "
                "accelerator.unwrap_model(model)"
            )
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"{type(model).__name__} is an encoder-decoder; a decoder-only model is needed")
        if tokenizer is None:
            raise ValueError("the model needs its tokenizer: bind(model, tokenizer)")
        if getattr(tokenizer, "chat_template", None) is None:
            raise ValueError("the tokenizer has no chat template; set tokenizer.chat_template")
        if self.adapter == "base" and not _has_adapter(model):
            raise ValueError(f'adapter="base" switches a PEFT adapter off, and {type(model).__name__} has none')
        self.model, self.tokenizer = model, tokenizer
        return self

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """One [`~hf_factuality.chat.client.ChatAnswer`] per request, in order; equal requests have one answer.

        A prompt that the chat template refuses or that leaves no room for an answer has an `error`.

        Raises:
            `JudgingError`: no model is bound, its parameters are split over processes, or `adapter="base"` meets an
                adapter that is merged into the weights.
        """
        if not requests:
            return []
        if self.model is None:
            raise JudgingError(
                "this judge has no model yet: call bind(model, tokenizer), or bind_policy(verifier, ...)"
            )
        answers: dict[ChatRequest, ChatAnswer] = {}
        chosen: list[_Row] = []
        free: dict[int, list[_Row]] = {}
        for request in dict.fromkeys(requests):
            try:
                row = self._encode(request)
            except _Unanswerable as error:
                answers[request] = ChatAnswer(error=str(error))
                continue
            if request.choices:
                chosen.append(row)
            else:
                free.setdefault(row.limit, []).append(row)
        with _LOCK, self._judging():
            self._choose(chosen, answers)
            for limit, rows in free.items():
                rows.sort(key=lambda row: len(row.prompt), reverse=True)
                for start in range(0, len(rows), self.batch_size):
                    self._generate(rows[start : start + self.batch_size], limit, answers)
        return [answers[request] for request in requests]

    # -- the model's state --------------------------------------------------------------------------------------------

    @contextmanager
    def _judging(self) -> Iterator[None]:
        import torch

        model = self.model
        parameters = list(model.parameters())
        if any(hasattr(parameter, "ds_id") and parameter.numel() == 0 for parameter in parameters):
            raise JudgingError(
                "the model's parameters are split over processes (DeepSpeed ZeRO-3); gather them around the call, or judge "
                "through a server"
            )
        if model.training and threading.current_thread() is not threading.main_thread() and not self._warned:
            self._warned = True
            logger.warning(
                "the model that is being trained judges on a thread of its own: should a time-out give that thread up, "
                "training would go on while it holds the model in eval mode. Set verifier_timeout far above what judging takes."
            )
        modes = [(module, module.training) for module in model.modules()]
        gradients = [(parameter, parameter.requires_grad) for parameter in parameters]
        device = _device(model)
        with ExitStack() as stack:
            # Switching adapters on again makes all their weights trainable, also those that were frozen: put back last.
            stack.callback(_restore, modes, gradients)
            stack.enter_context(torch.no_grad())
            # Nothing below draws from the global generators; a model's own code may.
            stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
            if self.adapter == "base":
                stack.enter_context(_without_adapter(model))
            model.eval()
            yield

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _encode(self, request: ChatRequest) -> _Row:
        from jinja2 import TemplateError

        messages = [{"role": role, "content": content} for role, content in request.messages]
        try:
            prompt = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True, **self.template_kwargs
            )["input_ids"]
        except TemplateError as error:
            raise _Unanswerable(f"the chat template refuses the conversation: {error}") from None
        choices = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in request.choices]
        if any(one != other and other.startswith(one) for one in request.choices for other in request.choices):
            end = self.tokenizer.eos_token_id
            choices = choices if end is None else [[*ids, end] for ids in choices]
        room = self._room() - len(prompt)
        needed = max(map(len, choices), default=1)
        if room < needed:
            raise _Unanswerable(
                f"not asked: the prompt has {len(prompt)} tokens, which leaves {max(room, 0)} of {self._room()} for the "
                "answer"
            )
        # Rows share a batch only if they share a limit, so one that is set by the length of the prompt is rounded down.
        limit = request.max_tokens if request.max_tokens <= room else room - room % 64 or room
        return _Row(request, list(prompt), choices, limit)

    def _room(self) -> int:
        config = self.model.config
        get = getattr(config, "get_text_config", None)
        positions = getattr(get() if callable(get) else config, "max_position_embeddings", None) or _MAX_LENGTH
        return min(positions, self.max_length or positions)

    def _pad(self, sequences: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Ids, mask and positions of shape (N, L), padded on the left; any id will do where the mask is 0."""
        import torch

        width = max(map(len, sequences))
        padding = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        ids = torch.tensor([[padding] * (width - len(tokens)) + list(tokens) for tokens in sequences])
        mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in sequences])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        device = _device(self.model)
        batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return {name: tensor.to(device) for name, tensor in batch.items()}

    # -- constrained choice -------------------------------------------------------------------------------------------

    def _choose(self, rows: Sequence[_Row], answers: dict[ChatRequest, ChatAnswer]):
        pairs = [(row.prompt, choice) for row in rows for choice in row.choices]
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]), reverse=True)
        scores = [0.0] * len(pairs)
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            for i, score in zip(batch, self._log_likelihoods([pairs[i] for i in batch]), strict=True):
                scores[i] = score
        found = iter(scores)
        for row in rows:
            answers[row.request] = self._answer(row.request, [next(found) for _ in row.choices])

    def _log_likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log-probability of each answer after its prompt, summed over its tokens, in float32."""
        import torch

        batch = self._pad([prompt + answer for prompt, answer in pairs])
        longest = max(len(answer) for _, answer in pairs)
        accepted = inspect.signature(_base(self.model).forward).parameters
        if "position_ids" not in accepted:
            del batch["position_ids"]
        options = {"logits_to_keep": longest + 1} if "logits_to_keep" in accepted else {}
        logits = self.model(**batch, use_cache=False, **options).logits[:, -longest - 1 : -1].float()
        targets = batch["input_ids"][:, -longest:]
        found = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        lengths = torch.tensor([len(answer) for _, answer in pairs], device=found.device)
        places = torch.arange(longest, 0, -1, device=found.device)  # how far from the right end
        return found.masked_fill(places > lengths.unsqueeze(-1), 0.0).sum(-1).tolist()

    def _answer(self, request: ChatRequest, scores: list[float]) -> ChatAnswer:
        if not all(map(math.isfinite, scores)):
            return ChatAnswer(error="the model's probabilities are not finite")
        shares = _softmax(scores)
        best = max(range(len(shares)), key=shares.__getitem__)
        if request.temperature > 0:
            best = self._draw(request, _softmax([score / request.temperature for score in scores]))
        # The probability of a choice may be too small for a float; its logarithm must stay finite.
        known = tuple((text, math.log(max(p, 1e-300))) for text, p in zip(request.choices, shares, strict=True))
        text = request.choices[best]
        return ChatAnswer(text, "stop", (TokenLogprobs(text, known),))

    def _draw(self, request: ChatRequest, shares: Sequence[float]) -> int:
        """A choice from the nucleus of `shares`."""
        order = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)
        kept, total = [], 0.0
        for i in order:
            if kept and total >= request.top_p:
                break
            kept.append(i)
            total += shares[i]
        return self._stream(request).choices(kept, [shares[i] for i in kept])[0]

    def _stream(self, request: ChatRequest) -> random.Random:
        """Random numbers of one request: the same for the same seed and messages, whatever else is asked."""
        if request.seed is not None:
            return random.Random(repr((request.seed, request.messages)))
        self._drawn += 1
        return random.Random(repr((self.seed, self._drawn, "unseeded")))

    # -- free text ----------------------------------------------------------------------------------------------------

    def _generate(self, rows: Sequence[_Row], limit: int, answers: dict[ChatRequest, ChatAnswer]):
        from transformers import GenerationConfig, LogitsProcessorList

        batch = self._pad([row.prompt for row in rows])
        del batch["position_ids"]  # `generate` makes its own
        ends = self._ends()
        padding = self.tokenizer.pad_token_id
        settings = GenerationConfig(
            max_new_tokens=limit,
            do_sample=False,  # the draws are made below, row by row
            use_cache=True,
            eos_token_id=sorted(ends) or None,
            pad_token_id=padding if padding is not None else min(ends, default=0),
        )
        sampler = _Sampler([row.request for row in rows], [self._stream(row.request) for row in rows])
        with _default_generation(_base(self.model)):
            output = self.model.generate(
                **batch, generation_config=settings, logits_processor=LogitsProcessorList([sampler])
            )
        for row, ids in zip(rows, output[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((place for place, token in enumerate(ids) if token in ends), None)
            text = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
            answers[row.request] = ChatAnswer(text, "length" if end is None else "stop")

    def _ends(self) -> set[int]:
        found = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends = {found} if isinstance(found, int) else set(found or ())
        return ends | ({self.tokenizer.eos_token_id} - {None})


class _Unanswerable(Exception):
    """A request that cannot be put to the model."""


class _Sampler:
    """Logits processor that draws the next token itself and leaves nothing else possible.

    One random number per row and step from the row's own stream, through the inverse of the distribution function.
    """

    def __init__(self, requests: Sequence[ChatRequest], streams: Sequence[random.Random]):
        self.temperatures = [request.temperature for request in requests]
        self.top_p = [request.top_p for request in requests]
        self.streams = streams

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        rows = [i for i, temperature in enumerate(self.temperatures) if temperature > 0]
        if not rows:
            return scores

        def column(values):
            return torch.tensor(values, dtype=torch.float32, device=scores.device).unsqueeze(-1)

        warm = scores[rows].float() / column([self.temperatures[i] for i in rows])
        shares, tokens = warm.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = shares.cumsum(-1) - shares
        kept = (before < column([self.top_p[i] for i in rows])) | (
            torch.arange(shares.shape[-1], device=scores.device) == 0
        )
        mass = (shares * kept).cumsum(-1)
        wanted = column([self.streams[i].random() for i in rows]) * mass[:, -1:]
        place = torch.searchsorted(mass, wanted, right=True).clamp(max=shares.shape[-1] - 1)
        place = torch.minimum(place, kept.sum(-1, keepdim=True) - 1)
        drawn = torch.full_like(scores[rows], -math.inf).scatter(-1, tokens.gather(-1, place), 0.0)
        scores = scores.clone()
        scores[rows] = drawn
        return scores


def bind_policy(verifier: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> int:
    """Hand a model, such as a trainer's unwrapped policy, to every [`LocalChat`] of a verifier.

    Args:
        verifier ([`~hf_factuality.verifiers.VerifierPipeline`]):
            Its extractor, retriever and judge, the judges of an ensemble, and a verifier inside a guard or a pipeline of
            transformers are looked through.
        model (`PreTrainedModel` or `PeftModel`):
            See [`LocalChat.bind`].
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            See [`LocalChat.bind`].

    Returns:
        `int`: how many clients were found; 0 if the verifier asks no model of this process.
    """
    found: dict[int, LocalChat] = {}
    open_ = [verifier]
    while open_:
        part = open_.pop()
        if isinstance(part, LocalChat):
            found[id(part)] = part
            continue
        open_ += [getattr(part, name, None) for name in ("verifier", "extractor", "retriever", "judge", "client")]
        open_ += getattr(part, "judges", None) or ()
        open_ = [part for part in open_ if part is not None]
    for client in found.values():
        client.bind(model, tokenizer)
    return len(found)


def _softmax(scores: Sequence[float]) -> list[float]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / sum(weights) for weight in weights]


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device


def _base(model: Any) -> Any:
    """The model under a `PeftModel`, whose `forward` tells its arguments."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _has_adapter(model: Any) -> bool:
    return hasattr(model, "disable_adapter") or bool(getattr(model, "_hf_peft_config_loaded", False))


@contextmanager
def _without_adapter(model: Any) -> Iterator[None]:
    """Switch the adapter of a `PeftModel`, or of a model with transformers' own integration, off and on again."""
    if any(getattr(module, "merged", False) is True for module in model.modules()):
        raise JudgingError('adapter="base" needs an adapter that is not merged into the weights; unmerge it first')
    if hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            yield
        return
    # transformers' `enable_adapters` forgets the modules that are saved whole.
    layers = [module for module in model.modules() if callable(getattr(module, "enable_adapters", None))]
    layers = [layer for layer in layers if layer is not model and not layer.disable_adapters]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


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


def _restore(modes: Sequence[tuple[Any, bool]], gradients: Sequence[tuple[Any, bool]]):
    for module, training in modes:
        module.training = training
    for parameter, required in gradients:
        if parameter.requires_grad != required:
            parameter.requires_grad_(required)
