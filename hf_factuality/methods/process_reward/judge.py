"""A process reward model (ER-PRM, arXiv 2412.11006): P(correct) of every step of a solution, all of them in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from hf_factuality.methods.probe.judge import ProbeJudge
from hf_factuality.methods.process_reward.formula import solution_steps
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline


PROCESS = "process"
"""Entry of the model's `config.json`: `template`, `temperature`, `split`, `step_tag` and `pool`."""


@dataclass(frozen=True)
class StepExtractor:
    """Extractor of the steps of a solution: its lines, its sentences (`"sentences"`), or what stands between a text `split`.

    See [`~hf_factuality.methods.process_reward.formula.solution_steps`], which raises for `""`.
    """

    split: str = "lines"

    def __post_init__(self):
        self.steps("")

    def steps(self, text: str) -> list[tuple[int, int]]:
        """Character ranges of the steps of a text. Code, maths and headings are steps too: each is scored by what it leads to."""
        return solution_steps(text, sentence_offsets if self.split == "sentences" else self.split)

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, its steps in order, without labels."""
        return [[LabeledSpan(*step) for step in self.steps(item.completion)] for item in inputs]


def mark_steps(text: str, ends: Sequence[int], tag: str | None) -> tuple[str, list[int]]:
    """The text as the model reads it, with the tag behind each step, if there is one; and where the steps, or tags, end there."""
    tag = tag or ""
    parts = [text[begin:end] for begin, end in pairwise([0, *ends])]
    return tag.join([*parts, text[ends[-1] :]]), [end + place * len(tag) for place, end in enumerate(ends, 1)]


@dataclass(eq=False, repr=False)
class ProcessJudge(ProbeJudge):
    """Judges the steps of a solution by a model that [`~hf_factuality.trainers.ProcessRewardTrainer`] trained.

    Implements [`~hf_factuality.verifiers.base.Judge`]; no evidence is read. The score of a step is P(correct) of the solution
    up to its end; from .5 on (or `threshold`) it is `SUPPORTED`, below it `negative_label`. All steps of a completion are
    judged in one pass. There is no label where a completion is longer than `max_length`, the tokenizer changes it, or the
    output is not finite.

    Args:
        model, tokenizer, revision, token, device, dtype, batch_size, max_length, negative_label, threshold:
            See [`ProbeJudge`], which raises the same errors.
    """

    settings: ClassVar[str] = PROCESS

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per step, in order."""
        tag, ends, marked = getattr(self.model.config, PROCESS).get("step_tag"), defaultdict(set), {}
        items = [
            replace(it, completion=it.claim, span=(0, len(it.claim))) if None in (it.completion, it.span) else it
            for it in inputs
        ]
        for item in items:
            ends[item.completion].add(item.span[1])
        for text, own in ends.items():
            shown, places = mark_steps(text, sorted(own), tag)
            for end, place in zip(sorted(own), places, strict=True):  # by the last token of the character before
                marked[text, end] = {"completion": shown, "span": (place - 1, place)}
        return super().judge([replace(item, **marked[item.completion, item.span[1]]) for item in items])


class ProcessVerifier(VerifierPipeline):
    """Steps of the completion as the model was trained on, or by `split`, judged without evidence by [`ProcessJudge`], whose
    arguments are its own."""

    def __init__(self, model, tokenizer=None, split: str | None = None, **kwargs: Any):
        judge = ProcessJudge(model, tokenizer, **kwargs)
        split = split or getattr(judge.model.config, PROCESS).get("split", "lines")
        super().__init__(StepExtractor(split), judge, requires_evidence=False)
