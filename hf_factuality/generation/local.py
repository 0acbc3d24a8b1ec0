"""A chat client without a server: the model in this process, such as the policy that is being trained.

[`LocalChat`] answers what [`~hf_factuality.generation.client.ChatClient`] answers, so every judge and extractor takes
either. Differs from a server in two ways: a constrained choice is exact, and the model is left as it was found.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import JudgingError
from hf_factuality.generation.base import ChatAnswer, ChatRequest, TokenLogprobs
from hf_factuality.generation.causal import CausalModel, processors, render


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

# Of a model whose configuration does not say how much it can read.
_MAX_LENGTH = 4096
# Two calls on one model at once would restore each other's state; clients may share a model.
_LOCK = threading.Lock()


class LocalChat(CausalModel):
    """Chat requests answered by a model in this process, in batches.

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
        names = ("adapter", "batch_size", "max_length", "seed", "template_kwargs")
        return {name: getattr(self, name) for name in names}

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
        kind = type(model).__name__
        if not callable(getattr(model, "generate", None)) or not hasattr(model, "config"):
            raise ValueError(f"a {kind} cannot generate; hand over the model, as from accelerator.unwrap_model(model)")
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"{kind} is an encoder-decoder; a decoder-only model is needed")
        if tokenizer is None:
            raise ValueError("the model needs its tokenizer: bind(model, tokenizer)")
        if getattr(tokenizer, "chat_template", None) is None:
            raise ValueError("the tokenizer has no chat template; set tokenizer.chat_template")
        if self.adapter == "base" and not _has_adapter(model):
            raise ValueError(f'adapter="base" switches a PEFT adapter off, and {kind} has none')
        self._use(model, tokenizer)
        return self

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """One [`~hf_factuality.generation.client.ChatAnswer`] per request, in order; equal requests have one answer.

        A prompt that the chat template refuses or that leaves no room for an answer has an `error`. `JudgingError`: no model
        is bound, its parameters are split over processes, or `adapter="base"` meets an adapter that is merged into the
        weights.
        """
        if not requests:
            return []
        if self.model is None:
            raise JudgingError(
                "this judge has no model yet: call bind(model, tokenizer) or bind_policy(verifier, ...)"
            )
        answers: dict[ChatRequest, ChatAnswer] = {}
        chosen: dict[ChatRequest, list[tuple[list[int], list[int]]]] = {}
        free = []
        for request in dict.fromkeys(requests):
            try:
                prompt, pairs, limit = self._tokens(request)
            except _Unanswerable as error:
                answers[request] = ChatAnswer(error=str(error))
                continue
            if pairs:
                chosen[request] = pairs
            else:
                free.append((request, prompt, self._seed(request), replace(request, max_new_tokens=limit)))
        with _LOCK, self._judging():
            scores = dict(self._scored([pair for pairs in chosen.values() for pair in pairs]))
            numbers = iter(range(len(scores)))
            for request, pairs in chosen.items():
                answers[request] = self._answer(request, [scores[next(numbers)] for _ in pairs])
            for request, text, reason in self._complete(free):
                answers[request] = ChatAnswer(text, reason)
        return [answers[request] for request in requests]

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Eval mode without gradients; afterwards everything is as before."""
        import torch

        model = self.model
        parameters = list(model.parameters())
        if any(hasattr(parameter, "ds_id") and parameter.numel() == 0 for parameter in parameters):
            raise JudgingError("ZeRO-3 has split the model's parameters; gather them, or judge through a server")
        if model.training and threading.current_thread() is not threading.main_thread() and not self._warned:
            self._warned = True
            logger.warning(
                "the model in training judges on a thread of its own: a time-out would leave it in eval mode while training "
                "goes on. Set verifier_timeout far above what judging takes."
            )
        modes = [(module, module.training) for module in model.modules()]
        gradients = [(parameter, parameter.requires_grad) for parameter in parameters]
        device = next(model.parameters()).device
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

    def _tokens(self, request: ChatRequest) -> tuple[list[int], list[tuple[list[int], list[int]]], int]:
        """Of the prompt; of prompt and answer for each allowed one; and how many the answer may have."""
        from jinja2 import TemplateError

        messages = [{"role": role, "content": content} for role, content in request.messages]
        try:
            text = render(self.tokenizer, messages, True, {**self.template_kwargs, **request.chat_template_kwargs})
        except TemplateError as error:
            raise _Unanswerable(f"the chat template refuses the conversation: {error}") from None
        prompt = self._encode(text)
        # Each for itself, as a model begins its answer: some tokenizers put a space before the first word of a text.
        pairs = [(prompt, self._encode(choice)) for choice in request.choices]
        if any(one != other and other.startswith(one) for one in request.choices for other in request.choices):
            end = self.tokenizer.eos_token_id
            pairs = pairs if end is None else [(before, [*ids, end]) for before, ids in pairs]
        known = self._positions() or _MAX_LENGTH
        whole = min(known, self.max_length or known)
        room = whole - len(prompt)
        if room < max((len(ids) for _, ids in pairs), default=1):
            left = f"{max(room, 0)} of {whole}"
            raise _Unanswerable(f"not asked: the prompt has {len(prompt)} tokens, which leaves {left} for the answer")
        # Rows share a batch only if they share a limit, so one that is set by the length of the prompt is rounded down.
        limit = request.max_new_tokens if request.max_new_tokens <= room else room - room % 64 or room
        return prompt, pairs, limit

    def _answer(self, request: ChatRequest, scores: list[float]) -> ChatAnswer:
        import torch

        if not all(map(math.isfinite, scores)):
            return ChatAnswer(error="the model's probabilities are not finite")
        known = torch.tensor([scores], dtype=torch.float64).log_softmax(-1)
        text = request.choices[int(processors(request, [self._seed(request)])(None, known).argmax())]
        # The probability of a choice may be too small for a float; its logarithm must stay finite.
        logarithms = known.clamp(min=math.log(1e-300))[0].tolist()
        return ChatAnswer(text, "stop", (TokenLogprobs(text, tuple(zip(request.choices, logarithms, strict=True))),))

    def _seed(self, request: ChatRequest) -> int:
        """Of the draws of one request: the same for the same seed and messages, whatever else is asked."""
        if not request.temperature:
            return 0
        key: tuple = (request.seed, request.messages)
        if request.seed is None:
            self._drawn += 1
            key = (self.seed, self._drawn, "unseeded")
        return random.Random(repr(key)).getrandbits(63)


class _Unanswerable(Exception):
    """A request that cannot be put to the model."""


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
    found = local_chats(verifier)
    for client in found:
        client.bind(model, tokenizer)
    return len(found)


def local_chats(verifier: Any) -> list[LocalChat]:
    """The clients of a verifier that ask a model of this process, each once."""
    seen: dict[int, Any] = {}
    open_ = [verifier]
    while open_:
        part = open_.pop()
        if part is None or id(part) in seen:
            continue
        seen[id(part)] = part
        if not isinstance(part, LocalChat):
            open_ += [getattr(part, name, None) for name in ("verifier", "extractor", "retriever", "judge", "client")]
            open_ += getattr(part, "judges", None) or ()
    return [part for part in seen.values() if isinstance(part, LocalChat)]


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


def _restore(modes: Sequence[tuple[Any, bool]], gradients: Sequence[tuple[Any, bool]]):
    for module, training in modes:
        module.training = training
    for parameter, required in gradients:
        if parameter.requires_grad != required:
            parameter.requires_grad_(required)
