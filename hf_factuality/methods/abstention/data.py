"""From questions to what a model should say of its own knowledge: R-Tuning (arXiv 2311.09677), in its three variants."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hf_factuality.data.build import BuildArguments, BuildReport, Rows, build_arguments, refuse_arguments, run_build
from hf_factuality.data.builder import DatasetKind, judged_responses, response_right, seeded_random, verified_responses
from hf_factuality.data.questions import PreferenceQuestion, with_golds
from hf_factuality.data.sampling import Sampler
from hf_factuality.generation.sureness import SURE_WORDS
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


VARIANTS = ("unsure", "unknown", "uncertain")
REFUSALS: Mapping[str, tuple[str, ...]] = {
    "en": (
        "I don't know.", "I do not know the answer to this question.", "I'm not sure about that, so I would rather not guess.",
        "I am sorry, but I don't have an answer to that.", "I have no reliable information about that.",
        "Sorry, I am not able to answer this.", "I can't answer this question with certainty.",
        "I don't have enough knowledge to answer this.",
    ),
    "zh": (
        "我不知道。", "我不知道这个问题的答案。", "抱歉，我不清楚。", "我不确定，所以不想乱猜。", "抱歉，我无法回答这个问题。", "我没有足够的信息来回答。",
    ),
}  # fmt: skip
"""Language -> what a model says that does not know; the released code has 16 other sentences, in English."""
REASONS = {
    "lost": "questions of which responses are missing",
    "not_judged": "questions of which responses could not be judged and none is right",
    "surplus_refusals": "unknown questions beyond the share of refusals that was asked for",
}
KIND = DatasetKind("refusals.parquet", "refusals", "refusal", REASONS, """# What a model knows and what it does not

