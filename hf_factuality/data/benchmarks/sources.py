"""Rows of a benchmark from a file, a folder or the Hub, and where they come from.

Files are read without `datasets`: their rows may lack columns. Its `load_dataset`, for the rest, runs no code of theirs.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.readers import subset_of
from hf_factuality.data.benchmarks.rows import BenchmarkReader
from hf_factuality.data.reading import folder_cache
from hf_factuality.errors import DataError
from hf_factuality.io.rows import SUFFIXES, LineError, read_rows


logger = logging.getLogger(__name__)

_REPO = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")
_COMMIT = re.compile(r"@([0-9a-f]{40})(?:/|$)")
_SUFFIXES = (*SUFFIXES, ".txt")


@dataclass(frozen=True)
class BenchmarkSource:
    """Rows and their origin."""

    name: str
    split: str | None
    revision: str | None  # the commit, or the SHA-256 of what was read; `None` if unknown
    # The rows of each file, with its name without ending where several may be read.
    parts: list[tuple[str | None, list[dict[str, Any]]]]


def read_benchmark(
    reader: BenchmarkReader, path: str | Path | None, split: str | None, revision: str | None
) -> BenchmarkSource:
    """The rows of a benchmark; `path` is a file, a folder or a repository, or `None` for the default repository."""
    if path is None and reader.repo_id is None:
        raise DataError(
            f"{reader.name} has no default dataset on the Hub; pass path= with a file, a folder or a repository"
            + f". It is published as {reader.where}" * bool(reader.where)
        )
    local = None if path is None else Path(path).expanduser()
    if local is None or not local.exists():
        source = _read_repository(reader, path, local, split, revision)
    elif revision is not None:
        raise DataError(f"revision={revision!r} is for the Hub, but {local.name!r} is on disk; omit it")
    elif local.is_dir():
        source = _read_folder(reader, local.resolve(), split)
    elif split is not None:
        raise DataError(f"{local.name} is one file and has no split {split!r}; omit split")
    else:
        source = _read_files(reader, [local], local, None)
    if not any(rows for _, rows in source.parts):
        raise DataError(f"{source.name}: has no rows; check the file or the split")
    return source


def _read_repository(
    reader: BenchmarkReader, path, local: Path | None, split: str | None, revision: str | None
) -> BenchmarkSource:
    repo = reader.repo_id if path is None else str(path)
    if local is not None and (local.suffix.lower() in _SUFFIXES or not _REPO.fullmatch(repo)):
        raise DataError(f"{repo!r}: no such file or folder (working directory: {Path.cwd()}); check the path")
    commit = _commit(repo, revision)
    split, rows, cached = _load_dataset(reader, repo, split, commit or revision)
    return BenchmarkSource(repo, split, commit or cached, [(split if reader.files else None, rows)])


def _read_folder(reader: BenchmarkReader, path: Path, split: str | None) -> BenchmarkSource:
    files = sorted(path.rglob(reader.files)) if reader.files else []
    if files:
        splits = {file: subset_of(file.stem)[0] or file.stem for file in files}
        files = [file for file in files if split in (None, splits[file])]
        if not files:
            raise DataError(f"{path.name} has no files of split {split!r}; it has {sorted(set(splits.values()))}")
        return _read_files(reader, files, path, split)
    data = [file for file in sorted(path.rglob("*")) if file.is_file()]
    # Caches and version control are no data, and change on their own.
    data = [file for file in data if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    split, rows, _ = _load_dataset(reader, str(path), split, None)
    return BenchmarkSource(path.name, split, _digest(data, path), [(None, rows)])


def _read_files(reader: BenchmarkReader, files: Sequence[Path], path: Path, split: str | None) -> BenchmarkSource:
    parts = [(file.stem if reader.files else None, _rows_of(reader, file)) for file in files]
    if reader.joined:
        files = [*files, *_join(reader, files[0], [row for _, rows in parts for row in rows])]
    return BenchmarkSource(path.name, split, _digest(files, files[0].parent if path.is_file() else path), parts)


def _join(reader: BenchmarkReader, file: Path, rows: list[dict[str, Any]]) -> list[Path]:
    """Add to the rows what the file beside theirs says under the same key; that file. Rows may have all columns already."""
    name, key = reader.joined
    other = file.with_name(name)
    if not other.is_file():
        return []
    known = {row.get(key): row for row in _rows_of(reader, other)}
    for number, row in enumerate(rows):
        if row.get(key) not in known:
            raise DataError(
                f"{file.name}, row {number}: {name} has no {key} {row.get(key)!r:.100}; take both files of one release"
            )
        row.update({column: value for column, value in known[row[key]].items() if column not in row})
    return [other]


def _digest(files: Sequence[Path], root: Path) -> str:
    """SHA-256 of one file, or of the relative names and the digests of several."""
    digests = []
    for file in files:
        with file.open("rb") as opened:
            digests.append((file.relative_to(root).as_posix(), hashlib.file_digest(opened, "sha256").hexdigest()))
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests).encode("utf-8")).hexdigest()


def _rows_of(reader: BenchmarkReader, path: Path) -> list[dict[str, Any]]:
    suffix = path.suffix.lower()
    known = [name for name in _SUFFIXES if name != ".txt" or reader.line_column]
    if suffix not in known:
        raise DataError(f"{path.name}: {reader.name} cannot be read from a {suffix!r} file; use one of {known}")
    try:
        if suffix == ".txt":
            lines = map(str.strip, path.read_text(encoding="utf-8-sig").split("\n"))
            return [{reader.line_column: line} for line in lines if line]
        rows = list(read_rows(path, strict=True))
    except LineError as error:
        form = "one object per line" + (", or all of them in a list" if suffix == ".json" else "")
        raise DataError(f"{path.name}, line {error.number}: no JSON: {error.reason}; it must hold {form}") from None
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path.name}: not a readable {suffix} file: {error}") from error
    for number, (_, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path.name}, row {number}: must be an object with the columns as keys, got {row!r:.100}")
    return [row for _, row in rows]


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
    reader: BenchmarkReader, repo: str, split: str | None, revision: str | None
) -> tuple[str, list[dict[str, Any]], str | None]:
    """Split, rows and, if the cache knows it, the commit of a folder or repository."""
    import datasets

    shown = Path(repo).name if Path(repo).is_dir() else repo
    try:
        config = reader.config if repo == reader.repo_id else _config(reader, repo, shown, revision)
        loaded = datasets.load_dataset(repo, config, revision=revision, **folder_cache(repo))
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"dataset {shown!r} (revision {revision!r}) cannot be loaded; check the name, and the network: {error}"
        ) from error
    names = list(loaded)
    wanted = split or (reader.split if reader.split in names else names[0] if len(names) == 1 else None)
    if wanted not in names:
        raise DataError(f"dataset {shown!r} has the splits {names}; pass one of them as split, got {split!r}")
    files = loaded[wanted].info.download_checksums or {}
    commits = {match[1] for match in map(_COMMIT.search, files) if match}
    return wanted, loaded[wanted].to_list(), commits.pop() if len(commits) == 1 else None


def _config(reader: BenchmarkReader, repo: str, shown: str, revision: str | None) -> str:
    """The configuration of a copy: the benchmark's, else the default, else the only one."""
    import datasets

    configs = datasets.get_dataset_config_names(repo, revision=revision)
    fitting = [name for name in (reader.config, "default") if name in configs] or configs
    if len(fitting) > 1 and reader.config not in fitting:
        raise DataError(
            f"dataset {shown!r} has the configurations {configs}, and none is called {reader.config or 'default'!r}; "
            "save the one that you want as a file"
        )
    return fitting[0]
