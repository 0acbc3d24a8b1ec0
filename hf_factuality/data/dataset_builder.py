"""A dataset of the user's own from judged answers: what it holds is a class of theirs, the run is that of all builders."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from hf_factuality._lazy import load_name
from hf_factuality.data.build import LONG_ANSWERS, BuildArguments, BuildReport, Rows, build_arguments, run_build
from hf_factuality.data.builder import DatasetKind, column_types, judged_responses, verified_responses
from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.data.sampling import Sampler
from hf_factuality.errors import DataError
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset


_NAME = re.compile(r"\w[\w-]*")
_TEMPLATE = """# {title}

{description}{{rows}} rows from {{responses}} responses of a model to {{questions}} questions, made with hf_factuality {{version}}.

**The verdicts are a model's or a program's, not people's.** They are as good as the verifier below.
"""


@dataclass(frozen=True)
class _NoSettings:
    pass


class DatasetBuilder:
    """What a dataset holds, for [`build_dataset`]. A subclass sets `name` and writes `rows`; all else has a default.

    The fields of one that is a dataclass are its settings, which the report and the card show.

    Attributes:
        name (`str`):
            Of the dataset and of its file, NAME.parquet.
        description (`str`, *optional*):
            What the card says of it.
        reasons (`Mapping[str, str]`, *optional*):
            Why answers are left out, in words, by the keys under which `rows` counts them.
        sampling (`Mapping[str, Any]`, *optional*):
            How answers are sampled by default; 4 of at most 1024 tokens at temperature 1.0.
        features (`Mapping[str, Any]`, *optional*):
            Types of columns, as in `datasets.Features`, where the rows do not tell them.
        tags (`tuple[str, ...]`, *optional*):
            Of the card.
    """

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    reasons: ClassVar[Mapping[str, str]] = {}
    sampling: ClassVar[Mapping[str, Any]] = LONG_ANSWERS
    features: ClassVar[Mapping[str, Any]] = {}
    tags: ClassVar[tuple[str, ...]] = ()

    def prepare(self, questions: Sequence[PreferenceQuestion]) -> list[PreferenceQuestion]:
        """The questions that are asked; raises `DataError` where one lacks what the dataset needs."""
        return list(questions)

    def rows(
        self, question: PreferenceQuestion, answers: Sequence[tuple[str, Verification | None]], counts: Counter
    ) -> Iterable[Mapping[str, Any]]:
        """The rows of one question, from its answers as they were sampled. It is called when all are judged, and again when the
        run is started again, so that it may change meanwhile.

        Args:
            question ([`PreferenceQuestion`]):
                What was asked; its `columns()` are what our own datasets say of it.
            answers (`Sequence[tuple[str, Verification | None]]`):
                Each answer and what the verifier found; `None` or `error` where it could not be judged.
            counts (`Counter`):
                Gets what is left out, by the keys of `reasons`, and whatever else the report shall count.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `rows`")


def dataset_from(
    builder: str | DatasetBuilder | type[DatasetBuilder],
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    **run: Any,
) -> Dataset:
    """Sample answers to each question, judge them, and write the rows that a builder makes of them.

    A run in a folder is continued, and servers are waited for, as [`~hf_factuality.data.preferences_from`] says.

    Args:
        builder ([`DatasetBuilder`] or `str`):
            An object, its class, or `"package.module:name"` of one of them.
        questions, sampler, verifier, folder, **run:
            As there.

    Returns:
        `datasets.Dataset`: a column for each key of the rows; what a row lacks is `None`.

    Raises:
        `DataError`, `JudgingError`: as there; a row is no mapping; there are no rows.
        `ValueError`: there is no such builder.
    """
    made = find_builder(builder)
    kind, rows = _kind(made), []
    counts: Counter = Counter(dict.fromkeys(made.reasons, 0))
    with judged_responses(questions, sampler, verifier, folder, kind.file, **run) as journals:
        for question in questions:
            for row in made.rows(question, verified_responses(question, *journals, counts), counts):
                rows.append(_plain(row, f"{made.name}: a row of question {question.id!r}"))
        columns = list(dict.fromkeys(name for row in rows for name in row))
        rows = [{name: row.get(name) for name in columns} for row in rows]
        report = {"questions": len(questions), "rows": len(rows), **counts}
        config = made if is_dataclass(made) else _NoSettings()
        return kind.write(Path(folder), rows, " ".join(columns), report, config, features=_features(made, rows))


def build_dataset(
    builder: str | DatasetBuilder | type[DatasetBuilder],
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample answers, judge them, and make a dataset of your own of them.

    Called again with the same arguments after a kill, it goes on where it stopped.

    Args:
        builder ([`DatasetBuilder`] or `str`):
            What the dataset holds: an object, its class, or `"package.module:name"` of one of them.
        questions, out, **options:
            As of [`build_preferences`]. How answers are sampled by default, the builder says.

    Returns:
        [`BuildReport`]: its rows.

    Raises:
        As [`build_preferences`].

    Example:

        >>> built = build_dataset("my_package.builders:Best", "questions.jsonl", out="best", model="Qwen/Qwen3-0.6B")
        >>> built.dataset[0]
    """
    made = find_builder(builder)
    args = build_arguments(options, questions, out)
    return run_build(args, _kind(made), partial(dataset_from, made), made.prepare, **made.sampling)


def find_builder(builder: str | DatasetBuilder | type[DatasetBuilder]) -> DatasetBuilder:
    """An object of what [`build_dataset`] is given; `ValueError` if there is none, or it has no `name`."""
    found = builder
    if isinstance(builder, str):
        found = load_name(builder, "the builder", _is_builder, "a `DatasetBuilder`")
    elif not _is_builder(builder):
        raise TypeError(f"a builder is a `DatasetBuilder`, got {builder!r:.100}")
    made = found() if isinstance(found, type) else found
    if not _NAME.fullmatch(made.name):
        raise ValueError(f"{type(made).__name__}.name must be letters, digits, '_' and '-', got {made.name!r}")
    return made


def _is_builder(found: Any) -> bool:
    return issubclass(found, DatasetBuilder) if isinstance(found, type) else isinstance(found, DatasetBuilder)


def _kind(made: DatasetBuilder) -> DatasetKind:
    said = f"{made.description.strip()}\n\n" if made.description.strip() else ""
    template = _TEMPLATE.format(
        title=made.name, description=said.replace("{", "{{").replace("}", "}}")
    )  # which is a template again
    return DatasetKind(f"{made.name}.parquet", made.name, "row", made.reasons, template, (*made.tags, "factuality"))


def _plain(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, Mapping) or not all(isinstance(name, str) and name.split() == [name] for name in row):
        raise DataError(f"{place} must be a mapping from names without spaces, got {row!r:.100}")
    try:
        text = json.dumps(dict(row), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place} must hold text, numbers, lists and dictionaries: {error}") from None
    return json.loads(text.encode("utf-8", "replace"))  # as they are written


def _features(made: DatasetBuilder, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Types of the columns that only this dataset has, as `datasets` infers them unless the builder says them."""
    from datasets import Dataset
    from pyarrow import ArrowException

    found = dict(made.features)
    for name in rows[0] if rows else ():
        if name not in found and name not in column_types():
            try:
                found |= Dataset.from_dict({name: [row[name] for row in rows]}).features
            except (ArrowException, ValueError) as error:
                raise DataError(f"{made.name}: values of {name!r} are of several types: {error}") from None
    return found