{rows} questions, of which a model knows {sure} and does not know {unsure} by its own responses, made with hf_factuality
{version} for [R-Tuning](https://huggingface.co/papers/2311.09677): the variant `{variant}`. `prompt` and `completion` are what
`SFTTrainer` reads. It fits this model alone: another one knows other things.
""", ("abstention", "r-tuning", "factuality"))  # fmt: skip
push_refusals = KIND.push


@dataclass(frozen=True)
class RefusalConfig:
    """What becomes of a question. The defaults are R-Tuning's.

    Args:
        variant (`str`, *optional*, defaults to `"unsure"`):
            `"unsure"`: the gold answer, and whether the model is sure of it, which it is if a response is right. `"unknown"`
            (R-Tuning-R): the gold answer, or a refusal. `"uncertain"` (R-Tuning-U): as `"unsure"`, but sure is the half of
            the questions whose responses have the lower entropy.
        max_entropy (`float`, *optional*):
            For `"uncertain"`: sure are questions of at most so much entropy (in nats), in place of the lower half.
        language (`str`, *optional*, defaults to `"en"`):
            Of what is added to the answers: a name of `SURE_WORDS`.
        question (`str`, *optional*):
            The question for the confidence, that of the language by default; `""` for none.
        refusals (`tuple[str, ...]`, *optional*):
            What `"unknown"` draws from; those of the language by default.
        max_refusal_share (`float`, *optional*, defaults to `1.0`):
            For `"unknown"`: refusals are at most this share of the rows; the seed chooses which unknown questions are left
            out. Of a model that knows little, R-Tuning's data is nearly all refusals, and what is trained on it declines
            nearly everything. A share s in place of the natural one moves the confidence below which a model declines, as a
            change of class weights does. R-Tuning keeps all of them. At least one row is kept of each kind that occurs.

    Raises:
        `ValueError`: a value is unknown or out of range, or means nothing to the variant.
    """

    variant: str = "unsure"
    max_entropy: float | None = None
    language: str = "en"
    question: str | None = None
    refusals: tuple[str, ...] = ()
    max_refusal_share: float = 1.0

    def __post_init__(self):
        if self.variant not in VARIANTS or self.language not in SURE_WORDS:
            known = f"a variant of {VARIANTS}, a language of {tuple(SURE_WORDS)}"
            raise ValueError(f"need {known}; got {self.variant!r} and {self.language!r}")
        if self.max_entropy is not None and not self.max_entropy >= 0:
            raise ValueError(f"max_entropy is at least 0, got {self.max_entropy}")
        if not 0 < self.max_refusal_share <= 1:
            raise ValueError(f"max_refusal_share is above 0 and at most 1, got {self.max_refusal_share}")
        if isinstance(self.refusals, str) or not all(text.strip() for text in self.refusals):
            raise ValueError(f"refusals must be texts that are not blank, got {self.refusals!r}")
        only = {
            "max_entropy": ("uncertain",),
            "question": ("unsure", "uncertain"),
            "refusals": ("unknown",),
            "max_refusal_share": ("unknown",),
        }
        defaults = {field.name: field.default for field in fields(self)}
        for name, variants in only.items():
            if getattr(self, name) != defaults[name] and self.variant not in variants:
                raise ValueError(f"{name} means nothing to the variant {self.variant!r}; leave it out")

    def completion(self, answer: str, sure: bool, draw: random.Random) -> str:
        """What the model learns to say."""
        if self.variant == "unknown":
            return answer if sure else draw.choice(self.refusals or REFUSALS[self.language])
        words = SURE_WORDS[self.language]
        return (words if self.question is None else replace(words, question=self.question)).said(answer, sure)


def refusals_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    refusals: RefusalConfig | None = None,
    **run: Any,
) -> Dataset:
    """Ask a model, compare with the gold answers, and write what it should say: R-Tuning's training data.

    Args:
        questions, sampler, verifier, folder, **run:
            As for [`~hf_factuality.data.preferences_from`], where it is said how a run is continued. Rows of questions have
            `answer`, the gold answer or a list of them: the evidence of the verifier, such as
            [`~hf_factuality.verifiers.GoldVerifier`]; a response is right if all that it labels is supported. R-Tuning's
            sampling is `SamplingConfig(temperature=0.0, max_new_tokens=15, stop=(".",))`, or 5 samples at 0.7 for `"uncertain"`.
            `seed` also draws refusals, and what is sure of questions of equal entropy.
        refusals ([`RefusalConfig`], *optional*):
            What is written. May differ when a run is continued, since it is applied at the end.

    Returns:
        `datasets.Dataset`: columns `id`, `prompt`, `completion` (conversations), `question`, `answer` (a list), `topic`,
        `sure`, `correct` (share of the judged responses that are right), `entropy` (of the responses, in nats).

    Raises:
        `DataError`, `JudgingError`: as there; a question without a gold answer. `ValueError`: too few samples.
    """
    config, seed = refusals or RefusalConfig(), run.get("seed", 0)
    questions, least = with_golds(questions), 1 + (config.variant == "uncertain")
    if (number := sampler.describe().get("num_samples", least)) < least:
        raise ValueError(f"{config.variant!r} needs at least {least} samples per question, the sampler draws {number}")
    counts, rows = Counter(dict.fromkeys(REASONS, 0)), []
    with judged_responses(questions, sampler, verifier, folder, KIND.file, **run) as journals:
        for question in questions:
            lost = counts["lost_responses"]
            found = verified_responses(question, *journals, counts)
            right = [response_right(text, verdict) for text, verdict in found]
            known = [value for value in right if value is not None]
            sure = True if True in known else None if None in right else False
            if counts["lost_responses"] > lost or len(found) < least:
                counts["lost"] += 1
            elif sure is None and config.variant != "uncertain":
                counts["not_judged"] += 1
            else:
                share, spread = sum(known) / len(known) if known else None, entropy([text for text, _ in found])
                rows.append(question.columns() | {"sure": sure, "correct": share, "entropy": spread})
        if config.variant == "uncertain":
            _by_entropy(rows, config.max_entropy, seed)
        kept = _without_surplus(rows, config.max_refusal_share, seed)
        counts["surplus_refusals"], rows = len(rows) - len(kept), kept
        for row in rows:
            text = config.completion(row["answer"][0], row["sure"], seeded_random(seed, row["id"]))
            row["completion"] = [{"role": "assistant", "content": text}]
        report = {"questions": len(questions), "rows": len(rows), "variant": config.variant, **counts}
        for name, sure in (("sure", True), ("unsure", False)):
            group = [row["correct"] for row in rows if row["sure"] is sure]
            known = [share for share in group if share is not None]
            report |= {name: len(group), f"correct_{name}": sum(known) / len(known) if known else None}
        columns = "id prompt completion question answer topic sure correct entropy"
        return KIND.write(Path(folder), rows, columns, report, config)


def entropy(texts: Sequence[str]) -> float:
    """Entropy in nats of the frequencies of texts, white space around them aside."""
    counts = Counter(text.strip() for text in texts)
    return sum(-n / len(texts) * math.log(n / len(texts)) for n in counts.values()) + 0.0


def _by_entropy(rows: list[dict[str, Any]], most: float | None, seed: int) -> None:
    """Sure is what has at most so much entropy, else half of the rows, rounded down; the seed decides between equal ones."""
    order = sorted(rows, key=lambda row: (row["entropy"], seeded_random(seed, row["id"]).random()))
    for place, row in enumerate(order):
        row["sure"] = place < len(rows) // 2 if most is None else row["entropy"] <= most


def _without_surplus(rows: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """The rows, with so few of what the model does not know that these are at most a share of all; the seed chooses."""
    unknown = [row["id"] for row in rows if not row["sure"]]
    known = len(rows) - len(unknown)
    if share == 1 or not known or not unknown:
        return rows
    # The small addition is for rounding: a share of .3 of 10 rows is 3 of them.
    most = max(1, math.floor(known * share / (1 - share) + 1e-9))
    order = sorted(unknown, key=lambda name: seeded_random(seed, f"surplus {name}").random())
    left_out = set(order[most:])
    return [row for row in rows if row["id"] not in left_out]


def build_refusals(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    rtuning_variant: str = "unsure",
    max_entropy: float | None = None,
    language: str = "en",
    question: str | None = None,
    refusals: Sequence[str] | None = None,
    max_refusal_share: float = 1.0,
    stop: str | None = None,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Ask a model, compare with gold answers and write what it should decline, for R-Tuning.

    Args:
        questions, out, **options:
            As of [`build_preferences`], with the gold answer or a list of them as `answer`; `verifier` is `"gold"` by default,
            and `knowledge` means nothing. Sampled is by default 1 response, greedily, of at most 15 tokens; for
            `rtuning_variant="uncertain"` 5 at temperature 0.7.
        rtuning_variant, max_entropy, language, question, refusals, max_refusal_share (*optional*):
            What is written, see [`~hf_factuality.data.RefusalConfig`]. May differ when a run is continued.
        stop (`str`, *optional*):
            Text that responses end at: by default the full stop of the language; `""` for none.

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.refusals_from`] makes them.

    Raises:
        As [`build_preferences`]. `DataError`: also for a question without a gold answer.

    Example:

        >>> build_refusals("questions.jsonl", out="refusals", model="Qwen/Qwen3-0.6B").report["unsure"]
    """
    args = build_arguments(options, questions, out, verifier="gold")
    config = RefusalConfig(rtuning_variant, max_entropy, language, question, tuple(refusals or ()), max_refusal_share)
    refuse_arguments(args, "R-Tuning judges by the gold answers", "knowledge")
    stop = SURE_WORDS[language].stop if stop is None else stop
    sampling: dict[str, Any] = {"top_k": 0, "max_new_tokens": 15, "stop": (stop,) if stop else ()}
    drawn = {"num_samples": 5, "temperature": 0.7}
    sampling |= drawn if rtuning_variant == "uncertain" else {"num_samples": 1, "temperature": 0.0}
    return run_build(args, KIND, partial(refusals_from, refusals=config), with_golds, **sampling)
