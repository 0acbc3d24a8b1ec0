"""The benchmark `file`: questions of one's own, with gold answers or evidence if there are any."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem, with_checklist
from hf_factuality.data.reading import messages_of
from hf_factuality.errors import DataError
from hf_factuality.generation.given import chat_of
from hf_factuality.io.messages import last_answer
from hf_factuality.io.rows import SUFFIXES, json_list, read_rows
from hf_factuality.verifiers.base import evidence_passages
from hf_factuality.verifiers.judges.gold import RULES, named_scorers, refuse_unused


NAME = "file"
FILE_BENCHMARK = Benchmark(
    name=NAME,
    metrics=("accuracy",),
    data_source="world",
    styles=("chat",),
    max_new_tokens=1024,
    description="a file of your own: question or prompt, answer, evidence",
    source="",
)
"""Its answers are right if they are the same as a gold answer (`same_answer`), unless rows name another rule in `data_source`."""


def load_own_items(path: Path, limit: int | None = None) -> tuple[list[BenchmarkItem], dict[str, Any]]:
    """The first `limit` items of a file of rows, and where they come from; see docs/evaluate.md."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"`dataset` {path.name}: without `benchmark` this must be a {', '.join(SUFFIXES)} file")
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise DataError(f"`dataset` {path.name} holds no rows")
    items = [own_item(row, number, f"{path.name}, row {number}") for number, row in enumerate(rows)]
    name, times = Counter(item.id for item in items).most_common(1)[0]
    if times > 1:
        raise DataError(f"`dataset` {path.name}: the id {name!r} occurs {times} times")
    kept = items[:limit]
    return kept, {
        "dataset": path.name,
        "split": None,
        "revision": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows": len(rows),
        "used": len(kept),
        "style": FILE_BENCHMARK.styles[0],
        "seed": None,
        "dropped": {},
    }


def with_rules(
    items: Sequence[BenchmarkItem], scorers: Sequence[str] | None, default: str | None, whole: bool = True
) -> list[BenchmarkItem]:
    """The items, of which each source that is among `scorers` (texts as [`named_scorers`] takes them) is named by its rule, and
    those without one by the `default`. `ValueError`: an unknown rule; if the items are the `whole` file, a source that none has."""
    by_scorer = {scorer: rule for rule, scorer in RULES.items()}
    rules = {source: by_scorer[scorer] for source, scorer in named_scorers(scorers).items()}
    if default is not None and default not in rules:
        named_scorers({"`default_data_source`": default})
    if whole:
        refuse_unused(rules, [default, *(item.reference.get("data_source") for item in items)])
    default = rules.get(default, default)
    found = []
    for item in items:
        source = item.reference.get("data_source")
        rule = default if source is None else rules.get(source)
        found.append(item if rule is None else replace(item, reference={**item.reference, "data_source": rule}))
    return found


def own_item(row: Any, number: int, place: str) -> BenchmarkItem:
    """The item of a row; `DataError` if a column holds what it cannot."""
    if not isinstance(row, dict):
        raise DataError(f"{place} must be an object with the column 'question' or 'prompt', got {row!r:.100}")
    question, answer = row.get("question"), json_list(row.get("answer"))
    prompt = question if row.get("prompt") is None else json_list(row["prompt"])
    if prompt is None and "messages" in row:  # a chat, whose last turn may be an answer
        prompt = last_answer(chat_of(row, place) or [])[1]
    messages = messages_of([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
    if not messages:
        raise DataError(
            f"{place} needs 'question' (text) or 'prompt' (text, or messages with role and content); it has {sorted(row)}"
        )
    if not isinstance(question, str):
        question = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    evidence = evidence_passages(row.get("evidence"))
    texts = answer if isinstance(answer, list) else [] if answer is None else [answer]
    checks = {
        "evidence": (evidence is not None, "a text or a list of texts"),
        "answer": (all(isinstance(text, str) for text in texts), "a text or a list of texts"),
        **{name: (isinstance(row.get(name), str | None), "text") for name in ("topic", "domain", "data_source")},
    }
    for name, (fine, wanted) in checks.items():
        if not fine:
            raise DataError(f"{place}: {name} must be {wanted}, got {row[name]!r:.100}")
    item = BenchmarkItem(
        str(number if row.get("id") is None else row["id"]),
        tuple(messages),
        question,
        answer=answer,
        evidence=evidence,
        topic=row.get("topic"),
        domain=row.get("domain"),
        reference={"data_source": row["data_source"]} if row.get("data_source") else {},
    )
    return with_checklist(item, row, place)
