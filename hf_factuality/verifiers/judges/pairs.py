"""What judges that run a model here share: a claim beside each passage, a score for each pair, a label from the scores.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hf_factuality.io.upload import naming_model
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.pipeline import VerifierPipeline


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

# Roles of a class. "not supported" is what the second class of a two-way model says: contradicted or just not stated.
SUPPORTED, CONTRADICTED, NEUTRAL, NOT_SUPPORTED = "supported", "contradicted", "unverifiable", "not_supported"
# Fewer tokens than this for the evidence, and the claim does not fit the model.
_MIN_PREMISE_TOKENS = 8
# Tokens that a text may gain where it is put between others.
_SLACK = 2
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Tokens of a forward pass on a CPU, padding included. A core is busy with one or two hundred, and then padding costs more
# than another pass; beyond a few thousand the activations leave its caches, and batches are slower than single pairs.
# Narrower models than this take more.
_CPU_TOKENS = 1024
_CPU_WIDTH = 256
_CPU_BUSY_TOKENS = 128
_CPU_PADDING = 0.1


@contextmanager
def outside_zero3() -> Iterator[None]:
    """Load a model whole, also where the trainer's configuration has switched DeepSpeed ZeRO-3 on.

    `from_pretrained` would split it over the processes like the policy, and no engine would gather it again.
    """
    from transformers.integrations import deepspeed

    config = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config


def default_device() -> str:
    """The GPU, if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def without_special_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """`text` with a space after the first character of each special token of the tokenizer, and no lone surrogates."""
    for token in tokenizer.all_special_tokens:
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return _SURROGATE.sub("\ufffd", text)


