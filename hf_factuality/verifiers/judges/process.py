"""A process reward model (ER-PRM, arXiv 2412.11006): P(correct) of every step of a solution, all of them in one pass.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hf_factuality.functional.process import solution_steps
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.extractors.sentences import sentence_offsets
from hf_factuality.verifiers.judges.probe import ProbeJudge
from hf_factuality.verifiers.pipeline import VerifierPipeline


PROCESS = "process"
"""Entry of the model's `config.json`: `template`, `temperature`, `split`, `step_tag` and `pool`."""


@dataclass(frozen=True)
class StepExtractor:
    """Extractor of the steps of a solution: its lines, its sentences (`"sentences"`), or what stands between a text `split`.

    See [`~hf_factuality.functional.process.solution_steps`], which raises for `""`.
    """

    split: str = "lines"

    def __post_init__(self):
        self.steps("")

    def steps(self, text: str) -> list[tuple[int, int]]:
        """Character ranges of the steps of a text."""
        return solution_steps(text, sentence_offsets if self.split == "sentences" else self.split)

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, its steps in order, without labels."""
        return [[LabeledSpan(*step) for step in self.steps(item.completion)] for item in inputs]


def mark_steps(text: str, steps: Sequence[tuple[int, int]], tag: str | None) -> tuple[str, list[tuple[int, int]]]:
    """The text as the model reads it, with the tag behind each step, if there is one; and per step the range of the character
    by whose last token it is judged: the last of the step, or of its tag."""
    parts, places, done, length = [], [], 0, 0
    for _, end in steps:
        parts.append(text[done:end] + (tag or ""))
        length += len(parts[-1])
        places.append((length - 1, length))
        done = end
    return "".join(parts) + text[done:], places


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
        asked, steps = [], {}
        for item in inputs:
            alone = item.completion is None or item.span is None
            text, span = (item.claim, (0, len(item.claim))) if alone else (item.completion, item.span)
            asked.append((text, item.question, span))
            steps.setdefault(asked[-1][:2], set()).add(span)
        tag, marked = getattr(self.model.config, PROCESS).get("step_tag"), {}
        for (text, question), spans in steps.items():
            spans = sorted(spans, key=lambda span: span[::-1])
            shown, places = mark_steps(text, spans, tag)
            marked |= {(text, question, span): (shown, at) for span, at in zip(spans, places, strict=True)}
        shown = [dict(zip(("completion", "span"), marked[key], strict=True)) for key in asked]
        return super().judge([replace(item, **new) for item, new in zip(inputs, shown, strict=True)])


class ProcessVerifier(VerifierPipeline):
    """Steps of the completion as the model was trained on, or by `split`, judged without evidence by [`ProcessJudge`], whose
    arguments are its own."""

    def __init__(self, model, tokenizer=None, split: str | None = None, **kwargs: Any):
        judge = ProcessJudge(model, tokenizer, **kwargs)
        split = split or getattr(judge.model.config, PROCESS).get("split", "lines")
        super().__init__(StepExtractor(split), judge, requires_evidence=False)
