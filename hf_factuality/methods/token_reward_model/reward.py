"""A reward model that scores every token, read as a token reward function: its tokenizer need not be the policy's."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.verifiers.judges.pairs import default_device, outside_zero3, with_broken_tokens


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

PROCESSES = ("raw", "sigmoid", "softmax")
# Stands for the completion while a chat template is rendered: letters, which no template trims or escapes.
_MARK = "COMPLETIONxSTANDSxHERE"

Scored = tuple[int, int, float]


class _Frame(NamedTuple):
    """What stands around a completion, and whether the tokenizer adds its special tokens to it."""

    head: str
    tail: str = ""
    special: bool = True


class _Encoded(NamedTuple):
    """A text as the model reads it; of each token of the completion, its position, first character and end; tokens cut."""

    features: dict[str, list[int]]
    places: list[tuple[int, int, int]]
    missing: int


class TokenRewardModel:
    """Every token of the completion is paid the score that a token classifier gives it, at the characters it stands for.

    A token reward function of [`~hf_factuality.TokenRewardPPOTrainer`]. The reward model reads prompt and completion with
    its own tokenizer; what it returns are characters of the completion, so the policy's tokens may be others. A
    conversational prompt is rendered by the reward model's chat template, if it has one, with the completion as the
    assistant's message; without one, the contents of the messages stand above the completion. A prompt of plain text stands
    right before the completion, and the tokenizer adds its special tokens. A token that covers characters of prompt and
    completion belongs to the completion. Special tokens of the reward model that the policy spells out are read as
    ordinary text.

    What a token earns is `scale * (score - baseline)`. Scores of one sign also pay for length: if all are positive, a longer
    completion earns more. Set `baseline` to the score of an ordinary token, or `differences=True`.

    A completion that the model did not reach at all, or gave a score that is not a finite number, is unknown (`None`). Of
    one that does not fit as a whole, the tokens that were not scored carry nothing; they are counted, logged as
    `{name}/unscored_tokens`, and warned of once.

    Args:
        model (`str`, `Path` or `PreTrainedModel`):
            Name or folder of a token classifier (`AutoModelForTokenClassification`), or the loaded model, which is put into
            eval mode. A decoder that scores whole texts (`AutoModelForSequenceClassification` with the head `score`, as
            most reward models are) can be read at every token too: its score at a token is that of the text up to there,
            for which `differences=True` is meant.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Fast tokenizer of the model; needed with a loaded model, else loaded from the same place.
        label (`int` or `str`, *optional*):
            Which label's score counts, by number or name; needed if the model has several.
        process (`str`, *optional*, defaults to `"raw"`):
            `"raw"` (the logit), `"sigmoid"`, or `"softmax"` (the probability of `label` among the labels).
        scale (`float`, *optional*, defaults to `1.0`), baseline (`float`, *optional*, defaults to `0.0`):
            As above; a scale of -1 for a model that scores what is unwanted.
        differences (`bool`, *optional*, defaults to `False`):
            Pay the change from the token before (the first token: from `baseline`), so that a completion earns
            `scale * (score of its last scored token - baseline)` in total. With `gamma=1` this is potential-based shaping:
            the best policy is the one that a single reward of that size at the end would have. For a model that reads from
            left to right and whose score at a token rates the text up to it.
        prompt (`bool` or `Callable`, *optional*, defaults to `True`):
            Whether the prompt is read as context; or a function of a row's prompt that returns the text to put before the
            completion.
        batch_size (`int`, *optional*, defaults to `16`):
            Completions in a forward pass.
        max_length (`int`, *optional*):
            Tokens of prompt and completion that the model reads. `None`: what tokenizer and model allow. What is more is
            cut at the tokenizer's `truncation_side`.
        revision, device, dtype (*optional*):
            See [`~hf_factuality.verifiers.NLIJudge`]; scores are processed in float32.
        name (`str`, *optional*, defaults to `"token_reward_model"`):
            Under which it is logged; two of them in a run need two names.

    Raises:
        `CheckpointError`: the model cannot be loaded, or has no head that scores tokens.
        `ValueError`: an argument is out of range, a label is unknown or missing, or the tokenizer is not a fast one.
        `DataError`: when called, if there are no texts or prompts, or the chat template does not show the completion.

    Example:

    ```python
    reward = TokenRewardModel("my-org/token-reward-model", label="toxic", process="sigmoid", scale=-1.0)
    trainer = TokenRewardPPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", reward, args=args, train_dataset=dataset)
    ```
    """

    card_method = "reward_model"

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        label: int | str | None = None,
        process: str = "raw",
        scale: float = 1.0,
        baseline: float = 0.0,
        differences: bool = False,
        prompt: bool | Callable[[Any], str] = True,
        batch_size: int = 16,
        max_length: int | None = None,
        revision: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        name: str = "token_reward_model",
    ):
        if process not in PROCESSES:
            raise ValueError(f"process={process!r} is unknown; choose one of {list(PROCESSES)}")
        for option, value in (("scale", scale), ("baseline", baseline)):
            if not math.isfinite(value):
                raise ValueError(f"{option}={value!r} must be a finite number")
        for option, value in (("batch_size", batch_size), ("max_length", 1 if max_length is None else max_length)):
            if value < 1:
                raise ValueError(f"{option}={value!r} must be at least 1")
        if isinstance(model, (str, Path)):
            model, tokenizer = _load(str(model), tokenizer, revision, device, dtype)
        elif tokenizer is None:
            raise ValueError("a loaded model needs its tokenizer: TokenRewardModel(model, tokenizer)")
        elif device is not None or dtype is not None:
            model = model.to(device=device, dtype=dtype)
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} is a slow tokenizer, which does not say which characters its tokens stand for; "
                "pass a fast one (a tokenizer.json, or tokenizer=AutoTokenizer.from_pretrained(..., use_fast=True))"
            )
        self.__name__ = self.name = name
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.label = _label(model.config, label)
        if process == "softmax" and model.config.num_labels == 1:
            raise ValueError("process='softmax' of a single label is always 1; choose 'raw' or 'sigmoid'")
        self.process, self.scale, self.baseline, self.differences = process, scale, baseline, differences
        self.prompt, self.batch_size = prompt, batch_size
        self.max_length = _room(model, tokenizer) if max_length is None else max_length
        accepted = inspect.signature(model.forward).parameters
        self._features = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in accepted]
        self._features = self._features or ["input_ids", "attention_mask"]  # a wrapper that takes anything
        self._options = {"use_cache": False} if "use_cache" in accepted else {}
        self._warned: set[str] = set()

    @property
    def card_model(self) -> Any:
        return self.model

    def __call__(
        self, prompts=None, completions=None, completion_ids=None, completion_texts=None, log_metric=None, **columns
    ) -> list[list[Scored] | None]:
        """Per completion one `(start, end, value)` per token of the reward model, in order: the characters of the completion
        that the token stands for, and what it earns. `[]` for an empty completion, `None` where nothing is known.

        `prompts` are texts or lists of messages, not used with `prompt=False`. `log_metric` gets `{name}/score` (mean
        processed score of a token), `{name}/tokens` (scored tokens per completion), `{name}/unscored_tokens` and
        `{name}/unknown_completions` (both per call).
        """
        if completion_texts is None:
            raise DataError(
                "TokenRewardModel needs completion_texts; use it as a token_reward_funcs of TokenRewardPPOTrainer"
            )
        if self.prompt and prompts is None:
            raise DataError("TokenRewardModel reads the prompts; pass them, or set prompt=False")
        rows = self._encode(completion_texts, prompts)
        # Longest first: what does not fit into memory fails at once.
        order = sorted(
            (i for i, row in enumerate(rows) if row.places), key=lambda i: -len(rows[i].features["input_ids"])
        )
        scores: dict[int, list[float]] = {}
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            for index, found in zip(batch, self._forward([rows[i].features for i in batch]), strict=True):
                scores[index] = [found[position] for position, _, _ in rows[index].places]
        rewards: list[list[Scored] | None] = []
        for index, row in enumerate(rows):
            found = scores.get(index, [])
            known = all(map(math.isfinite, found)) and bool(found or not row.missing)
            earned = zip(row.places, self._earned(found), strict=True) if known else ()
            rewards.append([(a, b, value) for (_, a, b), value in earned] if known else None)
        self._report(rows, scores, rewards, log_metric)
        return rewards

    def _earned(self, scores: Sequence[float]) -> list[float]:
        before = [self.baseline, *scores] if self.differences else [self.baseline] * len(scores)
        return [self.scale * (score - other) for score, other in zip(scores, before, strict=False)]

    # Texts
    def _frame(self, prompt: Any) -> _Frame:
        if not self.prompt:
            return _Frame("")
        if callable(self.prompt):
            return _Frame(self.prompt(prompt))
        if isinstance(prompt, str):
            return _Frame(prompt)
        if not getattr(self.tokenizer, "chat_template", None):
            contents = [message["content"] for message in prompt]
            if not all(isinstance(content, str) for content in contents):
                raise DataError(f"the messages of a prompt must hold text, got {contents!r:.150}")
            return _Frame("".join(f"{content}\n" for content in contents))
        mark = _MARK
        while mark in str(prompt):
            mark += "x"
        messages = [*prompt, {"role": "assistant", "content": mark}]
        head, *tail = self.tokenizer.apply_chat_template(messages, tokenize=False).split(mark)
        if len(tail) != 1:
            raise DataError(
                f"the reward model's chat template shows the assistant's last message {len(tail)} times, so its characters "
                "cannot be found; pass prompt=a function that returns the text before the completion"
            )
        return _Frame(head, tail[0], False)

    def _encode(self, texts: Sequence[str], prompts: Sequence[Any] | None) -> list[_Encoded]:
        rows = []
        for text, prompt in zip(texts, [None] * len(texts) if prompts is None else prompts, strict=True):
            head, tail, special = self._frame(prompt)
            whole = f"{head}{with_broken_tokens(text, self.tokenizer)}{tail}"
            options = {"add_special_tokens": special, "return_offsets_mapping": True, "verbose": False,
                       "return_special_tokens_mask": True, "return_attention_mask": True}  # fmt: skip
            encoded, place = self.tokenizer(whole, **options), (whole, len(head), len(head) + len(text))
            places = all_places = _places(encoded, *place) if text else []
            if text and len(encoded["input_ids"]) > self.max_length:
                encoded = self.tokenizer(whole, truncation=True, max_length=self.max_length, **options)
                places = _places(encoded, *place)
            features = {name: encoded[name] for name in self._features if name in encoded}
            rows.append(_Encoded(features, places, len(all_places) - len(places)))
        return rows

    # The model
    def _forward(self, rows: Sequence[Mapping[str, list[int]]]) -> list[list[float]]:
        """Processed scores of every position, padding included."""
        import torch

        # Padded on the right whatever the tokenizer says: absolute positions then are those of the text alone.
        features = {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(row[name]) for row in rows],
                batch_first=True,
                padding_value=(self.tokenizer.pad_token_id or 0) if name == "input_ids" else 0,
            ).to(self.model.device)
            for name in rows[0]
        }
        with torch.no_grad():
            logits = self.model(**features, **self._options).logits.float()
            if self.process == "softmax":
                logits = logits.softmax(dim=-1)
            elif self.process == "sigmoid":
                logits = logits.sigmoid()
            return logits[:, :, self.label].tolist()

    # Logging
    def _report(self, rows, scores, rewards, log_metric) -> None:
        missing = sum(row.missing for row in rows)
        if missing:
            self._warn(
                "unscored_tokens",
                f"reads {self.max_length} tokens: {missing} of {sum(len(r.places) for r in rows) + missing} tokens of this "
                "batch's completions were not scored and carry nothing; shorten prompts or completions",
            )
        if not all(math.isfinite(score) for found in scores.values() for score in found):
            what = "gave scores that are not finite numbers; those completions are unknown"
            self._warn("unknown_completions", what)
        if log_metric is None:
            return
        finite = [score for index, found in scores.items() if rewards[index] is not None for score in found]
        if finite:
            log_metric(f"{self.name}/score", math.fsum(finite) / len(finite))
        if rows:
            log_metric(f"{self.name}/tokens", len(finite) / len(rows))
        log_metric(f"{self.name}/unscored_tokens", float(missing))
        log_metric(f"{self.name}/unknown_completions", float(rewards.count(None)))

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s %s. Said once; see %s/%s in the log", self.name, text, self.name, kind)


def _places(encoded: Mapping[str, list], whole: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Position and characters of the tokens of `whole[begin:end]`, in characters from `begin`."""
    found = []
    tokens = zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    for position, ((start, stop), added) in enumerate(tokens):
        # Byte-level tokenizers trim white space off their offsets: a token of nothing else has an empty range where it
        # ends, but one that is the first space of the text has it at 0.
        stop = 1 if (start, stop) == (0, 0) and whole[0].isspace() else stop
        after_prompt = stop > begin or stop == begin == 0  # a space that the tokenizer puts before the text
        before_tail = start < end or stop == end
        if not added and after_prompt and before_tail:
            found.append((position, max(start, begin) - begin, min(stop, end) - begin))
    return found