def with_broken_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """`text` without the special tokens of the tokenizer and lone surrogates, of the same length: its characters stay."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    for token in dict.fromkeys([*tokenizer.all_special_tokens, *added]):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[2:]}" if len(token) > 1 else "\ufffd")
    return _SURROGATE.sub("\ufffd", text)


def sentence_bounds(text: str) -> list[tuple[int, int]]:
    """The sentences of a text with all that stands between them: each up to the start of the next."""
    starts = [start for start, _ in sentence_offsets(text)] or [0]  # where a passage is cut; nothing of it is left out
    return list(zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True))


def windows_of(text: str, pieces: Iterable[tuple[int, int, int]], room: int) -> list[str]:
    """Slices of `text` that hold neighbouring pieces (start, end, size) of at most `room` together, or one larger piece."""
    windows: list[str] = []
    first = last = used = 0
    for start, end, size in pieces:
        if used and used + size > room:
            windows.append(text[first:last].strip())
            first, used = start, 0
        last, used = end, used + size
    windows.append(text[first:last].strip())
    return [window for window in windows if window]


def in_chunks(inputs: Iterable[JudgeInput], chunk: Callable[[str], list[str]]) -> list[JudgeInput]:
    """The inputs with each passage as the chunks that `chunk` makes of it; a passage that several share is cut once."""
    chunks = functools.cache(chunk)
    return [
        replace(item, evidence=tuple(piece for text in item.evidence for piece in chunks(text))) for item in inputs
    ]


@dataclass(eq=False, repr=False)
class ClassifierJudge:
    """A model that reads a passage and a claim, and scores whether the one supports the other.

    Implements [`~hf_factuality.verifiers.base.Judge`]; the arguments are those of
    [`~hf_factuality.verifiers.judges.nli.NLIJudge`]. A subclass says how the model is loaded (`_load`), what it reads
    (`_prompt`, or `_encode` and `_overhead`), where its verdict stands (`_logits`) and what that means (`roles`).
    """

    model: str | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    _: KW_ONLY
    revision: str | None = None
    token: str | bool | None = None
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    batch_size: int = 32
    max_length: int | None = None
    threshold: float = 0.5
    negative_label: Label = Label.UNVERIFIABLE

    architecture: ClassVar[str] = "AutoModelForSequenceClassification"
    bfloat16_on_gpu: ClassVar[bool] = False
    trust_remote_code = False  # a setting of some subclasses

    def __post_init__(self):
        self._check_probability("threshold")
        if self.dtype == "int8":
            self.device = "cpu" if self.device is None else self.device
            if str(self.device) != "cpu":
                raise ValueError(f'dtype="int8" is for CPUs, got device={self.device!r}; leave one of the two out')
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size!r}")
        self.negative_label = Label(self.negative_label)
        if self.negative_label not in (Label.UNVERIFIABLE, Label.CONTRADICTED):
            raise ValueError(f"negative_label must be UNVERIFIABLE or CONTRADICTED, got {self.negative_label!r}")
        self._source: dict[str, Any] | None = None  # where the model came from; unknown of one that came loaded
        if isinstance(self.model, str) or hasattr(self.model, "__fspath__"):
            given = self.tokenizer
            model, tokenizer, source = self._load(str(self.model))
            self.model = model.to(self.device if self.device is not None else default_device())
            self.tokenizer, self._source = (given, None) if given is not None else (tokenizer, source)
        elif self.tokenizer is None:
            raise ValueError(f"a loaded model needs its tokenizer: {type(self).__name__}(model, tokenizer)")
        elif self.device is not None or self.dtype is not None:
            self.model = self.model.to(device=self.device, dtype=self._loading_dtype())
        if self.dtype == "int8":
            from hf_factuality.verifiers.int8 import int8_model

            self.model = int8_model(self.model)
        if self.tokenizer.pad_token is None and self.batch_size > 1:
            raise ValueError("the tokenizer has no padding token: set one, or pass batch_size=1")
        # By it the classifier of a decoder finds the last token.
        if getattr(self.model.config, "pad_token_id", None) is None:
            self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model.eval()
        self.roles = [NOT_SUPPORTED, SUPPORTED]
        positions = getattr(self.model.config, "max_position_embeddings", None) or 512
        self.max_length = self.max_length or min(self.tokenizer.model_max_length, positions, 512)

    def _check_probability(self, name: str):
        if not 0.0 <= getattr(self, name) <= 1.0:
            raise ValueError(f"{name} is a probability in [0, 1], got {getattr(self, name)!r}")

    @classmethod
    def architecture_of(cls, config: Any) -> str:
        """The class of transformers that a model of this configuration is loaded by."""
        return cls.architecture

    def _loading_dtype(self) -> str | torch.dtype | None:
        """The `dtype` asked for. By default bfloat16 on GPUs that compute in it, for judges that lose nothing by it, else as the
        weights are stored."""
        import torch

        if self.dtype == "int8":
            return torch.float32
        if self.dtype is None and self.bfloat16_on_gpu and not hasattr(self.model, "parameters"):
            device = torch.device(self.device if self.device is not None else default_device())
            if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8:
                return torch.bfloat16
        return getattr(torch, self.dtype, self.dtype) if isinstance(self.dtype, str) else self.dtype

    def _load(self, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        """Model, tokenizer (loaded if none was given), and the arguments that load both again, with the commit found.

        An adapter, which has the `config.json` of the whole model beside it, is merged into its base.
        """
        import transformers
        from transformers.utils import find_adapter_config_file

        trust = {"trust_remote_code": self.trust_remote_code}
        dtype = self._loading_dtype()
        loading = {} if dtype is None else {"dtype": dtype}
        place = {"revision": self.revision, "token": self.token}
        with naming_model(name), outside_zero3():
            tokenizer = self.tokenizer
            if tokenizer is None:
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, **place, **trust)
            adapter = find_adapter_config_file(name, **place)
            config = transformers.AutoConfig.from_pretrained(name, **place, **({} if adapter else trust))
            kind = getattr(transformers, self.architecture_of(config))
            if adapter is None:
                model = kind.from_pretrained(name, **place, **trust, **loading)
            else:
                from peft import PeftConfig, PeftModel

                adapter = PeftConfig.from_pretrained(name, **place)
        if adapter is not None:
            base = adapter.base_model_name_or_path
            with naming_model(base), outside_zero3():
                model = kind.from_pretrained(base, config=config, **place | {"revision": adapter.revision}, **loading)
            model = PeftModel.from_pretrained(model, name, **place).merge_and_unload()
            model.config._commit_hash = getattr(config, "_commit_hash", None)
        commit = getattr(model.config, "_commit_hash", None) or self.revision
        return model, tokenizer, {"model": name, "revision": commit}

    def config(self) -> dict[str, Any]:
        """Arguments that make this judge again, as plain values; the device is left out. `ValueError`: model or tokenizer came
        loaded, so nothing says where they can be found."""
        if self._source is None:
            raise ValueError(
                f"{type(self).__name__} was given a loaded model or tokenizer; make it from a model id to save it"
            )
        dtype = {} if self.dtype is None else {"dtype": str(self.dtype).removeprefix("torch.")}
        settings = {name: getattr(self, name) for name in ("batch_size", "max_length", "threshold")}
        return {**self._source, **dtype, **settings, "negative_label": self.negative_label.value}

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        windows = self._windows(inputs)
        needed = dict.fromkeys(
            (p, item.claim) for item, found in zip(inputs, windows, strict=True) for p in found or ()
        )
        shares = dict(zip(needed, self._probabilities(list(needed)), strict=True))  # each pair is run once
        results = []
        for item, premises in zip(inputs, windows, strict=True):
            found = [shares[premise, item.claim] for premise in premises or ()]
            if premises is None or any(math.isnan(value) for share in found for value in share.values()):
                results.append(Judgement(None))
            else:
                results.append(self._decide(premises, found) if premises else Judgement(Label.UNVERIFIABLE))
        failed = sum(result.label is None for result in results)
        if failed:
            logger.warning(
                "%d of %d claims were not judged: too long, or the output was not finite", failed, len(results)
            )
        return results

    def _decide(self, premises: list[str], shares: list[dict[str, float]]) -> Judgement:
        best = max(range(len(shares)), key=lambda i: shares[i][SUPPORTED])
        support = min(shares[best][SUPPORTED], 1.0)
        label = Label.SUPPORTED if support >= self.threshold else self.negative_label
        return Judgement(label, support, premises[best])

    def _count(self, texts: list[str]) -> list[int]:
        texts = [without_special_tokens(text, self.tokenizer) for text in texts]
        # verbose=False: texts longer than the model are what is being looked for, and no reason to warn.
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        return [len(ids) for ids in found]

    def _surely_fits(self, item: JudgeInput, special: int) -> bool:
        """Whether every passage fits beside the claim whatever the tokenizer: then none need be encoded to be measured.

        A character of ASCII is at most a token, as is what may be put before the first; a space is put into what looks
        like a special token.
        """
        longest = max(map(len, item.evidence), default=0)
        return (
            4 * (len(item.claim) + longest) // 3 + 4 + special <= self.max_length
            and item.claim.isascii()
            and all(map(str.isascii, item.evidence))
        )

    def _overhead(self) -> int:
        """Tokens that belong neither to the premise nor to the claim."""
        return len(self.tokenizer(self._prompt("", ""))["input_ids"]) + _SLACK

    def _windows(self, inputs: Sequence[JudgeInput]) -> list[list[str] | None]:
        """Per input, the premises of its claim; `None` where the claim leaves no room for one."""
        special = self._overhead()
        short = [self._surely_fits(item, special) for item in inputs]
        unclear = [item for item, fits in zip(inputs, short, strict=True) if not fits]
        measured = list(dict.fromkeys(text for item in unclear for text in (item.claim, *item.evidence)))
        tokens = dict(zip(measured, self._count(measured), strict=True))
        sentences = functools.cache(self._sentences)
        result: list[list[str] | None] = []
        for item, fits in zip(inputs, short, strict=True):
            texts = [text for text in item.evidence if text.strip()]
            room = self.max_length if fits else self.max_length - special - tokens[item.claim]
            if texts and room < _MIN_PREMISE_TOKENS:
                result.append(None)
                continue
            premises: list[str] = []
            for text in texts:
                if fits or tokens[text] <= room:
                    premises.append(text)
                else:
                    pieces = [piece for sentence in sentences(text) for piece in self._cut(text, sentence, room)]
                    premises += windows_of(text, pieces, room)
            result.append(premises)
        return result

    def _sentences(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and tokens of the sentences of a passage, each up to the start of the next."""
        bounds = sentence_bounds(text)
        counts = self._count([text[start:end] for start, end in bounds])
        return [(start, end, count) for (start, end), count in zip(bounds, counts, strict=True)]

    def _cut(self, text: str, sentence: tuple[int, int, int], room: int) -> list[tuple[int, int, int]]:
        """A sentence in pieces of at most `room` tokens: halves, at a space if there is one near the middle."""
        start, end, count = sentence
        if count <= room or end - start < 2:
            return [sentence]
        middle = (start + end) // 2
        space = text.rfind(" ", start + (end - start) // 4, middle)
        middle = space if space > start else middle
        first, second = self._count([text[start:middle], text[middle:end]])
        return [*self._cut(text, (start, middle, first), room), *self._cut(text, (middle, end, second), room)]

    def _prompt(self, premise: str, claim: str) -> str:
        """The text that the model reads for a pair."""
        raise NotImplementedError

    def _encode(self, pairs: list[tuple[str, str]]) -> Mapping[str, list[list[int]]]:
        """Tokenizer's output for (premise, claim) pairs, without padding."""
        # Not cut: windows fit, and T5 takes a token or two more.
        plain = functools.partial(without_special_tokens, tokenizer=self.tokenizer)
        prompts = [self._prompt(plain(premise), plain(claim)) for premise, claim in pairs]
        return self.tokenizer(prompts, return_token_type_ids=False, verbose=False)

    def _padded(self, encoded: Mapping[str, list[list[int]]], chosen: Sequence[int]) -> dict[str, torch.Tensor]:
        """What `tokenizer.pad` makes of the chosen rows, in a third of its time."""
        import torch

        fill = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        device, left = next(self.model.parameters()).device, self.tokenizer.padding_side == "left"
        found = {}
        for name, rows in encoded.items():
            width = max(len(rows[i]) for i in chosen)
            more = [[fill.get(name, 0)] * (width - len(rows[i])) for i in chosen]
            whole = [pad + rows[i] if left else rows[i] + pad for i, pad in zip(chosen, more, strict=True)]
            found[name] = torch.tensor(whole, device=device)
        return found

    def _logits(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits of shape (pairs, classes)."""
        return self.model(**features).logits

    def _batches(self, lengths: list[int], cpu: bool) -> Iterator[tuple[int, int]]:
        """First and end of the forward passes over pairs of these lengths, longest first."""
        width = getattr(self.model.config, "hidden_size", _CPU_WIDTH)
        most = _CPU_TOKENS * max(1, _CPU_WIDTH // width)
        begin = 0
        while begin < len(lengths):
            end, used, longest = begin, 0, lengths[begin]
            while end < len(lengths) and end - begin < self.batch_size:
                used, padded = used + lengths[end], (end + 1 - begin) * longest
                too_loose = padded > _CPU_BUSY_TOKENS and padded - used > _CPU_PADDING * padded
                if cpu and end > begin and (padded > most or too_loose):
                    break
                end += 1
            yield begin, end
            begin = end

    def _probabilities(self, pairs: list[tuple[str, str]]) -> list[dict[str, float]]:
        """Per (premise, claim), the probability of each role; batches of like length, no gradient."""
        if not pairs:
            return []
        rows: list[dict[str, float]] = [{} for _ in pairs]
        for chosen, logits in self._passes(self._encode(pairs)):
            # One output is the logit of its class.
            values = logits.sigmoid() if len(self.roles) == 1 else logits.softmax(-1)
            for i, row in zip(chosen, values.tolist(), strict=True):
                for role, value in zip(self.roles, row, strict=True):
                    rows[i][role] = rows[i].get(role, 0.0) + value
        return rows

    def _passes(self, encoded: Mapping[str, list[list[int]]]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Rows of the encoded and their logits, in float32 and NaN where they are not finite, pass by pass."""
        import torch

        lengths = [len(ids) for ids in encoded["input_ids"]]
        # Longest first: memory runs out at once or never.
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        self.model.eval()
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        with torch.inference_mode():
            for begin, end in self._batches([lengths[i] for i in order], on_cpu):
                chosen = order[begin:end]
                logits = self._logits(self._padded(encoded, chosen)).float()
                yield chosen, logits.masked_fill(~logits.isfinite().all(-1, keepdim=True), float("nan"))


class PairVerifier(VerifierPipeline):
    """Sentences of the completion, judged by a [`ClassifierJudge`], that of the class, whose arguments are its own; `language` is as
    for [`SentenceExtractor`]."""

    judges: ClassVar[type[ClassifierJudge]]
    reads_evidence: ClassVar[bool] = True

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        language: str | None = None,
        **kwargs: Any,
    ):
        judge = self.judges(model, tokenizer, **kwargs)
        super().__init__(SentenceExtractor(language), judge, requires_evidence=self.reads_evidence)
