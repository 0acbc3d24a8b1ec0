"""From questions to labels of the steps of solutions, by what becomes of continuations (ER-PRM, arXiv 2412.11006)."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hf_factuality.data.build import (
    LONG_ANSWERS,
    BuildArguments,
    BuildReport,
    Rows,
    build_arguments,
    refuse_arguments,
    run_build,
)
from hf_factuality.data.builder import DatasetKind, judged_responses, response_right, verified_responses
from hf_factuality.data.questions import PreferenceQuestion, with_golds
from hf_factuality.data.sampling import Messages, Response, Sampler, resampled
from hf_factuality.functional.scoring import mean
from hf_factuality.methods.process_reward.formula import process_label
from hf_factuality.methods.process_reward.judge import StepExtractor
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


REASONS = {"blank": "solutions without a step", "not_judged": "solutions of which nothing could be judged"}
KIND = DatasetKind("process_labels.parquet", "process labels", "label", REASONS, """# Steps of solutions, and what they are worth

{rows} solutions of {questions} questions in {steps} steps, made with hf_factuality {version} for a process reward model
([ER-PRM](https://huggingface.co/papers/2412.11006)): `labels` are what each of `steps` is worth by the final answers of
{rollouts} continuations; the last step's is whether the solution is right. 1 is good, 0 is bad, and null is unknown.
""", ("process-reward", "factuality"))  # fmt: skip
push_process_labels = KIND.push


@dataclass(frozen=True)
class ProcessLabelConfig:
    """What a step is, and what it is worth. The defaults are ER-PRM's, but for the steps, which are sentences there.

    Args:
        rollouts (`int`, *optional*, defaults to `16`):
            Continuations of each prefix of a solution; equal prefixes of a question share theirs.
        split (`str`, *optional*, defaults to `"lines"`):
            See [`~hf_factuality.verifiers.StepExtractor`].
        label_rule (`str`, *optional*, defaults to `"entropy"`), eta (`float`, *optional*, defaults to `1.0`):
            See [`~hf_factuality.methods.process_reward.formula.process_label`].

    Raises:
        `ValueError`: a value is unknown or out of range.
    """

    rollouts: int = 16
    split: str = "lines"
    label_rule: str = "entropy"
    eta: float = 1.0

    def __post_init__(self):
        if self.rollouts < 2:
            raise ValueError(f"rollouts={self.rollouts}: a step needs at least 2 continuations")
        StepExtractor(self.split)
        process_label((), self.label_rule, self.eta)


class _Continuing:
    """A sampler whose responses begin with the prefix that they continue, so that whole solutions are judged and kept."""

    def __init__(self, sampler: Sampler):
        self.describe, self._sample = sampler.describe, sampler.sample
        self.in_worker = getattr(sampler, "in_worker", False)

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        found = zip(prompts, self._sample(prompts, seed), strict=True)
        return [[it and replace(it, text=asked[-1]["content"] + it.text) for it in own] for asked, own in found]


def process_labels_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    labels: ProcessLabelConfig | None = None,
    **run: Any,
) -> Dataset:
    """Sample solutions, continue each from the end of every step but the last, and label steps by the final answers.

    Args:
        questions, sampler, verifier, folder, **run:
            As for [`~hf_factuality.data.refusals_from`]: questions have the gold answers. Continuations are sampled with the
            same settings, in the folder `rollouts` of the run.
        labels ([`ProcessLabelConfig`], *optional*):
            Steps and labels; `label_rule` and `eta` may differ when a run is continued.

    Returns:
        `datasets.Dataset`: columns `id`, `prompt`, `completion` (conversations), `steps` (texts), `labels` (numbers in [0, 1],
        or `None` without any judged continuation), `question`, `answer` (a list), `topic`.

    Raises:
        `DataError`, `JudgingError`: as there; no row is left. `TypeError`: solutions that exist already.
    """
    config, questions = labels or ProcessLabelConfig(), with_golds(questions)
    extractor, counts, rolled = StepExtractor(config.split), Counter(dict.fromkeys(REASONS, 0)), Counter()
    continues = _Continuing(resampled(sampler, config.rollouts))
    solved, prefixes = [], {}
    with judged_responses(questions, sampler, verifier, folder, KIND.file, **run) as journals:
        for question in questions:
            for number, (text, verdict) in enumerate(verified_responses(question, *journals, counts)):
                steps = extractor.steps(text)
                before = [_prefix(question, text[:end]) for _, end in steps[:-1]]
                solved.append((question, number, text, steps, before, response_right(text, verdict)))
                prefixes |= {prefix.id: prefix for prefix in before}
    rights: dict[str, list[bool | None]] = {}
    if asked := list(prefixes.values()):
        with judged_responses(asked, continues, verifier, Path(folder) / "rollouts", **run) as journals:
            for prefix in asked:
                rights[prefix.id] = [response_right(*found) for found in verified_responses(prefix, *journals, rolled)]
    rows = []
    for question, number, text, steps, before, right in solved:
        worth = [process_label(rights[prefix.id], config.label_rule, config.eta) for prefix in before]
        worth.append(None if right is None else float(right))
        if not steps or set(worth) == {None}:
            counts["not_judged" if steps else "blank"] += 1
            continue
        rows.append(question.columns() | {
            "id": f"{question.id} {number}", "completion": [{"role": "assistant", "content": text}],
            "labels": worth, "steps": [text[start:end] for start, end in steps],
        })  # fmt: skip
    labels = [label for row in rows for label in row["labels"]]
    report = {
        "questions": len(questions), "rows": len(rows), "steps": len(labels), "unknown_steps": labels.count(None),
        "mean_label": mean(labels), "right": mean([right for *_, right in solved]), "prefixes": len(prefixes),
        "rollouts": 0, **counts,
        **{name.replace("responses", "rollouts"): count for name, count in rolled.items()},
    }  # fmt: skip
    columns = "id question topic prompt completion steps labels answer"
    return KIND.write(Path(folder), rows, columns, report, config)


def _prefix(question: PreferenceQuestion, text: str) -> PreferenceQuestion:
    """A question that begins its answer with the text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    messages = (*question.messages, {"role": "assistant", "content": text})
    return replace(question, id=f"{question.id} {digest}", messages=messages)


def build_process_labels(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    rollouts: int = 16,
    step_split: str = "lines",
    label_rule: str = "entropy",
    eta: float = 1.0,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample solutions and continuations of them, and label their steps, for process rewards.

    Args:
        questions, out, **options:
            As of [`build_corrections`]. Sampled are by default 8 solutions, otherwise as there.
        rollouts, label_rule, eta (*optional*):
            See [`~hf_factuality.data.ProcessLabelConfig`]; `label_rule` and `eta` may differ when a run is continued.
        step_split (`str`, *optional*, defaults to `"lines"`):
            What ends a step: `"lines"`, `"sentences"`, or a text.

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.process_labels_from`] makes them.

    Raises:
        As [`build_refusals`].

    Example:

        >>> build_process_labels("questions.jsonl", out="labels", model="Qwen/Qwen3-0.6B").dataset["labels"]
    """
    args = build_arguments(options, questions, out, verifier="gold")
    config = ProcessLabelConfig(rollouts, step_split, label_rule, eta)
    refuse_arguments(
        args, "labelling steps continues the model's own solutions, by gold answers", "knowledge", "responses"
    )
    make = partial(process_labels_from, labels=config)
    return run_build(args, KIND, make, with_golds, **LONG_ANSWERS | {"num_samples": 8})
