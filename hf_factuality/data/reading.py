"""Rows of files or of a dataset, for the readers and builders of this room."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.io.rows import read_rows


Rows = list[tuple[int, Any]]
"""Rows with their numbers, see [`read_rows`]."""


def read_parts(
    files: str | Path | Sequence[str | Path] | None, dataset: str | None, config: str | None, split: str
) -> list[tuple[str, Rows]]:
    """Name and rows of each file, or of the one dataset; one of the two is given."""
    files = [files] if isinstance(files, (str, Path)) else list(files or [])
    if bool(files) == bool(dataset):
        raise DataError(f"give either train_files or dataset_name, got {files!r} and {dataset!r}")
    if dataset:
        return [(dataset, read_dataset(dataset, config, split))]
    try:
        return [(str(file), list(read_rows(file))) for file in files]
    except OSError as error:
        raise DataError(f"cannot read the rows: {error}; check the path") from error


def messages_of(value: Any) -> list[dict[str, str]]:
    """Role and content of each message; none unless the value is a list of messages whose roles and contents are text."""
    try:
        found = [{name: message[name] for name in ("role", "content")} for message in value]
    except (TypeError, KeyError):
        return []
    return found if all(isinstance(text, str) for message in found for text in message.values()) else []


def read_dataset(name: str, config: str | None, split: str, revision: str | None = None) -> Rows:
    """Rows of a dataset on the Hub or in a folder."""
    from datasets import load_dataset

    try:
        return list(enumerate(load_dataset(name, config, split=split, revision=revision)))
    except Exception as error:  # what the Hub, a format or a name raises
        raise DataError(
            f"dataset {name!r} (configuration {config!r}, split {split!r}) cannot be loaded; check the names, and the "
            f"network: {type(error).__name__}: {error}"
        ) from error