def _load(name: str, tokenizer: Any, revision: str | None, device: Any, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    options = {"revision": revision} if dtype is None else {"revision": revision, "dtype": dtype}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision) if tokenizer is None else tokenizer
        with outside_zero3():
            model, report = AutoModelForTokenClassification.from_pretrained(name, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{name!r} cannot be loaded as a token reward model: {error}") from error
    missing = sorted(report["missing_keys"])
    # A decoder that scores whole texts has the same head, but for its bias, which is 0 then.
    if any(key.removeprefix("score.") != "bias" for key in missing):
        raise CheckpointError(
            f"{name!r} holds no weights for {missing[:3]}, so its scores would be random; name a model that was trained to "
            "score tokens"
        )
    architecture = str((getattr(model.config, "architectures", None) or [""])[0])
    if architecture.endswith("ForSequenceClassification") and not hasattr(model, "score"):
        raise CheckpointError(
            f"{name!r} is a {architecture}: it scores a summary of the whole text and has no score per token; name a token "
            "classifier, or a decoder with a score head"
        )
    return model.to(device if device is not None else default_device()), tokenizer


def _label(config: Any, label: int | str | None) -> int:
    names = {int(index): str(name) for index, name in config.id2label.items()}
    if label is None:
        if len(names) > 1:
            raise ValueError(f"the reward model has {len(names)} labels {names}; pass label= to say which one counts")
        return 0
    found = [index for index, name in names.items() if label in (name, index, str(index))]
    if not found:
        raise ValueError(f"label={label!r} is none of the reward model's labels {names}")
    return found[0]


def _room(model: Any, tokenizer: Any) -> int:
    """Tokens that a text may have."""
    config = model.config.get_text_config()
    rooms = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or math.inf]
    for name, module in model.named_modules():
        # RoBERTa and its kin count positions from the padding index on.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            rooms.append(module.num_embeddings - module.padding_idx - 1)
    return int(min(min(rooms), 2**31))
