"""The benchmark `file`: questions of one's own, with gold answers or evidence if there are any."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.io.rows import read_rows
from hf_factuality.verifiers.base import evidence_passages


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
"""Its answers are right if they equal a gold answer after normalisation, unless rows name another rule in `data_source`."""


def load_own_items(path: Path, limit: int | None = None) -> tuple[list[BenchmarkItem], dict[str, Any]]:
    """Items of a JSON Lines, JSON or Parquet file.

    Args:
        path (`Path`):
            Rows with `prompt` (text or messages) or `question`, and where they are known `id`, `answer` (text or a list),
            `evidence` (text or a list), `topic`, `domain`, `data_source`.
        limit (`int`, *optional*):
            Takes the first rows only.

    Returns:
        `tuple`: items, and where they come from.

    Raises:
        `DataError`: names row and column.
        `OSError`: the file cannot be read.
    """
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        raise DataError(f"--dataset {path.name}: without --benchmark this must be a .jsonl, .json or .parquet file")
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise DataError(f"--dataset {path.name} holds no rows")
    items = [_item(row, number, f"{path.name}, row {number}") for number, row in enumerate(rows)]
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError(f"--dataset {path.name}: the id {twice!r} occurs twice")
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


def _item(row: Any, number: int, place: str) -> BenchmarkItem:
    if not isinstance(row, dict):
        raise DataError(f"{place} must be an object with the column 'question' or 'prompt', got {row!r:.100}")
    prompt, question = row.get("prompt"), row.get("question")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if messages is None and isinstance(question, str):
        messages = [{"role": "user", "content": question}]
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise DataError(
            f"{place} needs 'question' (text) or 'prompt' (text, or messages with role and content); it has {sorted(row)}"
        )
    if not isinstance(question, str):
        question = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    evidence = evidence_passages(row.get("evidence"))
    if evidence is None:
        raise DataError(f"{place}: evidence must be a text or a list of texts, got {row['evidence']!r:.100}")
    answer = row.get("answer")
    texts = [answer] if isinstance(answer, str) else answer
    if answer is not None and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise DataError(f"{place}: answer must be a text or a list of texts, got {answer!r:.100}")
    for name in ("topic", "domain", "data_source"):
        if row.get(name) is not None and not isinstance(row[name], str):
            raise DataError(f"{place}: {name} must be text, got {row[name]!r:.100}")
    return BenchmarkItem(
        str(number if row.get("id") is None else row["id"]),
        tuple(dict(role=message["role"], content=message["content"]) for message in messages),
        question,
        answer=answer,
        evidence=evidence,
        topic=row.get("topic"),
        domain=row.get("domain"),
        reference={"data_source": row["data_source"]} if row.get("data_source") else {},
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(name), str) for name in ("role", "content"))
