"""The items of a benchmark and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.verifiers.base import evidence_passages


@dataclass(frozen=True)
class BenchmarkItem:
    """One question of a benchmark, ready to be sent to a model.

    Args:
        id (`str`):
            The dataset's own id, otherwise the number of the row in the source; it does not depend on `limit` or `seed`.
        messages (`tuple[dict, ...]`):
            Messages with `role` and `content`. A last message of the assistant is a prefill: the model continues it.
        question (`str`, *optional*):
            What a verifier is shown.
        claim (`str`, *optional*):
            Of a benchmark of judges, the text that is to be judged; nothing is asked then.
        answer (`str` or `list[str]`, *optional*):
            Gold answer or answers.
        evidence (`tuple[str, ...]`, *optional*):
            Passages that the benchmark brings along.
        topic (`str`, *optional*):
            Title of a Wikipedia page, for retrieval by topic (FActScore).
        domain (`str`, *optional*):
            Domain or category, e.g. for VeriScore's K.
        choices (`tuple[str, ...]`, *optional*):
            Continuations of `messages` whose log-likelihood is wanted, to the character.
        correct (`tuple[bool, ...]`, *optional*):
            Whether each of `choices` is correct.
        reference (`dict`, *optional*):
            What the metric takes as reference. Of any benchmark: `"checklist"`, statements that a good answer holds, and
            `"answerable"`, whether the question has an answer (by default, if there is a gold one).
    """

    id: str
    messages: tuple[dict, ...]
    question: str | None
    answer: str | list[str] | None = None
    evidence: tuple[str, ...] = ()
    topic: str | None = None
    domain: str | None = None
    choices: tuple[str, ...] = ()
    correct: tuple[bool, ...] = ()
    reference: dict = field(default_factory=dict)
    claim: str | None = None


def with_checklist(item: BenchmarkItem, row: Mapping[str, Any], place: str) -> BenchmarkItem:
    """The item with what the column `checklist` of its row holds, if there is one; `DataError` if it is no list of texts."""
    found = evidence_passages(row.get("checklist"))
    if found is None:
        raise DataError(f"{place}: checklist must be a text or a list of texts, got {row['checklist']!r:.100}")
    return replace(item, reference={**item.reference, "checklist": list(found)}) if found else item


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is known of a benchmark before its rows are read.

    Args:
        name (`str`):
            Name on the command line.
        kind (`str`, *optional*, defaults to `"generate"`):
            `"generate"`, `"log_likelihood"`, or `"judge"`, of which a verifier is measured: it judges the given claims.
        metrics (`tuple[str, ...]`):
            Default metrics: names of `hf_factuality.metrics`, or `"accuracy"`.
        repo_id, config, split (`str`, *optional*):
            Default source on the Hub.
        data_source (`str`, *optional*):
            Which rule of the answer reward decides `"accuracy"`.
        styles (`tuple[str, ...]`, *optional*, defaults to `("chat", "fspo")`):
            Styles of prompt; the first is the default.
        max_new_tokens (`int`, *optional*, defaults to `4096`):
            Most tokens of a completion.
        temperature (`float`, defaults to `0.0`), top_p (`float`, defaults to `1.0`), n_samples (`int`, defaults to `1`):
            Sampling of the published evaluation.
        description, source (`str`, *optional*):
            One line, and the paper.
    """

    name: str
    metrics: tuple[str, ...]
    kind: str = "generate"
    repo_id: str | None = None
    config: str | None = None
    split: str | None = None
    data_source: str | None = None
    styles: tuple[str, ...] = ("chat", "fspo")
    max_new_tokens: int = 4096
    temperature: float = 0.0
    top_p: float = 1.0
    n_samples: int = 1
    description: str = ""
    source: str = ""
