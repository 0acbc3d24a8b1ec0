"""Judges by MiniCheck: does the document support the sentence, in each of its published forms.

Prompts, chunks, token ids and the order of the classes are those of the released code (arXiv 2404.10774, `Liyan06/MiniCheck`):
flan-t5, whose verdict is read off the first decoder step; RoBERTa and DeBERTa, classifiers of one text; and
Bespoke-MiniCheck-7B, a chat model that answers "Yes" or "No". Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.generation.base import ChatRequest
from hf_factuality.generation.client import ChatClient
from hf_factuality.generation.local import LocalChat, load_causal
from hf_factuality.io.upload import naming_model
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.judges.llm import ServedJudge, Talk, evidence_text, read_choice
from hf_factuality.verifiers.judges.pairs import (
    ClassifierJudge,
    PairVerifier,
    default_device,
    in_chunks,
    sentence_bounds,
    windows_of,
)
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import load_prompt


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


MINICHECK_MODEL = "lytang/MiniCheck-Flan-T5-Large"
BESPOKE_MODEL = "bespokelabs/Bespoke-MiniCheck-7B"
# Ids in flan-t5's vocabulary that the model was trained to answer with.
NO_TOKEN, YES_TOKEN = 3, 209
CHUNK_WORDS, CHUNK_TOKENS = 500, 400
# Words of evidence that a chat model of 32,768 tokens reads beside the claim.
CHAT_WORDS = 20_000


def minicheck_prompt(document: str, claim: str, eos_token: str = "</s>", prefix: str = "predict: ") -> str:
    """The text that MiniCheck reads; the tokenizer puts another `eos_token` at its end. Only flan-t5 has the `prefix`."""
    return prefix + document + eos_token + claim


def word_chunks(text: str, words: int = CHUNK_WORDS) -> list[str]:
    """A text in slices of whole sentences of at most `words` words by white space; a longer sentence is one of its own."""
    pieces = ((start, end, len(text[start:end].split())) for start, end in sentence_bounds(text))
    return windows_of(text, pieces, words)


@dataclass(eq=False, repr=False)
class MiniCheckJudge(ClassifierJudge):
    """As [`~hf_factuality.verifiers.judges.hhem.HHEMJudge`], by MiniCheck's flan-t5, RoBERTa or DeBERTa; the configuration of the
    model says which.

    The score is the probability of support, the largest over the chunks of all passages: flan-t5's of its token "yes" against
    its "no" at the first decoder step, the classifiers' of class 1. From `threshold` on the label is `SUPPORTED`, below it
    `negative_label`: MiniCheck does not tell contradicted from not mentioned. A chunk ends with a sentence, and has at most
    `chunk_words` words (flan-t5) or `chunk_tokens` tokens (classifiers); one that still does not fit `max_length` is cut
    further. The model judges one sentence at a time: split claims of several.

    What differs from the released code: white space inside a chunk stays as it is (the tokenizers of flan-t5 and DeBERTa fold
    it), sentences come from `sentencex` instead of nltk, a text that is too long is cut into more chunks instead of losing its
    end, and an empty document is `UNVERIFIABLE` instead of an error.

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"lytang/MiniCheck-Flan-T5-Large"`):
            Model id or folder of a sequence-to-sequence model or sequence classifier, or the loaded model.
        batch_size (`int`, *optional*, defaults to `16`):
            Prompts in a forward pass.
        max_length (`int`, *optional*, defaults to `2048`):
            Tokens of a prompt; at most as many as the model has positions (512 of RoBERTa).
        chunk_words (`int`, *optional*, defaults to `500`):
            See [`word_chunks`].
        chunk_tokens (`int`, *optional*, defaults to `400`):
            The same of classifiers, in tokens.
        no_token_id (`int`, *optional*, defaults to `3`), yes_token_id (`int`, *optional*, defaults to `209`):
            Ids of the two answers of flan-t5.
        tokenizer, revision, token, device, dtype, threshold, negative_label (*optional*):
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`].

    Raises:
        `ValueError`: an argument is out of range, the tokenizer has no end-of-sequence token, the model is of neither kind, or
            see [`~hf_factuality.verifiers.judges.nli.NLIJudge`].
    """

    model: str | PreTrainedModel = MINICHECK_MODEL
    _: KW_ONLY
    batch_size: int = 16
    max_length: int = 2048
    chunk_words: int = CHUNK_WORDS
    chunk_tokens: int = CHUNK_TOKENS
    no_token_id: int = NO_TOKEN
    yes_token_id: int = YES_TOKEN

    architecture = "AutoModelForSeq2SeqLM"
    bfloat16_on_gpu = True

    def __post_init__(self):
        for name in ("chunk_words", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        super().__post_init__()
        if self.tokenizer.eos_token is None:
            raise ValueError("the tokenizer has no end-of-sequence token, which parts document and claim")
        config = self.model.config
        self._generates = bool(config.is_encoder_decoder)
        self._prefix = "predict: " if self._generates else ""
        if self._generates:
            ids, size = (self.no_token_id, self.yes_token_id), config.vocab_size
            if ids[0] == ids[1] or not all(0 <= found < size for found in ids):
                told = f"must be two ids below {size}, got {ids[0]!r}, {ids[1]!r}"
                raise ValueError(f"no_token_id and yes_token_id {told}")
        elif getattr(config, "num_labels", None) != 2:
            told = f"is a {type(self.model).__name__} with {getattr(config, 'num_labels', None)} classes"
            raise ValueError(f"{config.name_or_path!r} {told}; MiniCheck is a flan-t5, or a classifier of two classes")
        self.max_length = min(self.max_length, readable_tokens(config))

    @classmethod
    def architecture_of(cls, config: Any) -> str:
        """See [`~hf_factuality.verifiers.judges.pairs.ClassifierJudge.architecture_of`]."""
        return cls.architecture if config.is_encoder_decoder else "AutoModelForSequenceClassification"

    def config(self) -> dict[str, Any]:
        """See [`~hf_factuality.verifiers.judges.pairs.ClassifierJudge.config`]."""
        names = ("chunk_words", "no_token_id", "yes_token_id") if self._generates else ("chunk_tokens",)
        return {**super().config(), **{name: getattr(self, name) for name in names}}

    def _windows(self, inputs: Sequence[JudgeInput]) -> list[list[str] | None]:
        return super()._windows(in_chunks(inputs, self._chunks))

    def _chunks(self, text: str) -> list[str]:
        if self._generates:
            return word_chunks(text, self.chunk_words)
        bounds = sentence_bounds(text)
        sizes: Iterable[int] = self._count([text[start:end].strip() for start, end in bounds])
        return windows_of(text, ((*bound, size) for bound, size in zip(bounds, sizes, strict=True)), self.chunk_tokens)

    def _prompt(self, premise: str, claim: str) -> str:
        return minicheck_prompt(premise, claim, self.tokenizer.eos_token, self._prefix)

    def _logits(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch

        if not self._generates:
            return self.model(**features).logits
        start = self.model.config.decoder_start_token_id or 0
        ids = torch.full((len(features["input_ids"]), 1), start, device=features["input_ids"].device)
        logits = self.model(**features, decoder_input_ids=ids).logits
        return logits[:, 0, [self.no_token_id, self.yes_token_id]]


def readable_tokens(config: Any) -> int:
    """Tokens that an encoder can read by its configuration; very many where it counts positions from token to token, as T5 and
    DeBERTa do."""
    if getattr(config, "relative_attention", False) or not getattr(config, "max_position_embeddings", None):
        return 1_000_000
    first = (
        1 + (config.pad_token_id or 0) if "roberta" in config.model_type else 0
    )  # positions that RoBERTa leaves out
    return config.max_position_embeddings - first


@dataclass(eq=False, repr=False)
class ServedMiniCheckJudge(ServedJudge):
    """As [`MiniCheckJudge`], by a chat model that answers "Yes" or "No": Bespoke-MiniCheck-7B on a server or in this process.

    System message and user turn are the released ones. The score is the probability of "Yes" among the two answers; the
    released code takes that of "yes" among all tokens, which is smaller by what the model gives to other words. Without
    log-probabilities there is the label alone. All passages are one document; one of more than `chunk_words` words is cut into
    chunks of whole sentences, and the largest score counts. Any other answer has no label, and is counted.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model, or a [`~hf_factuality.generation.LocalChat`].
        threshold (`float`, *optional*, defaults to `0.5`), negative_label ([`~hf_factuality.Label`], *optional*):
            As for [`MiniCheckJudge`].
        chunk_words (`int`, *optional*, defaults to `20000`):
            See [`word_chunks`].
        max_tokens (`int`, *optional*, defaults to `8`):
            Longest answer.

    Raises:
        `ValueError`: an argument is out of range.
    """

    _: KW_ONLY
    threshold: float = 0.5
    negative_label: Label = Label.UNVERIFIABLE
    chunk_words: int = CHAT_WORDS
    max_tokens: int = 8

    def __post_init__(self):
        if not 0 <= self.threshold <= 1 or min(self.chunk_words, self.max_tokens) < 1:
            told = f"got {self.threshold!r}, {self.chunk_words!r} and {self.max_tokens!r}"
            raise ValueError(f"threshold must be in [0, 1], chunk_words and max_tokens at least 1; {told}")
        self.negative_label = Label(self.negative_label)
        self._system = load_prompt("minicheck_system", ()).text
        self._prompt = load_prompt("minicheck_user", ("document", "claim"))

    def _talk(self, item: JudgeInput) -> Talk:
        chunks = word_chunks(evidence_text(item), self.chunk_words)
        if not chunks:
            return Judgement(Label.UNVERIFIABLE)
        found: list[Judgement] = []
        for chunk in chunks:
            turn = self._prompt.fill({"document": chunk, "claim": item.claim})
            answer = yield ChatRequest(
                (("system", self._system), ("user", turn)), ("Yes", "No"), logprobs=5, max_new_tokens=self.max_tokens
            )
            said, shares = read_choice(answer, ("Yes", "No"), nucleus=0.0)
            score = shares and min(shares["Yes"], 1.0)
            if said is None:
                return Judgement(None)
            holds = said == "Yes" if score is None else score >= self.threshold
            found.append(Judgement(Label.SUPPORTED if holds else self.negative_label, score, chunk))
        return max(found, key=lambda it: (it.label is Label.SUPPORTED, it.score or 0.0))


class MiniCheckVerifier(PairVerifier):
    """English sentences of the completion, judged against the row's evidence by [`MiniCheckJudge`], or where the model is a chat
    model by [`ServedMiniCheckJudge`].

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"lytang/MiniCheck-Flan-T5-Large"`):
            Such as `"lytang/MiniCheck-RoBERTa-Large"`, `"lytang/MiniCheck-DeBERTa-v3-Large"` or
            `"bespokelabs/Bespoke-MiniCheck-7B"`.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            See [`MiniCheckJudge`].
        base_url (`str`, *optional*):
            Address of an OpenAI-compatible server that has the model, a chat model; `kwargs` are then those of
            [`~hf_factuality.generation.client.ChatClient`].
        **kwargs:
            Arguments of the judge. For a chat model in this process also those of `from_pretrained`: `trust_remote_code=True`,
            which Bespoke-MiniCheck-7B needs there, `dtype` and `revision`, and `device`.

    Raises:
        `ValueError`: see [`MiniCheckJudge`].
    """

    judges = MiniCheckJudge

    def __init__(
        self,
        model: str | PreTrainedModel = MINICHECK_MODEL,
        tokenizer: PreTrainedTokenizerBase | None = None,
        base_url: str | None = None,
        **kwargs: Any,
    ):
        if base_url is None and not _is_chat_model(model, kwargs):
            super().__init__(model, tokenizer, "en", **kwargs)
            return
        own = {name: kwargs.pop(name) for name in ("threshold", "negative_label", "max_tokens") if name in kwargs}
        client: Any = ChatClient(base_url, str(model), **kwargs) if base_url is not None else None
        if client is None:
            client = local_chat(model, tokenizer, **kwargs)
        VerifierPipeline.__init__(self, SentenceExtractor("en"), ServedMiniCheckJudge(client, **own))


def _is_chat_model(model: Any, kwargs: Mapping[str, Any]) -> bool:
    if not isinstance(model, str):
        names = [type(model).__name__]
    elif model == BESPOKE_MODEL:  # its configuration is code
        names = ["ForCausalLM"]
    else:
        from transformers import AutoConfig

        known = {name: kwargs[name] for name in ("revision", "token", "trust_remote_code") if name in kwargs}
        with naming_model(model):
            names = AutoConfig.from_pretrained(model, **known).architectures or []
    return any("CausalLM" in name for name in names)


def local_chat(
    model: str | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: Any = None,
    revision: str | None = None,
    batch_size: int = 8,
    **model_kwargs: Any,
) -> LocalChat:
    """A chat model in this process, on the GPU if there is one; `model_kwargs` are for `from_pretrained`."""
    if isinstance(model, str):
        loaded, tokenizer = load_causal(model, revision, tokenizer, {"dtype": "auto", **model_kwargs})
        assert loaded is not None
        model = loaded.to(device if device is not None else default_device())  # type: ignore[arg-type]
    return LocalChat(model, tokenizer, batch_size=batch_size)
