"""From questions to answers that their own model checks and revises: self-rewarding correction (arXiv 2502.19613)."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
from hf_factuality.data.builder import (
    DatasetKind,
    Unjudged,
    judged_responses,
    response_right,
    seeded_random,
    verified_responses,
)
from hf_factuality.data.questions import PreferenceQuestion, with_golds
from hf_factuality.data.sampling import Sampler, resampled
from hf_factuality.methods.self_correction.formula import CHECK, CHECKED_RIGHT, CHECKED_WRONG, REVISE
from hf_factuality.reading.marks import self_verdict, without_verdict
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


PATTERNS = {
    (False, False): "wrong, found wrong, corrected",
    (True, False): "right, found wrong, kept right",
    (True, True): "right, found right",
}
REASONS = {
    "cut_off": "responses that were cut off or are empty",
    "not_judged": "answers and revisions that could not be judged",
    "no_verdict": "right answers without a fitting verdict",
    "not_noticed": "wrong answers that no verdict found wrong",
    "not_corrected": "answers found wrong without a right revision",
    "no_pair": "answers whose samples make no pair",
}
KIND = DatasetKind("corrections.parquet", "corrections", "correction", REASONS, """# Answers that are checked and revised

{rows} rows on {questions} questions, sampled from the model itself with hf_factuality {version} for
[self-rewarding correction](https://huggingface.co/papers/2502.19613). An answer ends in a verdict, `[VERIFY] correct` or
`[VERIFY] wrong`; after the latter a second turn revises it.
""", ("self-correction", "factuality"))  # fmt: skip
push_corrections = KIND.push


@dataclass(frozen=True)
class CorrectionConfig:
    """What is sampled of an answer, and what becomes of it.

    Args:
        output (`str`, *optional*, defaults to `"trajectories"`):
            `"trajectories"`, conversations for SFT on the assistant's turns, at most one per answer; or `"pairs"`, `prompt`,
            `chosen` and `rejected` for DPO. A pair shares all before the text that differs, so that the loss on it is that of
            multi-turn DPO.
        num_verdicts (`int`, *optional*, defaults to 4), num_revisions (`int`, *optional*, defaults to 4):
            Verdicts sampled of an answer, and revisions of one that was found wrong.
        misled (`float`, *optional*, defaults to 0.1):
            Share of the right answers that are found wrong, by a verdict that was sampled or else by the bare words, so that
            the model learns to stand by what is right. Ours; the paper does not give one.
        check, revise (`str`, *optional*):
            What is said for the user, [`CHECK`] and [`REVISE`] by default.

    Raises:
        `ValueError`: a value is unknown, out of range or blank.
    """

    output: str = "trajectories"
    num_verdicts: int = 4
    num_revisions: int = 4
    misled: float = 0.1
    check: str = CHECK
    revise: str = REVISE

    def __post_init__(self):
        if self.output not in ("trajectories", "pairs") or not 0 <= self.misled <= 1:
            raise ValueError(
                f"need output 'trajectories' or 'pairs', 0 <= misled <= 1; got {self.output!r}, {self.misled}"
            )
        if min(self.num_verdicts, self.num_revisions) < 2:
            given = f"{self.num_verdicts} and {self.num_revisions}"
            raise ValueError(f"need at least 2 verdicts and 2 revisions, got {given}")
        if not self.check.strip() or not self.revise.strip():
            raise ValueError("check and revise must be texts that are not blank")


@dataclass(frozen=True)
class _Answer:
    """A sampled answer, or a revision: whose, which, and whether it is right."""

    question: PreferenceQuestion
    key: str
    text: str
    right: bool

    def asked(self, turn: str, request: str) -> PreferenceQuestion:
        """What the user says after a turn, as a question of its own with the same gold answers."""
        asked = {"role": "user", "content": request}
        return replace(self.question, id=self.key, messages=(*self.question.messages, _said(turn), asked))

    def verdicts(self, both: bool) -> dict[bool, list[str]]:
        """First turns by their verdict, of an answer that has one already; with `both` the other one in its place, too."""
        found, own = {True: [], False: []}, self_verdict(self.text)
        if own is not None:
            found[own].append(self.text)
            if both:
                found[not own].append(_turn(without_verdict(self.text), CHECKED_WRONG if own else CHECKED_RIGHT))
        return found


def corrections_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    corrections: CorrectionConfig | None = None,
    **run: Any,
) -> Dataset:
    """Sample answers, the model's verdicts on them and revisions, and keep what a model should learn to do.

    Args:
        questions, sampler, verifier, folder, **run:
            As for [`~hf_factuality.data.refusals_from`]: questions have the gold answers. Verdicts and revisions are sampled
            with the same settings, in the folders `verdicts` and `revisions` of the run. An answer that ends in a verdict, of a
            model that was trained to, is not asked for another.
        corrections ([`CorrectionConfig`], *optional*):
            What is sampled and kept; `output` may differ when a run is continued.

    Returns:
        `datasets.Dataset`: columns `id` (of question and answer), `kind`, `question`, `answer` (a list), `topic`; and of
        trajectories `messages`, of pairs `prompt`, `chosen`, `rejected` (conversations).

    Raises:
        `DataError`, `JudgingError`: as there; no row is left. `TypeError`: responses that exist already.
    """
    config, seed, folder = corrections or CorrectionConfig(), run.get("seed", 0), Path(folder)
    questions, counts = with_golds(questions), Counter(dict.fromkeys(REASONS, 0))
    checks, revisions = resampled(sampler, config.num_verdicts), resampled(sampler, config.num_revisions)

    def answers(asked, sampler, folder, verifier=verifier, file=None) -> Iterator[tuple[PreferenceQuestion, list]]:
        with judged_responses(asked, sampler, verifier, folder, file, **run) as journals:
            for question in asked:
                before = counts["responses"]
                found = verified_responses(question, *journals, counts, finished=True)
                kept = [(text, verdict) for text, verdict in found if text.strip()]
                counts["cut_off"] += counts["responses"] - before - len(kept)
                counts["cut_off_responses"] = 0  # none is kept
                yield question, kept

    solved: list[_Answer] = []
    for question, found in answers(questions, sampler, folder, file=KIND.file):
        for number, (text, verdict) in enumerate(found):
            right = response_right(text, verdict)
            if right is None:
                counts["not_judged"] += 1
            else:
                solved.append(_Answer(question, f"{question.id} {number}", text, right))
    by_key, rows = {it.key: it for it in solved}, []
    said = {it.key: it.verdicts(config.output == "pairs") for it in solved}
    asked = [it.asked(it.text, config.check) for it in solved if not any(said[it.key].values())]
    for question, found in answers(asked, checks, folder / "verdicts", Unjudged()) if asked else ():
        for text, _ in found:
            if (verdict := self_verdict(text)) is not None:
                said[question.id][verdict].append(_turn(by_key[question.id].text, text))
    doubted: dict[str, str] = {}  # the first turn of answers that are found wrong
    for it, found in zip(solved, said.values(), strict=True):
        draw = seeded_random(seed, it.key)
        misled = it.right and draw.random() < config.misled
        if config.output == "pairs" and found[True] and found[False]:
            pair = draw.choice(found[it.right]), draw.choice(found[not it.right])
            rows.append(it.question.columns() | {"id": it.key, "kind": "verdict"} | _pair(*pair))
        if not it.right or misled:
            if not it.right and not found[False]:
                counts["not_noticed"] += 1
                continue
            doubted[it.key] = draw.choice(found[False] or [_turn(without_verdict(it.text), CHECKED_WRONG)])
        elif config.output == "trajectories":
            if found[True]:
                rows.append(_trajectory(it, it.question, draw.choice(found[True]), PATTERNS[True, True]))
            else:
                counts["no_verdict"] += 1
    asked = [by_key[key].asked(turn, config.revise) for key, turn in doubted.items()]
    for question, found in answers(asked, revisions, folder / "revisions") if asked else ():
        it, made, draw = by_key[question.id], defaultdict(list), seeded_random(seed, f"revision {question.id}")
        for text, verdict in found:
            made[response_right(text, verdict)].append(text)
        counts["not_judged"] += len(made[None])
        if config.output == "pairs" and made[True] and made[False]:
            pair = draw.choice(made[True]), draw.choice(made[False])
            rows.append(question.columns() | {"kind": "revision"} | _pair(*pair))
        elif config.output == "pairs":
            counts["no_pair"] += 1
        elif made[True]:
            rows.append(_trajectory(it, question, draw.choice(made[True]), PATTERNS[it.right, False]))
        else:
            counts["not_corrected"] += 1
    report = {
        "questions": len(questions), "rows": len(rows), "kinds": dict(Counter(row["kind"] for row in rows)),
        **counts,
    }  # fmt: skip
    columns = "prompt chosen rejected" if config.output == "pairs" else "messages"
    return KIND.write(folder, rows, f"id kind question topic answer {columns}", report, config)


def _turn(answer: str, check: str) -> str:
    """A first turn as the model should write it: the answer, and below it what was found in checking it."""
    return f"{answer.rstrip()}\n\n{check.strip()}"


def _trajectory(it: _Answer, asked: PreferenceQuestion, text: str, kind: str) -> dict[str, Any]:
    return {**asked.columns(), "id": it.key, "kind": kind, "messages": [*asked.messages, _said(text)]}


def _pair(chosen: str, rejected: str) -> dict[str, Any]:
    return {"chosen": [_said(chosen)], "rejected": [_said(rejected)]}


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def build_corrections(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    output: str = "trajectories",
    num_verdicts: int = 4,
    num_revisions: int = 4,
    misled: float = 0.1,
    check: str = CHECK,
    revise: str = REVISE,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample answers, let the model check and revise them, and keep what is right, for self-correction.

    Args:
        questions, out, **options:
            As of [`build_preferences`], with the gold answer or a list of them as `answer`; `verifier` is `"gold"` by default,
            and `knowledge` and `responses` mean nothing. Sampled are by default 4 answers at temperature 1.0, of at most
            1024 tokens.
        output, num_verdicts, num_revisions, misled, check, revise (*optional*):
            What is sampled of an answer, and written, see [`~hf_factuality.data.CorrectionConfig`]. `output` may differ when
            a run is continued.

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.corrections_from`] makes them.

    Raises:
        As [`build_refusals`].

    Example:

        >>> build_corrections("questions.jsonl", out="corrections", model="Qwen/Qwen3-0.6B", output="pairs").report["kinds"]
    """
    args = build_arguments(options, questions, out, verifier="gold")
    config = CorrectionConfig(output, num_verdicts, num_revisions, misled, check, revise)
    refuse_arguments(
        args, "self-correction asks the model about its own answers, by gold answers", "knowledge", "responses"
    )
    return run_build(args, KIND, partial(corrections_from, corrections=config), with_golds, **LONG_ANSWERS)
