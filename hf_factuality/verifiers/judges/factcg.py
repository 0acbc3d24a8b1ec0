"""Judge by FactCG: does the paragraph lead to the claim, by a DeBERTa-v3 that was trained on claims over several steps.

Template, chunks, threshold and the order of the classes are those of the released code (arXiv 2501.17144, `derenlei/FactCG`).
Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.pairs import (
    ClassifierJudge,
    PairVerifier,
    in_chunks,
    sentence_bounds,
    windows_of,
)


if TYPE_CHECKING:
    from transformers import PreTrainedModel


FACTCG_MODEL = "yaxili96/FactCG-DeBERTa-v3-Large"
CHUNK_SIZE = 550
# Words and marks, about as the tokenizer of the Penn Treebank counts them: "don't" and "it's" are two, "1,000" and "x-ray" one.
_WORD_OR_MARK = re.compile(r"n['’]t\b|['’]\w+|(?:(?!n['’]t\b)\w)+(?:[-.,/:](?=\w)\w+)*|[^\w\s]")


def factcg_prompt(document: str, claim: str) -> str:
    """The text that FactCG reads."""
    return (
        document
        + '\n\nChoose your answer: based on the paragraph above can we conclude that "'
        + claim
        + '"?\n\nOPTIONS:\n- Yes\n- No\nI think the answer is '
    )


def factcg_chunks(text: str, size: int = CHUNK_SIZE) -> list[str]:
    """A text in slices of whole sentences of at most `size` words and marks; a longer sentence is one of its own."""
    pieces = ((start, end, len(_WORD_OR_MARK.findall(text[start:end]))) for start, end in sentence_bounds(text))
    return windows_of(text, pieces, size)


@dataclass(eq=False, repr=False)
class FactCGJudge(ClassifierJudge):
    """As [`~hf_factuality.verifiers.judges.hhem.HHEMJudge`], by FactCG-DeBERTa-v3-Large.

    The score is the probability of class 1, the largest over the chunks of all passages. From `threshold` on the label is
    `SUPPORTED`, below it `negative_label`: FactCG does not tell contradicted from not mentioned. A chunk ends with a sentence
    and has at most `chunk_size` words and marks; one that still does not fit `max_length` is cut further. English only.

    What differs from the released code: sentences come from `sentencex` instead of nltk, words are counted by a pattern instead
    of nltk's tokenizer, white space inside a chunk stays as it is (DeBERTa's tokenizer folds it), and an empty document is
    `UNVERIFIABLE` instead of an error.

    Args:
        model (`str` or `PreTrainedModel`, *optional*, defaults to `"yaxili96/FactCG-DeBERTa-v3-Large"`):
            Model id or folder of a sequence classifier of two classes, or the loaded model.
        batch_size (`int`, *optional*, defaults to `16`):
            Prompts in a forward pass.
        max_length (`int`, *optional*, defaults to `2048`):
            Tokens of a prompt.
        chunk_size (`int`, *optional*, defaults to `550`):
            See [`factcg_chunks`].
        tokenizer, revision, token, device, dtype, threshold, negative_label (*optional*):
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`].

    Raises:
        `ValueError`: an argument is out of range, the model has not two classes, or see
            [`~hf_factuality.verifiers.judges.nli.NLIJudge`].
    """

    model: str | PreTrainedModel = FACTCG_MODEL
    _: KW_ONLY
    batch_size: int = 16
    max_length: int = 2048
    chunk_size: int = CHUNK_SIZE

    bfloat16_on_gpu = True

    def __post_init__(self):
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {self.chunk_size!r}")
        super().__post_init__()
        classes = self.model.config.num_labels
        if classes != 2:
            raise ValueError(f"{self.model.config.name_or_path!r} has {classes} classes, FactCG has 2")

    def config(self) -> dict[str, Any]:
        """See [`~hf_factuality.verifiers.judges.pairs.ClassifierJudge.config`]."""
        return {**super().config(), "chunk_size": self.chunk_size}

    def _windows(self, inputs: Sequence[JudgeInput]) -> list[list[str] | None]:
        return super()._windows(in_chunks(inputs, lambda text: factcg_chunks(text, self.chunk_size)))

    def _prompt(self, premise: str, claim: str) -> str:
        return factcg_prompt(premise, claim)


class FactCGVerifier(PairVerifier):
    """English sentences of the completion, judged against the row's evidence by [`FactCGJudge`], whose arguments are its own."""

    judges = FactCGJudge

    def __init__(self, model: str | PreTrainedModel = FACTCG_MODEL, tokenizer=None, **kwargs: Any):
        super().__init__(model, tokenizer, "en", **kwargs)
