"""The items of a benchmark and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.verifiers.base import evidence_passages


@dataclass(frozen=True)
class BenchmarkItem:
    """One question of a benchmark, ready to be sent to a model."""

    id: str  # the dataset's own, otherwise the number of the row in the source, whatever `limit` and `seed`
    messages: tuple[dict, ...]  # a last message of the assistant is a prefill: the model continues it
    question: str  # what a verifier is shown
    answer: str | list[str] | None = None  # gold
    evidence: tuple[str, ...] = ()
    topic: str | None = None  # title of a Wikipedia page, for retrieval by topic (FActScore)
    domain: str | None = None  # or category, e.g. for VeriScore's K
    choices: tuple[str, ...] = ()  # continuations of `messages` whose log-likelihood is wanted, to the character
    correct: tuple[bool, ...] = ()  # of each of `choices`
    # What the metric takes as reference. Of any benchmark: "checklist", statements that a good answer holds, and
    # "answerable", whether the question has an answer (by default, if there is a gold one).
    reference: dict = field(default_factory=dict)


def with_checklist(item: BenchmarkItem, row: Mapping[str, Any], place: str) -> BenchmarkItem:
    """The item with what the column `checklist` of its row holds, if there is one; `DataError` if it is no list of texts."""
    found = evidence_passages(row.get("checklist"))
    if found is None:
        raise DataError(f"{place}: checklist must be a text or a list of texts, got {row['checklist']!r:.100}")
    return replace(item, reference={**item.reference, "checklist": list(found)}) if found else item


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is known of a benchmark before its rows are read; sampling is that of the published evaluation."""

    name: str
    metrics: tuple[str, ...]  # by default: names of `hf_factuality.metrics`, or "accuracy"
    kind: str = "generate"  # or "log_likelihood"
    repo_id: str | None = None  # with `config` and `split`, the default source on the Hub
    config: str | None = None
    split: str | None = None
    data_source: str | None = None  # which rule of the answer reward decides "accuracy"
    styles: tuple[str, ...] = ("chat", "fspo")  # of prompts; the first is the default
    max_new_tokens: int = 4096
    temperature: float = 0.0
    top_p: float = 1.0
    n_samples: int = 1
    description: str  # in one line
    source: str  # the paper
