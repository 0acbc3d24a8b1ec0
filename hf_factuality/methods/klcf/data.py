"""From questions to checklists: what samples of a model state truly, each statement once (KLCF, arXiv 2509.23765).

KLCF names the steps without formulas: what the same statement is and which are important is ours. `builder.py` says what lies
in the folder of a run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hf_factuality.data.build import MASK_DPO_ANSWERS, BuildArguments, BuildReport, Rows, build_arguments, run_build
from hf_factuality.data.builder import DatasetKind, judged_responses, verified_responses
from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.data.sampling import Sampler
from hf_factuality.functional.labels import TERNARY_VALUES, judged_units
from hf_factuality.io.files import last_name
from hf_factuality.methods.klcf.statements import SampledClaim, by_meaning, by_words
from hf_factuality.spans import Label, Verification
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


MAX_CHARS = 1000  # of an item, as of extracted claims
REASONS = {
    "not_judged": "responses that could not be judged",
    "too_long": f"supported claims of more than {MAX_CHARS} characters or without a word",
    "contradicted": "statements that are contradicted in more samples than supported",
    "tied": "statements that are contradicted in as many samples as supported",
    "rare": "statements of fewer samples than min_samples",
    "beyond_max_items": "statements beyond max_items",
    "no_items": "questions without any item",
}
KIND = DatasetKind("checklists.parquet", "checklists", "item", REASONS, """# Checklists

