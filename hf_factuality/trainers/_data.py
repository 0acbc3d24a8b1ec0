"""The datasets of a trainer: rows enough for a step, and no column that its parent takes for something else."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from datasets import Dataset, IterableDataset
from jinja2 import TemplateError

from hf_factuality.data.reading import refuse_unrendered
from hf_factuality.errors import DataError


FORMAT_COLUMNS = frozenset({"prompt", "chosen", "rejected", "completion", "messages"})
"""TRL tells conversations from text by one of these, whichever comes first in a set, and that differs between processes."""

PAIRS = ("prompt", "chosen", "rejected")
"""Those of a preference pair."""


class ChecksDatasets:
    """Beneath all trainers: an error at construction for datasets that cannot be trained or evaluated on.

    TRL guesses the format of a row from any column of [`FORMAT_COLUMNS`]. Those that a trainer does not read are dropped
    before its parent sees the dataset.
    """

    _required: ClassVar[tuple[str, ...]] = ()
    _misread: ClassVar[frozenset[str]] = FORMAT_COLUMNS
    _reads_images: ClassVar[bool] = False
    """Whether the parent takes rows with a column of images for those of a vision-language model."""

    def __init__(self, *args: Any, train_dataset: Any = None, eval_dataset: Any = None, **kwargs: Any):
        train_dataset = self._checked_dataset(train_dataset, "train")
        eval_dataset = self._checked_evaluation(eval_dataset)
        super().__init__(*args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        self._require_rows(self.train_dataset, "train", *self._rows_of_a_step())
        for name, dataset in named_datasets(self.eval_dataset).items():
            self._require_rows(dataset, name, *self._rows_of_an_evaluation())

    def _text_columns(self, columns: Collection[str]) -> Collection[str] | None:
        """Which of the columns of texts the parent is to read; `None` leaves all, for a parent that does not guess."""
        return None

    def _checked_evaluation(self, dataset: Any) -> Any:
        if not isinstance(dataset, dict):
            return self._checked_dataset(dataset, "eval")
        if not dataset:
            raise DataError("eval_dataset is a dict without any dataset; pass None, or add one")
        return type(dataset)({name: self._checked_dataset(own, name) for name, own in dataset.items()})

    def _checked_dataset(self, dataset: Any, name: str) -> Any:
        """The dataset without columns that the parent would misread; `DataError` if it cannot be used at all."""
        if not isinstance(dataset, (Dataset, IterableDataset)):
            return dataset  # the parent says what it takes
        row = next(iter(dataset), None)
        if row is None:
            raise DataError(f"the {name} dataset is empty; check the file, the split or the filter that it comes from")
        columns = dataset.column_names or list(row)
        self._check_columns(dataset, columns, name)
        read = self._text_columns(columns)
        if read is None:
            return dataset
        place = f"the {name} dataset, row 0"
        kinds = {column: _kind(row[column], column, place) for column in sorted({*read}.intersection(columns))}
        if len({*kinds.values()}) > 1:
            raise DataError(
                f"the {name} dataset mixes formats: {kinds}; make all of them text, or lists of messages (role, content)"
            )
        # Row 0 tells the types of all rows, but not where one is null or empty. A parent falls over those, or it depends on
        # the column by which it tells the format.
        if isinstance(dataset, Dataset) and kinds:
            for number, row in enumerate(dataset.select_columns([*kinds])):
                for column, value in row.items():
                    _kind(value, column, f"the {name} dataset, row {number}")
        foreign = self._misread.intersection(columns).difference(read)
        return dataset.remove_columns(sorted(foreign)) if foreign else dataset

    def _check_columns(self, dataset: Any, columns: Collection[str], name: str) -> None:
        if missing := set(self._required).difference(columns):
            raise DataError(f"the {name} dataset has no column {min(missing)!r}, only {sorted(columns)}; add it")
        if self._reads_images and (images := {"image", "images"}.intersection(columns)):
            raise DataError(
                f"the {name} dataset has a column {min(images)!r}, and this trainer does not support images; remove it"
            )

    def _rows_of_a_step(self) -> tuple[int, str]:
        """How many rows the first step needs, over all processes, and why."""
        size = self._train_batch_size * self.args.world_size
        return self._rows_of_a_batch(size, "per_device_train_batch_size")

    def _rows_of_an_evaluation(self) -> tuple[int, str]:
        return self._rows_of_a_batch(self.args.eval_batch_size * self.args.world_size, "per_device_eval_batch_size")

    def _rows_of_a_batch(self, size: int, name: str) -> tuple[int, str]:
        drops = self.args.dataloader_drop_last
        why = f"of a batch of all processes, which dataloader_drop_last=True drops; set it to False, or lower {name}"
        return (size, why) if drops else (1, "")

    def _require_rows(self, dataset: Any, name: str, needed: int, why: str) -> None:
        if isinstance(dataset, Dataset):  # what a stream loses on its way is known once it has passed, see `train`
            self._refuse_few(len(dataset), name, needed, why)

    def _refuse_few(self, rows: int, name: str, needed: int, why: str) -> None:
        if not rows:
            longest = getattr(self.args, "max_length", None)
            also = f", and max_length={longest}" if longest else ""
            raise DataError(f"no row of the {name} dataset is left once it is prepared; check its texts{also}")
        if rows < needed:
            raise DataError(f"the {name} dataset has {rows} rows, fewer than the {needed} {why}")

    def _prepare_dataset(self, dataset, processing_class, args, *settings):
        try:
            return super()._prepare_dataset(dataset, processing_class, args, *settings)
        except (TemplateError, TypeError):
            if isinstance(dataset, Dataset):
                tokenizer = getattr(processing_class, "tokenizer", processing_class)
                refuse_unrendered(_conversations(dataset), tokenizer, f"the {settings[-1]} dataset, ")
            raise

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        if not isinstance(eval_dataset, str):
            eval_dataset = self._checked_evaluation(eval_dataset)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        if self.state.max_steps > 0 and not self.state.global_step:
            raise DataError(
                "training took no step: no batch came out of the train dataset; check that the stream has rows left after "
                "its filters, and as many as a batch of all processes needs"
            )
        return output


def named_datasets(dataset: Any, name: str = "eval") -> dict[str, Any]:
    """One dataset, a dict of them or none, by their names in messages."""
    if isinstance(dataset, dict):
        return dict(dataset)
    return {} if dataset is None else {name: dataset}


def _kind(value: Any, column: str, place: str) -> str:
    # SFT turns these, and only these, into messages.
    shared = column == "conversations"
    keys = ("from", "value") if shared else ("role", "content")
    if isinstance(value, str) and not shared:
        return "text"
    if isinstance(value, list) and value and isinstance(value[0], dict) and keys[0] in value[0]:
        return "messages"
    must = f"{'' if shared else 'a text or '}a list of messages ({', '.join(keys)})"
    raise DataError(f"{place}: {column!r} must be {must}, got {value!r:.100}")


def _conversations(dataset: Iterable[dict[str, Any]]):
    """Per row, what is rendered: conversations, each with its settings."""
    for row in dataset:
        settings = dict(row.get("chat_template_kwargs") or {})
        texts = {name: value for name, value in row.items() if name in FORMAT_COLUMNS and isinstance(value, list)}
        prompt = texts.pop("prompt", None)
        both = [(prompt, {**settings, "add_generation_prompt": True})] if prompt is not None else []
        yield [*both, *(((prompt or []) + own, settings) for own in texts.values())]
