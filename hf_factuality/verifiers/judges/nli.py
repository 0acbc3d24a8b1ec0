"""Judge that asks a natural language inference model whether a passage entails a claim.

Any sequence classifier over sentence pairs: three-way NLI models, two-way entailment models, hallucination detectors.
Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hf_factuality.io.upload import naming_model
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor, sentence_offsets
from hf_factuality.verifiers.pipeline import VerifierPipeline


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


__all__ = ["NLIJudge", "NLIVerifier", "nli_roles"]

logger = logging.getLogger(__name__)

# Roles of a class. "not supported" is what the second class of a two-way model says: contradicted or just not stated.
SUPPORTED, CONTRADICTED, NEUTRAL, NOT_SUPPORTED = "supported", "contradicted", "unverifiable", "not_supported"
_ROLE_OF = {
    SUPPORTED: "entailment entailed entails supported supports support consistent factual factual_consistent grounded",
    CONTRADICTED: "contradiction contradicted contradicts contradictory refuted refutes refute",
    NEUTRAL: "neutral not_enough_info not_enough_information nei unverifiable unknown undetermined irrelevant",
    NOT_SUPPORTED: "not_entailment not_entailed non_entailment notentailment not_supported unsupported hallucinated "
    "hallucination inconsistent not_consistent not_factual ungrounded",
}
_ROLES = {name: role for role, names in _ROLE_OF.items() for name in names.split()}
# Fewer tokens than this for the evidence, and the claim does not fit the model.
_MIN_PREMISE_TOKENS = 8
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Tokens of a forward pass on a CPU, padding included. A core is busy with one or two hundred, and then padding costs more
# than another pass; beyond a few thousand the activations leave its caches, and batches are slower than single pairs.
# Narrower models than this take more.
_CPU_TOKENS = 1024
_CPU_WIDTH = 256
_CPU_BUSY_TOKENS = 128
_CPU_PADDING = 0.1


def nli_roles(id2label: Mapping[int, Any], label_map: Mapping[int, str | Label] | None = None) -> list[str]:
    """One of the four roles for each class of a classifier, by the names of its config or those of `label_map`.

    Case, spaces, hyphens and underscores of a name do not matter. Raises `ValueError` if a name is missing or says
    nothing (`LABEL_0`), or if not exactly one class means "supported".
    """
    given = {int(index): name for index, name in (id2label if label_map is None else label_map).items()}
    if sorted(given) != list(range(len(id2label))):
        raise ValueError(f"label_map must name every class 0..{len(id2label) - 1}, got the keys {sorted(given)}")
    roles = []
    for index in range(len(id2label)):
        name = given[index].value if isinstance(given[index], Label) else str(given[index])
        role = _ROLES.get(re.sub(r"[\s_-]+", "_", name.strip()).lower())
        if role is None:
            raise ValueError(
                f"class {index} is called {name!r}, which does not say what it means for a claim; pass "
                f'label_map={{0: "contradicted", ...}} with one of {[*_ROLE_OF]} for each of {len(id2label)} classes'
            )
        roles.append(role)
    if roles.count(SUPPORTED) != 1:
        raise ValueError(f"exactly one class must mean 'supported', got {roles}; pass label_map")
    return roles


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


def source_of(dtype: Any, trust: bool = False, **source: Any) -> dict[str, Any]:
    """Arguments that load a model again; those that were left at their defaults stay out."""
    if dtype is not None:
        source["dtype"] = str(dtype).removeprefix("torch.")
    return {**source, "trust_remote_code": True} if trust else source


def without_special_tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """`text` with a space after the first character of each special token of the tokenizer, and no lone surrogates."""
    for token in tokenizer.all_special_tokens:
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return _SURROGATE.sub("\ufffd", text)


def sentence_bounds(text: str) -> list[tuple[int, int]]:
    """The sentences of a text with all that stands between them: each up to the start of the next."""
    starts = [start for start, _ in sentence_offsets(text)] or [0]
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


class NLIJudge:
    """Judge by a cross-encoder: premise = evidence, hypothesis = claim.

    Implements [`~hf_factuality.verifiers.base.Judge`]. Each passage is a premise of its own; one that does not fit
    `max_length` together with the claim is cut into windows of whole sentences (a longer sentence into pieces), so
    that no evidence is dropped. Facts that only several premises together entail are not found.

    Rule: let E and C be the maxima over all premises of P(entailment) and P(contradiction). The label is `SUPPORTED`
    if E >= `threshold` and E >= C, `CONTRADICTED` if C >= `contradiction_threshold` and C > E, else `UNVERIFIABLE`.
    The score is E; the evidence is the premise of the maximum that decided (of E for `UNVERIFIABLE`). A model without
    a class for contradiction cannot tell it from "not mentioned": what it does not support gets `negative_label`.

    No evidence: `UNVERIFIABLE` without score. A claim that leaves no room for evidence, or an output that is not
    finite: no label (unknown is not wrong), and a warning.

    Args:
        model (`str` or `PreTrainedModel`):
            Model id or folder of a sequence classifier, or the loaded model. A loaded one is put into eval mode.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Needed with a loaded model; else loaded from the same place.
        revision (`str`, *optional*):
            Branch, tag or commit to load. Pin it where results must be comparable.
        device (`str` or `torch.device`, *optional*):
            `None`: where a loaded model is; else the GPU if there is one.
        dtype (`str` or `torch.dtype`, *optional*):
            As in `from_pretrained`. Probabilities are always computed in float32.
        batch_size (`int`, *optional*, defaults to `32`):
            Pairs in a forward pass; on a CPU fewer if they are long, which is faster there.
        max_length (`int`, *optional*):
            Tokens of claim and premise together. `None`: what the tokenizer and the model allow, 512 at most.
        threshold (`float`, *optional*, defaults to `0.5`):
            See the rule above.
        contradiction_threshold (`float`, *optional*, defaults to `0.5`):
            See the rule above.
        negative_label ([`~hf_factuality.Label`], *optional*, defaults to `Label.UNVERIFIABLE`):
            Of two-way models; `Label.CONTRADICTED` is the other choice.
        label_map (`Mapping[int, str | Label]`, *optional*):
            Meaning of the classes if the config does not name them; see [`nli_roles`].
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may run code from its repository.

    Raises:
        `ValueError`: an argument is out of range, a loaded model comes without tokenizer, the tokenizer cannot pad, or
        the classes have no known meaning.
    """

    _architecture = "AutoModelForSequenceClassification"

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        revision: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        threshold: float = 0.5,
        contradiction_threshold: float = 0.5,
        negative_label: Label = Label.UNVERIFIABLE,
        label_map: Mapping[int, str | Label] | None = None,
        trust_remote_code: bool = False,
    ):
        for name, value in (("threshold", threshold), ("contradiction_threshold", contradiction_threshold)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is a probability in [0, 1], got {value!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self._source: dict[str, Any] | None = None  # where the model came from; unknown of one that came loaded
        self.negative_label = Label(negative_label)
        if self.negative_label not in (Label.UNVERIFIABLE, Label.CONTRADICTED):
            raise ValueError(f"negative_label must be UNVERIFIABLE or CONTRADICTED, got {negative_label!r}")
        if isinstance(model, str) or hasattr(model, "__fspath__"):
            given = tokenizer
            model, tokenizer, source = self._load(str(model), given, revision, dtype, trust_remote_code)
            model = model.to(device if device is not None else default_device())
            self._source = source if given is None else None
        elif tokenizer is None:
            raise ValueError(f"a loaded model needs its tokenizer: {type(self).__name__}(model, tokenizer)")
        elif device is not None or dtype is not None:
            model = model.to(device=device, dtype=dtype)
        if tokenizer.pad_token is None and batch_size > 1:
            raise ValueError("the tokenizer has no padding token: set one, or pass batch_size=1")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.roles = nli_roles(model.config.id2label, label_map)
        self.batch_size = batch_size
        positions = getattr(model.config, "max_position_embeddings", None) or 512
        self.max_length = max_length or min(tokenizer.model_max_length, positions, 512)
        self.threshold = threshold
        self.contradiction_threshold = contradiction_threshold

    def _load(
        self, name: str, tokenizer: PreTrainedTokenizerBase | None, revision: str | None, dtype: Any, trust: bool
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        """Model, tokenizer (loaded if it is `None`), and the arguments that load both again, with the commit found."""
        import transformers

        place = {"revision": revision, "trust_remote_code": trust}
        with naming_model(name), outside_zero3():
            if tokenizer is None:
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, **place)
            model = getattr(transformers, self._architecture).from_pretrained(
                name, **place, **({} if dtype is None else {"dtype": dtype})
            )
        commit = getattr(model.config, "_commit_hash", None) or revision
        return model, tokenizer, source_of(dtype, trust, model=name, revision=commit)

    def config(self) -> dict[str, Any]:
        """Arguments that make this judge again, as plain values; the device is left out.

        Raises:
            `ValueError`: model or tokenizer came loaded, so nothing says where they can be found.
        """
        if self._source is None:
            raise ValueError(
                f"{type(self).__name__} was given a loaded model or tokenizer; make it from a model id to save it"
            )
        return {
            **self._source,
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "threshold": self.threshold,
            "contradiction_threshold": self.contradiction_threshold,
            "negative_label": self.negative_label.value,
            "label_map": {str(index): role for index, role in enumerate(self.roles)},
        }

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        windows = self._windows(inputs)
        needed = dict.fromkeys(
            (p, item.claim) for item, found in zip(inputs, windows, strict=True) for p in found or ()
        )
        shares = dict(zip(needed, self._probabilities(list(needed)), strict=True))  # each pair is run once
        results = []
        for item, premises in zip(inputs, windows, strict=True):
            if premises:
                results.append(self._decide(premises, [shares[premise, item.claim] for premise in premises]))
            else:
                results.append(Judgement(None if premises is None else Label.UNVERIFIABLE))
        failed = sum(result.label is None for result in results)
        if failed:
            logger.warning(
                "%d of %d claims were not judged: too long, or the output was not finite", failed, len(results)
            )
        return results

    def _decide(self, premises: list[str], shares: list[dict[str, float]]) -> Judgement:
        if any(math.isnan(value) for share in shares for value in share.values()):
            return Judgement(None)
        best = max(range(len(shares)), key=lambda i: shares[i][SUPPORTED])
        worst = max(range(len(shares)), key=lambda i: shares[i].get(CONTRADICTED, 0.0))
        support, against = min(shares[best][SUPPORTED], 1.0), shares[worst].get(CONTRADICTED, 0.0)
        if support >= self.threshold and support >= against:
            return Judgement(Label.SUPPORTED, support, premises[best])
        if CONTRADICTED not in self.roles:
            return Judgement(self.negative_label, support, premises[best])
        if against >= self.contradiction_threshold and against > support:
            return Judgement(Label.CONTRADICTED, support, premises[worst])
        return Judgement(Label.UNVERIFIABLE, support, premises[best])

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
        """Tokens of a pair that belong neither to the premise nor to the claim."""
        return self.tokenizer.num_special_tokens_to_add(pair=True)

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

    def _encode(self, pairs: list[tuple[str, str]]) -> Mapping[str, list[list[int]]]:
        """Tokenizer's output for (premise, claim) pairs, without padding."""
        return self.tokenizer(
            [without_special_tokens(premise, self.tokenizer) for premise, _ in pairs],
            [without_special_tokens(claim, self.tokenizer) for _, claim in pairs],
            truncation="only_first",  # windows fit; this only catches a token or two gained by cutting
            max_length=self.max_length,
        )

    def _padded(self, encoded: Mapping[str, list[list[int]]], chosen: Sequence[int]) -> dict[str, torch.Tensor]:
        """What `tokenizer.pad` makes of the chosen rows, in a third of its time."""
        import torch

        fill = {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": self.tokenizer.pad_token_type_id}
        device = next(self.model.parameters()).device
        return {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(rows[i]) for i in chosen], True, fill.get(name, 0), self.tokenizer.padding_side
            ).to(device)
            for name, rows in encoded.items()
        }

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
        import torch

        encoded = self._encode(pairs)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order = sorted(range(len(pairs)), key=lambda i: -lengths[i])  # longest first: memory runs out at once or never
        rows: list[dict[str, float]] = [{} for _ in pairs]
        self.model.eval()
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        with torch.inference_mode():
            for begin, end in self._batches([lengths[i] for i in order], on_cpu):
                chosen = order[begin:end]
                logits = self._logits(self._padded(encoded, chosen)).float()
                # One output is the logit of its class.
                values = logits.sigmoid() if len(self.roles) == 1 else logits.softmax(-1)
                values = values.masked_fill(~logits.isfinite().all(-1, keepdim=True), float("nan"))
                for i, row in zip(chosen, values.tolist(), strict=True):
                    for role, value in zip(self.roles, row, strict=True):
                        rows[i][role] = rows[i].get(role, 0.0) + value
        return rows


class NLIVerifier(VerifierPipeline):
    """Sentences of the completion, judged against the row's evidence by [`NLIJudge`].

    Talk about the answer itself ("Let me think.") and questions are claims like any other here, and mostly come out
    `UNVERIFIABLE`.

    Args:
        model (`str` or `PreTrainedModel`):
            See [`NLIJudge`].
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            See [`NLIJudge`].
        language (`str`, *optional*):
            Language of the completions for [`SentenceExtractor`]; `None` decides per completion.
        **kwargs:
            The other arguments of [`NLIJudge`].
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        language: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(SentenceExtractor(language), NLIJudge(model, tokenizer, **kwargs))
