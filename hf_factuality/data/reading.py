"""Rows of files or of a dataset, for the readers and builders of this room."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import DataError
from hf_factuality.io.messages import is_chat, message_text
from hf_factuality.io.rows import json_list, read_rows


if TYPE_CHECKING:
    from datasets import Dataset


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
    """Role and content of each message; none unless the value is a list of messages whose roles are text, and whose contents
    are text or lists of parts. A cell of CSV may hold the list as JSON."""
    value = json_list(value)
    if not is_chat(value) or not all(isinstance(message.get("content"), (str, list, tuple)) for message in value):
        return []
    return [{"role": message["role"], "content": message_text(message)} for message in value]


def refuse_unrendered(
    rows: Iterable[Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]]], tokenizer: Any, place: str = ""
) -> None:
    """Raise `DataError` for the first row of which a chat template refuses a conversation.

    Args:
        rows (`Iterable`):
            Per row its conversations, each with its arguments of `apply_chat_template`.
        tokenizer (`PreTrainedTokenizerBase`):
            Has the chat template.
        place (`str`, *optional*):
            What the message says before the number of the row.
    """
    for number, conversations in enumerate(rows):
        for messages, settings in conversations:
            try:
                tokenizer.apply_chat_template(messages, tokenize=False, **settings)
            except Exception as error:  # whatever a template raises
                roles = [message.get("role") for message in messages if isinstance(message, Mapping)]
                raise DataError(
                    f"{place}row {number}: the chat template refuses messages of the roles {roles}: {error}; where it takes "
                    "no system message, put its text before the first message of the user"
                ) from error


def read_dataset(name: str, config: str | None, split: str, revision: str | None = None) -> Rows:
    """Rows of a dataset on the Hub or in a folder."""
    return list(enumerate(open_dataset(name, config, split, revision=revision)))


def open_dataset(
    name: str,
    config: str | None = None,
    split: str = "train",
    columns: Sequence[Sequence[str]] = (),
    **arguments: Any,
) -> Dataset:
    """A split of a dataset on the Hub, in a folder or in one file, checked before anything is done with it.

    Args:
        name (`str`), config (`str`, *optional*), split (`str`, *optional*, defaults to `"train"`):
            As of `datasets.load_dataset`; or a file of JSON Lines, JSON, CSV, TSV or Parquet, whose one split is `"train"`.
        columns (`Sequence[Sequence[str]]`, *optional*):
            Columns that it must have, with text or messages in them; of several lists, one.
        **arguments:
            Further arguments of `load_dataset`.

    Returns:
        `datasets.Dataset`, or `datasets.IterableDataset` with `streaming=True`.

    Raises:
        `DataError`: it cannot be loaded, has no rows or none of the lists of columns.
    """
    from datasets import load_dataset

    files = arguments.get("data_files")
    shown = f"{files}" if files else f"dataset {name!r} (configuration {config!r}, split {split!r})"
    try:
        if Path(name).is_file():
            found = _file_dataset(name, config, split, arguments.get("streaming", False))
        else:
            found = load_dataset(name, config, split=split, **folder_cache(name), **arguments)
    except DataError:
        raise
    except Exception as error:  # what the Hub, a format or a name raises
        # `datasets` hides what is wrong with a file behind "An error occurred while generating the dataset".
        cause = error.__cause__ or error
        why = "it has no rows" if isinstance(cause, StopIteration) else f"{type(cause).__name__}: {cause}"
        raise DataError(f"{shown} cannot be loaded; check the names, the files and the network: {why}") from error
    if columns and found.features is not None:
        lacking = [[f"{one} ({problem})" for one in wanted if (problem := _lacks(found, one))] for wanted in columns]
        if all(lacking):
            wanted = " or ".join(" and ".join(map(repr, names)) for names in columns)
            why = "; ".join(dict.fromkeys(problem for problems in lacking for problem in problems))
            raise DataError(f"{shown} needs the columns {wanted}: {why}; it has {sorted(found.column_names)}")
    return found


def _file_dataset(path: str, config: str | None, split: str, streaming: bool) -> Dataset:
    """The rows of a file as a dataset, with the columns of all of them."""
    from datasets import Dataset

    for what, given in (("split", split != "train" and split), ("configuration", config)):
        if given:
            raise DataError(
                f"{path} is one file, which has no {what} {given!r}; leave it out, or name the file that you mean"
            )
    rows = [row for _, row in read_rows(path)]
    for row in rows:
        if not isinstance(row, Mapping):
            raise DataError(f"{path}: each row must be an object with columns, got {row!r:.100}")
    if not rows:
        raise DataError(f"{path} has no rows")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [json_list(row.get(name)) for row in rows] for name in names}
    try:
        found = Dataset.from_dict(columns)
    except Exception:  # whatever a value is that a column of Arrow cannot hold
        for name, values in columns.items():
            try:
                Dataset.from_dict({name: values})
            except Exception as error:
                kinds = sorted({type(value).__name__ for value in values if value is not None})
                raise DataError(
                    f"{path}: the values of the column {name!r} ({' and '.join(kinds)}) make no column: {error}"
                ) from error
        raise
    return found.to_iterable_dataset() if streaming else found


def has_split(name: str, config: str | None, split: str) -> bool:
    """Whether a dataset as [`open_dataset`] reads it has a split."""
    from datasets import get_dataset_split_names

    return split == "train" if Path(name).is_file() else split in get_dataset_split_names(name, config)


def folder_cache(name: str) -> dict[str, str]:
    """Arguments of `load_dataset` that give each state of a folder a cache of its own; none for a repository on the Hub.

    `datasets` (5.2) caches a folder whose README has `configs` under the folder's own name alone. A second folder of that
    name, or the same one after a builder has filled it again, would silently give the rows of the first.
    """
    folder = Path(name)
    if not folder.is_dir():
        return {}
    from datasets import config

    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    state = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    return {"cache_dir": str(Path(config.HF_DATASETS_CACHE) / "hf_factuality" / digest)}


def _lacks(dataset: Dataset, column: str) -> str | None:
    """Why a column holds neither text nor messages; `None` if it does."""
    from datasets import Value

    if column not in dataset.column_names:
        return "not there"
    kind = dataset.features[column]
    if isinstance(kind, Value) and "string" not in kind.dtype:
        return "empty" if kind.dtype == "null" else f"holds {kind.dtype}"
    return None
