"""A hallucination probe (arXiv 2509.03531): a linear head on a frozen language model that doubts tokens while it reads.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from hf_factuality.functional.calibration import sigmoid
from hf_factuality.methods.truthfulness.judge import TruthfulnessJudge, TruthfulnessVerifier
from hf_factuality.offsets import token_offsets
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.judges.pairs import CONTRADICTED, SUPPORTED, with_broken_tokens, without_special_tokens
from hf_factuality.verifiers.prompts import Prompt


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

PROBE = "probe"
"""Entry of the model's `config.json`: `template`, `temperature`, `threshold` and `pool`."""
# The log-odds of a span by those of its tokens; "last" is of process reward models.
_POOLS = {"max": min, "mean": fmean, "last": itemgetter(-1)}


def encode_completions(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, pairs: Sequence[tuple[str, str]]
) -> tuple[list[list[int]], list[list[tuple[int, int]] | None]]:
    """Token ids of (question, completion) pairs, and the characters of the completion that each token has, if any; `None`
    for those of a completion that the tokenizer does not give back as it was."""
    # The template ends where the completion stands, in which "x<y" keeps its length: only special tokens are broken.
    completions = [with_broken_tokens(text, tokenizer) for _, text in pairs]
    asked = [prompt.fill({"question": without_special_tokens(it, tokenizer), "claim": ""}) for it, _ in pairs]
    texts = [question + completion for question, completion in zip(asked, completions, strict=True)]
    rows = tokenizer(texts, return_token_type_ids=False, verbose=False)["input_ids"] if texts else []
    places: list[list[tuple[int, int]] | None] = []
    for ids, completion in zip(rows, completions, strict=True):
        text, offsets = token_offsets(tokenizer, ids)
        begin = len(text) - len(completion)
        found = [(max(start - begin, 0), max(end - begin, 0)) for start, end in offsets]
        places.append(found if text.endswith(completion) else None)
    return rows, places


@dataclass(eq=False, repr=False)
class ProbeJudge(TruthfulnessJudge):
    """Reads a whole completion with the head that [`~hf_factuality.trainers.ProbeTrainer`] trained; no evidence is read.

    Implements [`~hf_factuality.verifiers.base.Judge`]. Differs from [`TruthfulnessJudge`] in that claims are judged where
    they stand, in one pass per completion, by the most doubtful of their tokens (or what `pool` of the probe says). A claim
    without its completion is read as one. There is no label where a completion is longer than `max_length`, the tokenizer
    changes it, or the output is not finite.

    Args:
        threshold (`float`, *optional*):
            `None`: the one that was chosen on held-out claims.
        model, tokenizer, revision, token, device, dtype, batch_size, max_length, negative_label:
            See [`TruthfulnessJudge`], which raises the same errors.
    """

    _: KW_ONLY
    threshold: float | None = None

    architecture: ClassVar[str] = "AutoModelForTokenClassification"
    settings: ClassVar[str] = PROBE

    def __post_init__(self):
        given, self.threshold = self.threshold, 0.5 if self.threshold is None else self.threshold
        super().__post_init__()
        self.pool, chosen = (getattr(self.model.config, self.settings).get(name) for name in ("pool", "threshold"))
        if self.pool not in _POOLS or not (chosen is None or isinstance(chosen, float) and 0 <= chosen <= 1):
            raise ValueError(
                f"config.json: pool={self.pool!r} must be one of {[*_POOLS]}, threshold={chosen!r} in [0, 1]"
            )
        self.threshold = chosen if given is None and chosen is not None else self.threshold

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        asked = []
        for item in inputs:
            alone = item.completion is None or item.span is None
            text, span = (item.claim, (0, len(item.claim))) if alone else (item.completion, item.span)
            asked.append(((item.question or "", text), span))
        pairs = list(dict.fromkeys(pair for pair, _ in asked))
        tokens = dict(zip(pairs, self.token_log_odds(pairs), strict=True))
        results = []
        for pair, (first, last) in asked:
            own = [value for (start, end), value in zip(*tokens[pair], strict=True) if start < last and end > first]
            known = bool(own) and all(map(math.isfinite, own))
            score = sigmoid(_POOLS[self.pool](own)) if known else None
            label = known and (Label.SUPPORTED if score >= self.threshold else self.negative_label)
            results.append(Judgement(label or None, score))
        if failed := sum(result.label is None for result in results):
            told = "%d of %d claims were not judged: too long, no text, changed by the tokenizer, or not finite"
            logger.warning(told, failed, len(results))
        return results

    def token_log_odds(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[tuple[int, int]], list[float]]]:
        """Characters of the tokens of each (question, completion) and their log-odds of being true; empty if unknown."""
        rows, places = encode_completions(self.tokenizer, self._template, pairs)
        fits = [n for n, ids in enumerate(rows) if places[n] is not None and 0 < len(ids) <= self.max_length]
        encoded = {"input_ids": [rows[n] for n in fits], "attention_mask": [[1] * len(rows[n]) for n in fits]}
        found: list[tuple[list, list]] = [([], []) for _ in rows]
        true, false = self.roles.index(SUPPORTED), self.roles.index(CONTRADICTED)
        for chosen, logits in self._passes(encoded):
            for place, values in zip(chosen, (logits[..., true] - logits[..., false]).tolist(), strict=True):
                n, left = fits[place], self.tokenizer.padding_side == "left"
                found[n] = places[n], values[-len(rows[n]) :] if left else values[: len(rows[n])]
        return found


class ProbeVerifier(TruthfulnessVerifier):
    """Sentences of the completion, judged without evidence by [`ProbeJudge`], whose arguments are its own, and `language`."""

    judges = ProbeJudge
