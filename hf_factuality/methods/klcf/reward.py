"""KLCF's rewards (arXiv 2509.23765): recall and precision against a checklist, and the terms together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional._numbers import require_number
from hf_factuality.methods.klcf.formula import KLCF_WEIGHTS, ChecklistScores, KLCFWeights, checklist_scores
from hf_factuality.methods.long_form.reward import Reward, labels_of, truthfulness_reward
from hf_factuality.reading.completion import read
from hf_factuality.rewards._rows import JudgedReward
from hf_factuality.rewards.answers import THINK_OPENED, complete_text, complete_texts, on_card
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.base import Judge, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.service import VerificationRequest


class _Lines:
    """Extractor whose claims are the lines of a text."""

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        return [[LabeledSpan(*line.span()) for line in re.finditer(".+", item.completion)] for item in inputs]


class ChecklistReward(JudgedReward):
    """Recall and precision against the checklist of the row (KLCF, arXiv 2509.23765; the formulas are our reconstruction).

    The judge reads each item of the checklist as the claim and the answer as its evidence: supported is consistent,
    contradicted is contradictory, unverifiable is missing. What stands in `<think>` blocks is no answer, and an empty answer
    misses every item. The items of a batch are judged once, for both rewards:

    ```python
    checklist = ChecklistReward(NLIJudge(...))
    trainer = FactGRPOTrainer(..., reward_funcs=[checklist.recall, checklist.precision])
    ```

    Args:
        judge ([`~hf_factuality.verifiers.base.Judge`]):
            Of any verifier.
        column (`str`, *optional*, defaults to `"checklist"`):
            Dataset column with a list of statements. Rows without any are unknown.
        **guard:
            `timeout`, `batch_size` and `max_unjudged_batches` of [`~hf_factuality.rewards.RLFHReward`], and `raises`: errors
            that end the run instead of leaving completions out.
    """

    def __init__(self, judge: Judge, column: str = "checklist", **guard: Any):
        super().__init__(VerifierPipeline(_Lines(), judge), evidence_column=column, **guard)
        self._asked = self._rows = None
        self._scores: list[ChecklistScores] = []
        self.recall, self.precision = self._term("recall"), self._term("precision")

    def _term(self, name: str) -> Reward:
        def reward(completions, completion_texts=None, **columns):
            return [getattr(scores, name) for scores in self._of(completion_texts or completions, columns)]

        reward.__name__, reward.owner = f"checklist_{name}", self  # who judges ahead
        if type(self) is ChecklistReward:
            reward.card_method = f"checklist_{name}"
        return reward

    def _row(self, text: Any, columns: Mapping[str, Any]) -> VerificationRequest:
        items = super()._row(text, columns).input.evidence
        answer, _ = read(complete_text(text, columns.get("prompts"), columns.get(THINK_OPENED))).part()
        lines = "\n".join(" ".join(item.split()) for item in items)
        return VerificationRequest(VerifierInput(lines, None, (answer,) if answer else ()))

    def _of(self, texts: Sequence[Any], columns: Mapping[str, Any]) -> list[ChecklistScores]:
        if self.evidence_column not in columns:
            raise DataError(f"the rows have no {self.evidence_column!r}; name it: ChecklistReward(judge, column=...)")
        # By identity too: what one process alone has asked before, the others would wait for.
        asked = list(texts), list(columns[self.evidence_column])
        if texts is not self._asked or asked != self._rows:
            judged = self.judge(texts, columns)
            # An empty answer, which the judge was not shown, misses every item that there is.
            silent = [row.left_out == "no_evidence" and bool(row.row.ranges) for row in judged]
            found = [
                [Label.UNVERIFIABLE] if no else labels_of(it.found) for no, it in zip(silent, judged, strict=True)
            ]
            self._asked, self._rows, scores = texts, asked, map(checklist_scores, found)
            # An answer that mentions no item has won nothing, also in precision.
            self._scores = [it._replace(precision=0.0) if it.recall == 0.0 else it for it in scores]
        return self._scores


@on_card("format")
def ended_answer_reward(completions, **columns) -> list[float]:
    """1 for an answer that ends in a full stop or the like, else 0: KLCF's format term without tags (our choice)."""
    answers = [read(text).part()[0] for text in complete_texts(completions, columns)]
    return [float(re.search(r"[.!?。！？…][\s\"'”’)\]*_|»」』]*\Z", answer) is not None) for answer in answers]


def klcf_rewards(
    checklist: Judge | ChecklistReward,
    general: Any = None,
    length: Reward | None = None,
    weights: KLCFWeights = KLCF_WEIGHTS,
    format: Reward = ended_answer_reward,
) -> tuple[list[Any], dict[str, Any]]:
    """KLCF's terms (arXiv 2509.23765; our reconstruction) as reward functions, which TRL weighs and logs one by one.

    The trainer's verifier finds the claims of the answer and gives each its P(true); see docs/long-form.md.

    Args:
        checklist ([`~hf_factuality.verifiers.base.Judge`] or [`ChecklistReward`]):
            Compares the answer with the checklist of its row.
        general (*optional*):
            What TRL takes as a reward: the id of a sequence classifier, a model, or a function.
        length (`Callable`, *optional*):
            A penalty (ours), such as [`~trl.rewards.get_soft_overlong_punishment`]; needs a weight.
        weights ([`~hf_factuality.methods.klcf.formula.KLCFWeights`], *optional*):
            A term of weight 0 is left out.
        format (`Callable`, *optional*, defaults to [`ended_answer_reward`]):
            With tags [`~hf_factuality.rewards.FormatReward`].

    Returns:
        `tuple[list, dict]`: reward functions, and settings for [`~hf_factuality.FactGRPOConfig`]. By "normalize_then_sum"
        each term counts in standard deviations of its group, so that the general model's scale cannot dominate.

    Raises:
        `ValueError`: a length without a weight, a weight without a length, or one that is no finite number.
    """
    for name, weight in zip(weights._fields, weights, strict=True):
        require_number(f"weights.{name}", weight)
    if (length is None) == bool(weights.length):
        raise ValueError(f"length={length!r} has weight {weights.length!r}; set both or none: KLCFWeights(length=1)")
    own = checklist if isinstance(checklist, ChecklistReward) else ChecklistReward(checklist)
    terms = (own.recall, own.precision, truthfulness_reward, general, format, length)
    used = [(term, float(weight)) for term, weight in zip(terms, weights, strict=True) if weight and term is not None]
    return [term for term, _ in used], {
        "reward_weights": [weight for _, weight in used],
        "multi_objective_aggregation": "normalize_then_sum",
        "credit": "none",
        "factuality_reward_weight": 0.0,
        "verify_scope": "answer",
    }


def named_reward(name: str, verifier: Any = None) -> list[Any]:
    """What "klcf" stands for in `reward_funcs`: its terms, with the verifier's judge for the checklist."""
    return klcf_rewards(getattr(verifier, "judge", None))[0]
