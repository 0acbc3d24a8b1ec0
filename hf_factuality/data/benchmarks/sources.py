"""Rows of a benchmark from a file, a folder or the Hub, and what is known of where they come from.

Files are read here and not by `datasets`: their rows may lack columns, and nothing is written to a cache. Folders and
repositories are loaded by `datasets.load_dataset`, which runs no code of theirs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark
from hf_factuality.data.benchmarks.longform import subset_of
from hf_factuality.data.benchmarks.rows import Reader
from hf_factuality.errors import DataError
from hf_factuality.io.rows import LineError, read_rows


logger = logging.getLogger(__name__)

_REPO = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
_COMMIT = re.compile(r"@([0-9a-f]{40})(?:/|$)")
_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet", ".txt")


@dataclass(frozen=True)
class Source:
    """Rows and their origin.

    Args:
        name (`str`):
            File name, folder name or repository.
        split (`str`, *optional*):
            Split that was read.
        revision (`str`, *optional*):
            Commit on the Hub, or SHA-256 of the file or files; `None` if it could not be found out.
        rows (`list[dict]`):
            Rows with the columns of the source.
        groups (`list[tuple[str | None, int]]`):
            Per row, the name of its file where several are read, without ending, and its number in it.
    """

    name: str
    split: str | None
    revision: str | None
    rows: list[dict[str, Any]]
    groups: list[tuple[str | None, int]]


def read_source(reader: Reader, path: str | Path | None, split: str | None, revision: str | None) -> Source:
    """Read the rows of a benchmark.

    Args:
        reader (`Reader`):
            Of the benchmark.
        path (`str` or `Path`, *optional*):
            File, folder or repository; `None` takes the default repository.
        split (`str`, *optional*):
            Split of a folder or repository; `"objects"` or `"concepts"` of LongFact's files.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.

    Returns:
        [`Source`]

    Raises:
        `DataError`: there is no such source, it cannot be read, has no rows, or has not this split.
    """
    spec = reader.benchmark
    if path is None and spec.repo_id is None:
        raise DataError(
            f"{spec.name} has no default dataset on the Hub; pass path= with a file, a folder or a repository. It is "
            f"published as {reader.where}"
        )
    local = None if path is None else Path(path).expanduser()
    if local is not None and local.exists():
        if revision is not None:
            raise DataError(
                f"revision={revision!r} is for repositories on the Hub, but {local.name!r} is on disk; omit it"
            )
        source = _read_file(reader, local, split) if local.is_file() else _read_folder(reader, local, split)
    else:
        repo = spec.repo_id if path is None else str(path)
        if local is not None and (local.suffix.lower() in _SUFFIXES or not _REPO.fullmatch(repo)):
            raise DataError(f"{repo!r}: no such file or folder (working directory: {Path.cwd()}); check the path")
        commit = _commit(repo, revision)
        found = _load_dataset(spec, repo, split, commit or revision)
        source = Source(repo, found[0], commit or found[2], found[1], _numbered(None, found[1]))
    if not source.rows:
        raise DataError(f"{source.name}: has no rows; check the file or the split")
    return source


def _numbered(group: str | None, rows: list) -> list[tuple[str | None, int]]:
    return [(group, number) for number in range(len(rows))]


def _read_file(reader: Reader, path: Path, split: str | None) -> Source:
    if split is not None:
        raise DataError(f"{path.name} is one file and has no split {split!r}; omit split")
    rows = _rows_of(reader, path)
    group = path.stem if reader.files else None
    return Source(path.name, None, _digest([path], path.parent), rows, _numbered(group, rows))


def _read_folder(reader: Reader, path: Path, split: str | None) -> Source:
    path = path.resolve()
    files = sorted(path.rglob(reader.files)) if reader.files else []
    if not files:
        data = [file for file in sorted(path.rglob("*")) if file.is_file()]
        # Caches and version control are no data, and change on their own.
        data = [file for file in data if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        split, rows, _ = _load_dataset(reader.benchmark, str(path), split, None)
        return Source(path.name, split, _digest(data, path), rows, _numbered(None, rows))
    if split is not None:
        files = [file for file in files if subset_of(file.stem)[0] == split]
        if not files:
            raise DataError(f"{path.name} has no files of split {split!r}; the splits are 'objects' and 'concepts'")
    rows, groups = [], []
    for file in files:
        part = _rows_of(reader, file)
        rows += part
        groups += _numbered(file.stem, part)
    return Source(path.name, split, _digest(files, path), rows, groups)


def _digest(files: Iterable[Path], root: Path) -> str:
    """SHA-256 of one file, or of the relative names and the digests of several."""
    digests = []
    for file in files:
        with file.open("rb") as opened:
            digests.append((file.relative_to(root).as_posix(), hashlib.file_digest(opened, "sha256").hexdigest()))
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests).encode("utf-8")).hexdigest()


def _rows_of(reader: Reader, path: Path) -> list[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES or (suffix == ".txt" and reader.line_column is None):
        known = [known for known in _SUFFIXES if known != ".txt" or reader.line_column]
        raise DataError(
            f"{path.name}: {reader.benchmark.name} cannot be read from a {suffix!r} file; use one of {known}"
        )
    try:
        if suffix in (".csv", ".txt"):
            text = path.read_text(encoding="utf-8-sig")
        else:
            rows = list(read_rows(path, strict=True))
    except LineError as error:
        if suffix == ".json" and (kind := _kind_of_json(path)) is not None:
            raise DataError(f"{path.name}: must hold a list of objects, got {kind}") from None
        raise DataError(f"{path.name}, line {error.number}: no JSON: {error.reason}") from None
    except Exception as error:
        why = (
            error.__context__ if isinstance(error, DataError) else error
        )  # what the reader met, without the whole path
        if suffix == ".json" and isinstance(why, (json.JSONDecodeError, RecursionError)):
            raise DataError(f"{path.name}: no JSON: {why}") from None
        encoding = "" if suffix == ".parquet" else " in UTF-8"
        raise DataError(
            f"{path.name}: not a readable {suffix} file{encoding}: {' '.join(str(why).split())}"
        ) from error
    if suffix == ".txt":
        return [{reader.line_column: line.strip()} for line in text.split("\n") if line.strip()]
    if suffix == ".csv":
        try:
            return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
        except csv.Error as error:
            raise DataError(f"{path.name}: not a readable .csv file: {error}") from error
    if suffix == ".json" and [place for place, _ in rows] == [1]:  # a line, which is counted from 1, and no list
        raise DataError(f"{path.name}: must hold a list of objects, got {type(rows[0][1]).__name__}")
    for number, (_, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path.name}, row {number}: must be an object with the columns as keys, got {row!r:.100}")
    return [row for _, row in rows]


def _kind_of_json(path: Path) -> str | None:
    """Of what kind the one value of a file is, over however many lines; `None` if it holds no such."""
    try:
        return type(json.loads(path.read_text(encoding="utf-8-sig"))).__name__
    except (ValueError, RecursionError):
        return None


def _commit(repo: str, revision: str | None) -> str | None:
    """The commit that a revision stands for; `None` if the Hub cannot be asked."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().dataset_info(repo, revision=revision).sha
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise DataError(
            f"{repo!r} (revision {revision!r}) is neither a file or folder here nor a dataset on the Hub that you may read; "
            f"check the names: {error}"
        ) from error
    except Exception as error:  # without a network, the cache may have it still
        logger.info("the commit of %s cannot be asked for: %s", repo, error)
        return None


