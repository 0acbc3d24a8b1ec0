"""Judge by MiniCheck's flan-t5 form: does the document support the sentence, read off the first decoder step.

Prompt, chunks and token ids are those of the released code (arXiv 2404.10774, `Liyan06/MiniCheck`). Importing this module
loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.pairs import ClassifierJudge, PairVerifier, sentence_bounds, windows_of


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


MINICHECK_MODEL = "lytang/MiniCheck-Flan-T5-Large"
# Ids in flan-t5's vocabulary that the model was trained to answer with.
NO_TOKEN, YES_TOKEN = 3, 209
CHUNK_WORDS = 500


def minicheck_prompt(document: str, claim: str, eos_token: str = "</s>") -> str:
    """The text that MiniCheck's flan-t5 reads; the tokenizer puts another `eos_token` at its end."""
    return "predict: " + document + eos_token + claim


def word_chunks(text: str, words: int = CHUNK_WORDS) -> list[str]:
    """A text in slices of whole sentences of at most `words` words by white space; a longer sentence is one of its own."""
    pieces = ((start, end, len(text[start:end].split())) for start, end in sentence_bounds(text))
    return windows_of(text, pieces, words)


@dataclass(eq=False, repr=False)
class MiniCheckJudge(ClassifierJudge):
    """As [`~hf_factuality.verifiers.judges.hhem.HHEMJudge`], but an encoder-decoder that answers with "no" or "yes".

    The score is P(yes) among the two tokens at the first decoder step, the largest over the chunks of all passages. From
    `threshold` on the label is `SUPPORTED`, below it `negative_label`: MiniCheck does not tell contradicted from not
    mentioned. A chunk has at most `chunk_words` words and ends with a sentence; one that still does not fit `max_length`
    is cut further. The model judges one sentence at a time: split claims of several.

    What differs from the released code: white space inside a chunk stays as it is (the tokenizer folds it), sentences
    come from `sentencex` instead of nltk, and an empty document is `UNVERIFIABLE` instead of an error.

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"lytang/MiniCheck-Flan-T5-Large"`):
            Model id or folder of a sequence-to-sequence model, or the loaded model.
        batch_size (`int`, *optional*, defaults to `16`):
            Prompts in a forward pass.
        max_length (`int`, *optional*, defaults to `2048`):
            Tokens of a prompt.
        chunk_words (`int`, *optional*, defaults to `500`):
            See [`word_chunks`].
        no_token_id (`int`, *optional*, defaults to `3`), yes_token_id (`int`, *optional*, defaults to `209`):
            Ids of the two answers.
        tokenizer, revision, token, device, dtype, threshold, negative_label (*optional*):
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`].

    Raises:
        `ValueError`: an argument is out of range, the tokenizer has no end-of-sequence token, or see
            [`~hf_factuality.verifiers.judges.nli.NLIJudge`].
    """

    model: str | PreTrainedModel = MINICHECK_MODEL
    _: KW_ONLY
    batch_size: int = 16
    max_length: int = 2048
    chunk_words: int = CHUNK_WORDS
    no_token_id: int = NO_TOKEN
    yes_token_id: int = YES_TOKEN

    architecture = "AutoModelForSeq2SeqLM"

    def __post_init__(self):
        if self.chunk_words < 1:
            raise ValueError(f"chunk_words must be at least 1, got {self.chunk_words!r}")
        super().__post_init__()
        if self.tokenizer.eos_token is None:
            raise ValueError("the tokenizer has no end-of-sequence token, which parts document and claim")
        ids, size = (self.no_token_id, self.yes_token_id), self.model.config.vocab_size
        if ids[0] == ids[1] or not all(0 <= found < size for found in ids):
            raise ValueError(f"no_token_id and yes_token_id must be two ids below {size}, got {ids[0]!r}, {ids[1]!r}")

    def config(self) -> dict[str, Any]:
        """See [`~hf_factuality.verifiers.judges.pairs.ClassifierJudge.config`]."""
        own = {name: getattr(self, name) for name in ("chunk_words", "no_token_id", "yes_token_id")}
        return {**super().config(), **own}

    def _windows(self, inputs: Sequence[JudgeInput]) -> list[list[str] | None]:
        chunks = {text: word_chunks(text, self.chunk_words) for text in {t for item in inputs for t in item.evidence}}
        return super()._windows(
            [
                replace(item, evidence=tuple(chunk for text in item.evidence for chunk in chunks[text]))
                for item in inputs
            ]
        )

    def _prompt(self, premise: str, claim: str) -> str:
        return minicheck_prompt(premise, claim, self.tokenizer.eos_token)

    def _logits(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch

        start = self.model.config.decoder_start_token_id or 0
        ids = torch.full((len(features["input_ids"]), 1), start, device=features["input_ids"].device)
        logits = self.model(**features, decoder_input_ids=ids).logits
        return logits[:, 0, [self.no_token_id, self.yes_token_id]]


class MiniCheckVerifier(PairVerifier):
    """English sentences of the completion, judged against the row's evidence by [`MiniCheckJudge`], whose arguments are its
    own."""

    judges = MiniCheckJudge

    def __init__(self, model: str | PreTrainedModel = MINICHECK_MODEL, tokenizer=None, **kwargs: Any):
        super().__init__(model, tokenizer, "en", **kwargs)
