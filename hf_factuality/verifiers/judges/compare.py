"""Which of two answers to a question with passages is better on one axis, by a model on a server."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any

from hf_factuality.generation.base import ChatRequest
from hf_factuality.generation.client import ChatClient
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Judgement, PairInput, VerifierInput
from hf_factuality.verifiers.judges.llm import ServedJudge, Talk, read_choice
from hf_factuality.verifiers.prompts import load_prompt


AXES: Mapping[str, str] = MappingProxyType({
    "hallucination": "Which answer states less that the passages do not support? A statement that a passage contradicts weighs most.",
    "comprehensiveness": "Which answer says more of what the question asks for, as far as the passages hold it?",
    "verbosity": "Which answer has fewer words that do not serve the question: repetition, padding, digression? Being longer is no "
    "fault where the additional words answer the question.",
    "attribution": "In which answer do more of the statements cite, by their numbers, passages that support them? A citation of a "
    "passage that does not say so counts against the answer.",
})  # fmt: skip
"""The axes of RAG-Reward (arXiv 2501.13264), and what a judge is asked about each. The questions are ours: the paper's prompts
are not published."""
VERDICTS: Mapping[str, Label] = MappingProxyType(
    {"A": Label.SUPPORTED, "B": Label.CONTRADICTED, "tie": Label.UNVERIFIABLE}
)
"""Verdict -> label of the first answer."""


def numbered(passages: Sequence[str]) -> str:
    """Passages as a model reads them, with the numbers that it cites."""
    return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(passages, 1))


def grounded_messages(question: str, passages: Sequence[str]) -> list[dict[str, str]]:
    """The conversation that asks a question with its passages, and for citations."""
    values = {"question": question, "passages": numbered(passages)}
    return [{"role": "user", "content": load_prompt("grounded_answer", values).fill(values)}]


@dataclass(eq=False, repr=False)
class CompareJudge(ServedJudge):
    """Compares pairs of answers on one axis. An answer that is none of the three verdicts is unknown, and counted.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model.
        axis (`str`, *optional*, defaults to `"hallucination"`):
            A name of [`AXES`], or the words that tell a judge what to compare.
        max_tokens (`int`, *optional*, defaults to `16`):
            Longest answer. A model that thinks first needs thousands.
    """

    axis: str = "hallucination"
    _: KW_ONLY
    max_tokens: int = 16

    def __post_init__(self):
        if not self.axis.strip():
            raise ValueError(f"axis must be one of {[*AXES]}, or a question of your own; got {self.axis!r}")
        self._prompt = load_prompt("compare", ("question", "passages", "first", "second", "axis"))

    def _talk(self, item: PairInput) -> Talk:
        values = {
            "question": item.question, "passages": numbered(item.evidence) or None, "first": item.first,
            "second": item.second, "axis": AXES.get(self.axis, self.axis),
        }  # fmt: skip
        answer = yield ChatRequest(
            (("user", self._prompt.fill(values)),), (*VERDICTS,), max_new_tokens=self.max_tokens
        )
        return Judgement(VERDICTS.get(read_choice(answer, (*VERDICTS,), nucleus=0.0)[0]))


class CompareVerifier:
    """A judge of pairs for [`~hf_factuality.data.rag_preferences_from`] and, as `pair_judge`, of the metric `winrate`.

    As a verifier it labels the completion against the answer in the column `other`: `SUPPORTED` if it is better,
    `CONTRADICTED` if it is worse, `UNVERIFIABLE` for a tie. Each order is a question of its own.

    Args:
        model, base_url, **kwargs:
            See [`~hf_factuality.generation.client.ChatClient`].
        axis, max_tokens (*optional*):
            See [`CompareJudge`].
    """

    compares, requires_evidence = True, False

    def __init__(self, model: str, base_url: str, axis: str = "hallucination", max_tokens: int = 16, **kwargs: Any):
        self.model = model
        self.judge = CompareJudge(ChatClient(base_url, model, **kwargs), axis, max_tokens=max_tokens)

    def on(self, axis: str) -> CompareVerifier:
        """The same judge on another axis."""
        other = copy.copy(self)
        other.judge = CompareJudge(self.judge.client, axis, max_tokens=self.judge.max_tokens)
        return other

    def compare(self, pairs: Sequence[PairInput]) -> list[str | None]:
        """See [`~hf_factuality.metrics.PairJudge`]."""
        said = {label: verdict for verdict, label in VERDICTS.items()}
        return [said.get(found.label) for found in self.judge.judge(pairs)]

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`~hf_factuality.Verification`] per input, in order: a span over all of it."""
        pairs = [PairInput(it.question, it.completion, it.row.get("other", ""), it.evidence) for it in inputs]
        found = zip(inputs, self.judge.judge(pairs), strict=True)
        return [
            Verification((LabeledSpan(0, len(it.completion), one.label),), unanswered=int(one.unanswered))
            for it, one in found
        ]