def _load_dataset(
    spec: Benchmark, repo: str, split: str | None, revision: str | None
) -> tuple[str, list[dict[str, Any]], str | None]:
    """Split, rows and, if the cache knows it, the commit of a folder or repository."""
    import datasets

    shown = Path(repo).name if Path(repo).is_dir() else repo
    try:
        config = spec.config
        if repo != spec.repo_id:
            configs = datasets.get_dataset_config_names(repo, revision=revision)
            fitting = [name for name in (config, "default") if name in configs] or configs
            if len(fitting) > 1 and config not in fitting:
                raise DataError(
                    f"dataset {shown!r} has the configurations {configs}, and none is called {config or 'default'!r}; "
                    "take another copy of it, or save the one that you want as a file"
                )
            config = fitting[0]
        loaded = datasets.load_dataset(repo, config, revision=revision)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"dataset {shown!r} (revision {revision!r}) cannot be loaded; check the name, and the network: {error}"
        ) from error
    names = list(loaded)
    wanted = split or (spec.split if spec.split in names else names[0] if len(names) == 1 else None)
    if wanted not in names:
        raise DataError(f"dataset {shown!r} has the splits {names}; pass one of them as split, got {split!r}")
    files = loaded[wanted].info.download_checksums or {}
    commits = {match[1] for match in map(_COMMIT.search, files) if match}
    return wanted, loaded[wanted].to_list(), commits.pop() if len(commits) == 1 else None