{items} statements that {responses} responses of a model to {questions} questions make and that evidence supports, made with
hf_factuality {version}. `checklist` holds them, most often stated first, `counts` how many responses state each, as for
[KLCF](https://huggingface.co/papers/2509.23765), whose rules for duplicates and importance are not public: these are ours.

**The verdicts are a model's or a program's, not people's.** They are as good as the verifier below.
""", ("checklist", "klcf", "factuality"))  # fmt: skip
push_checklists = KIND.push


@dataclass(frozen=True)
class ChecklistConfig:
    """Which statements become items. All of it is ours.

    Args:
        max_items (`int`, *optional*, defaults to `20`):
            Items per question; those that most samples state are kept.
        min_samples (`int`, *optional*, defaults to `1`):
            Samples that must state an item.
        merge (`str`, *optional*, defaults to `"lexical"`):
            `"lexical"` merges statements of the same words; `"dense"`, or `"dense:MODEL"` of `sentence-transformers`, also
            those of near embeddings. Never two that differ in a number, a name or a negation.
        merge_threshold (`float`, *optional*, defaults to `0.95`):
            Cosine from which embeddings are near.
        keep_empty (`bool`, *optional*, defaults to `False`):
            Keep questions without any item, with an empty list.

    Raises:
        `ValueError`: a value is out of range.
        `ImportError`: `"dense"` without `sentence-transformers`.
    """

    max_items: int = 20
    min_samples: int = 1
    merge: str = "lexical"
    merge_threshold: float = 0.95
    keep_empty: bool = False

    def __post_init__(self):
        if min(self.max_items, self.min_samples) < 1:
            raise ValueError(f"need max_items and min_samples >= 1, got {self.max_items} and {self.min_samples}")
        if self.merge != "lexical" and self.merge.partition(":")[0] != "dense" or not 0 < self.merge_threshold <= 1:
            given = f"{self.merge!r} and {self.merge_threshold}"
            raise ValueError(f"need merge 'lexical', 'dense' or 'dense:MODEL', 0 < merge_threshold <= 1; got {given}")
        self.encoder()

    def encoder(self) -> Callable | None:
        """Texts to embeddings for `"dense"`; the model loads on first use."""
        from hf_factuality.retrieval.retrievers import SentenceEncoder

        kind, _, model = self.merge.partition(":")
        return SentenceEncoder(model or "sentence-transformers/all-MiniLM-L6-v2") if kind == "dense" else None


def checklists_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    items: ChecklistConfig | None = None,
    **run: Any,
) -> Dataset:
    """Sample responses to each question, verify them, and list the supported statements of each question.

    A run in a folder is continued, and servers are waited for, as [`~hf_factuality.data.preferences_from`] says.

    Args:
        questions, sampler, verifier, folder, **run:
            As there. The claims that the verifier labels become items, or the sentences if it splits no further.
        items ([`ChecklistConfig`], *optional*):
            What becomes an item. May differ when a run is continued, since it is applied at the end.

    Returns:
        `datasets.Dataset`: columns `id`, `prompt`, `question`, `topic`, `evidence`, `checklist` (statements, most
        often stated first) and `counts` (how many samples state each).

    Raises:
        `DataError`, `JudgingError`: as there; no question has an item.
        `ValueError`: the sampler draws fewer samples than `min_samples`.
    """
    config = items or ChecklistConfig()
    number = sampler.describe().get("num_samples", config.min_samples)
    if number < config.min_samples:
        raise ValueError(f"min_samples={config.min_samples} is more than the num_samples={number} of the sampler")
    if encode := config.encoder():
        encode(["A wrong name is told before anything is sampled."])
    counts = Counter(dict.fromkeys(REASONS, 0), merged=0)
    labels, sizes, rows = Counter(), Counter(), []
    with judged_responses(questions, sampler, verifier, folder, KIND.file, **run) as journals:
        for question in questions:
            claims = _claims(verified_responses(question, *journals, counts), counts)
            labels.update(claim.label or "unknown" for claim in claims)
            chosen = choose_items(claims, config, counts, encode)
            sizes[len(chosen)] += 1
            if chosen or config.keep_empty:
                items_of = {"checklist": [text for text, _ in chosen], "counts": [count for _, count in chosen]}
                rows.append(question.columns() | items_of)
        counts["no_items"] = sizes[0]
        report = {
            "questions": len(questions), "rows": len(rows), "items": sum(size * times for size, times in sizes.items()),
            "claims": {name: labels[name] for name in (*Label, "unknown")},
            "questions_by_items": dict(sorted(sizes.items())), **counts,
        }  # fmt: skip
        shown = {"merge": ":".join(map(last_name, config.merge.split(":", 1)))}
        columns = "id prompt question topic evidence checklist counts"
        return KIND.write(Path(folder), rows, columns, report, config, shown)


def choose_items(
    claims: Sequence[SampledClaim], config: ChecklistConfig, counts: Counter, encode: Callable | None = None
) -> list[tuple[str, int]]:
    """Items of one question and how many samples state each, most first; of equal ones the one that was found first.

    `counts` gets the claims `merged` into others and what was dropped, by [`REASONS`]; `encode` is for `"dense"`.
    """
    supported = sum(claim.label is Label.SUPPORTED for claim in claims)
    statements = by_words(claim for claim in claims if len(claim.text) <= MAX_CHARS)
    if encode and statements:
        statements = by_meaning(statements, encode, config.merge_threshold)
    items = []
    for statement in statements:
        # Wordings as they were supported; one with reservation is no item, but tells that the sample states it.
        texts = Counter(it.text for it in statement if it.label is Label.SUPPORTED)
        if not texts:
            continue
        supported -= texts.total()
        counts["merged"] += texts.total() - 1
        votes = Counter(sign for _, sign in {(it.sample, TERNARY_VALUES.get(it.label)) for it in statement})
        stated = len({it.sample for it in statement})
        if votes[1] <= votes[-1]:
            counts["tied" if votes[1] == votes[-1] else "contradicted"] += 1
        elif stated < config.min_samples:
            counts["rare"] += 1
        else:
            items.append((texts.most_common(1)[0][0], stated))
    counts["too_long"] += supported
    items.sort(key=lambda item: -item[1])
    counts["beyond_max_items"] += len(items[config.max_items :])
    return items[: config.max_items]


def _claims(found: Sequence[tuple[str, Verification | None]], counts: Counter) -> list[SampledClaim]:
    claims = []
    for sample, (text, verification) in enumerate(found):
        if verification is None or not verification.judged:
            counts["not_judged"] += 1
            continue
        for unit in judged_units(verification.validate(text)):
            words = (unit.text(text) if unit.claim is None else unit.claim).split()
            claims.append(SampledClaim(sample, " ".join(words), unit.label))
    return claims


def build_checklists(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    max_items: int = 20,
    min_samples: int = 1,
    merge: str = "lexical",
    merge_threshold: float = 0.95,
    keep_empty: bool = False,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample answers and list what they state truly, each statement once, for KLCF.

    Args:
        questions, out, **options:
            As of [`build_preferences`]. Sampled are by default 8 responses, otherwise as there.
        max_items, min_samples, merge, merge_threshold, keep_empty (*optional*):
            What becomes an item, see [`~hf_factuality.data.ChecklistConfig`]. May differ when a run is continued.

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.checklists_from`] makes them.

    Raises:
        As [`build_preferences`]. `ImportError`: `merge="dense"` without `sentence-transformers`.

    Example:

        >>> build_checklists("questions.jsonl", out="checklists", model="Qwen/Qwen3-0.6B").dataset["checklist"]
    """
    args = build_arguments(options, questions, out)
    items = ChecklistConfig(max_items, min_samples, merge, merge_threshold, keep_empty)
    return run_build(args, KIND, partial(checklists_from, items=items), **MASK_DPO_ANSWERS | {"num_samples": 8})
