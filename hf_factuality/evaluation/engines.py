"""What answers the questions of a benchmark: the protocol, a model on a server, and a file of answers that exist already.

The model that runs in this process is in `local.py`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import require_log_likelihoods
from hf_factuality.generation.base import Backend, ChatAnswer, ChatRequest
from hf_factuality.generation.given import ANSWER_COLUMNS, read_given
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.io.rows import json_list


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A completion that is wanted: sample number `sample` of an item."""

    item: BenchmarkItem
    sample: int = 0

    def seed(self, seed: int) -> int:
        """Seed of this sample: it depends on the run's seed, the item's id and the sample's number, and on nothing else."""
        digest = hashlib.sha256(f"{seed}\0{self.item.id}\0{self.sample}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:4], "big") >> 1

    def chat(self, sampling: SamplingConfig) -> ChatRequest:
        """What a chat model is asked."""
        return ChatRequest.of(self.item.messages, sampling, self.seed(sampling.seed) if sampling.temperature else None)


class Engine(Protocol):
    """Answers items. Both methods yield as they go, in any order, so that a run that dies keeps what it had."""

    generates: bool  # False: completions exist already, and sampling settings do not apply

    def identity(self) -> dict[str, Any]:
        """The entry `model` of the results."""

    def settings(self) -> dict[str, Any]:
        """What else decides the answers, such as the chat template's use; no machine, no batch size."""

    def check(self, items: Sequence[BenchmarkItem], sampling: SamplingConfig | None) -> None:
        """Raise what answering these items would raise in the end; `sampling` is `None` for log-likelihoods."""

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        """A completion per request, without its prefill."""

    def log_likelihoods(self, items: Sequence[BenchmarkItem]) -> Iterator[tuple[str, list[float]]]:
        """Per item its id and, per choice, the natural logarithm of its probability, summed over its tokens; not of servers."""


class ModelEngine:
    """A model that answers by way of a client of [`~hf_factuality.generation`]."""

    generates = True
    client: Backend

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        """A completion per request, as they come."""
        asked = [request.chat(sampling) for request in requests]
        yield from ((requests[number], answer) for number, answer in self.client.stream(asked))


class ServerEngine(ModelEngine):
    """A model on an OpenAI-compatible server, through [`~hf_factuality.generation.client.ChatClient`], which gets `kwargs`.
    Nothing is cached: the journal has each answer as soon as it is there."""

    def __init__(
        self, model: str, base_url: str, *, template_arguments: Mapping[str, Any] | None = None, **kwargs: Any
    ):
        from hf_factuality.generation.client import ChatClient

        self._template_arguments = dict(template_arguments or {})
        body = {"chat_template_kwargs": self._template_arguments} if self._template_arguments else {}
        self.client: ChatClient = ChatClient(base_url, model, cache=False, extra_body=body, **kwargs)

    def identity(self) -> dict[str, Any]:
        return _identity(self.client.model, self.client.revision, "openai-compatible")

    def settings(self) -> dict[str, Any]:
        return {"prompt_format": "server", "chat_template_kwargs": self._template_arguments}

    def check(self, items: Sequence[BenchmarkItem], sampling: SamplingConfig | None) -> None:
        """A server says itself what it cannot answer; the flags refuse log-likelihoods, which none tells."""

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        try:
            yield from super().generate(requests, sampling)
        finally:
            self.client.close()


class FileEngine:
    """Answers of a file: `completion`, `answer`, `text` or `output`, several, a chat `messages`, or `log_likelihoods`.

    It is read as [`~hf_factuality.io.rows.read_rows`] does, under any name. Rows belong to the items of the same `id`; without a
    column `id`, to the items in order. A `null`, NaN or empty cell is a missing answer.
    """

    generates = False

    def __init__(self, path: Path, name: str | None = None):
        self._path, self._name = path, name
        with path.open("rb") as file:
            self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        read = [(it[0], *self._read(*it)) for it in read_given(path, ANSWER_COLUMNS, any_name=True)]
        if not read:
            raise DataError(f"{path.name} holds no rows")
        if not any(known for *_, known in read):
            columns = ", ".join((*ANSWER_COLUMNS, "messages", "log_likelihoods"))
            place, row, _ = read[0]
            found = sorted(set(row) - {"completions"})
            raise DataError(
                f"{place} has no answer (found {found}), nor has any other; call its column one of {columns}"
            )
        self._rows = [row for _, row, _ in read]
        self._by_id: dict[str, dict[str, Any]] = {}
        for row in self._rows:
            if "id" not in row:
                continue
            if str(row["id"]) in self._by_id:
                raise DataError(f"{path.name}: two rows have the id {row['id']!r}; put samples into 'completions'")
            self._by_id[str(row["id"])] = row
        self.by_order = not self._by_id  # rows belong to items by their order
        if 0 < len(self._by_id) < len(self._rows):
            raise DataError(f"{path.name}: some rows have an 'id' and others have none; give every row one")

    @staticmethod
    def _read(place: str, row: Any, texts: list[str | None] | None) -> tuple[dict[str, Any], bool]:
        """The row with its answers as `completions`, and whether it has a column of them: one without has a missing answer."""
        if not isinstance(row, dict):
            raise DataError(f"{place} has no answer (found {type(row).__name__}); give an object with columns per row")
        read = {**row, "completions": [None] if texts is None else texts}
        if "log_likelihoods" in row:
            read["log_likelihoods"] = json_list(row["log_likelihoods"])
        return read, texts is not None or "log_likelihoods" in row

    def identity(self) -> dict[str, Any]:
        return _identity(self._name)

    def settings(self) -> dict[str, Any]:
        return {"answers": self._path.name, "sha256": self._digest}

    def join(self, items: Sequence[BenchmarkItem], sample: bool = False) -> None:
        """Tell which items the rows belong to; those of no item are passed over, with a warning if `sample` is false."""
        ids = {item.id: None for item in items}  # in order
        name = self._path.name
        if self.by_order:
            if len(ids) != len(self._rows):
                raise DataError(
                    f"{name} has {len(self._rows)} rows and the benchmark {len(ids)} items, so that they cannot be joined "
                    "by their order; give every row the 'id' of its item"
                )
            self._by_id = dict(zip(ids, self._rows, strict=True))
            return
        others = [known for known in self._by_id if known not in ids]
        if len(others) == len(self._by_id):
            raise DataError(
                f"no row of {name} has the id of an item: it has {others[0]!r}, the items {next(iter(ids), None)!r}"
            )
        if others and not sample:
            warning = "%s: %d of %d rows have the id of no item and are not used; the first: %r"
            logger.warning(warning, name, len(others), len(self._rows), others[0])

    def samples(self, items: Sequence[BenchmarkItem]) -> int:
        """Number of completions that each item has; `DataError` if it is not the same for all."""
        counts = {len(self._by_id[item.id]["completions"]) for item in items if item.id in self._by_id}
        if len(counts) > 1:
            few, many = min(counts), max(counts)
            raise DataError(f"{self._path.name}: rows have {few} to {many} completions; give as many each")
        return counts.pop() if counts else 1

    def check(self, items: Sequence[BenchmarkItem], sampling: SamplingConfig | None) -> None:
        if sampling is not None:
            return
        for item in items:
            values = self._by_id.get(item.id, {}).get("log_likelihoods")
            numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
            if not numbers or len(values) != len(item.choices):
                raise DataError(
                    f"{self._path.name}: item {item.id!r} needs 'log_likelihoods', a list of {len(item.choices)} "
                    f"numbers, one per choice, got {values!r:.100}"
                )
            try:
                require_log_likelihoods(values)
            except ValueError as error:
                raise DataError(f"{self._path.name}: item {item.id!r}: {error}") from error

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        for request in requests:
            row = self._by_id.get(request.item.id)
            text = None if row is None else row["completions"][request.sample]
            yield request, ChatAnswer(error="not in the file") if text is None else ChatAnswer(text)

    def log_likelihoods(self, items: Sequence[BenchmarkItem]) -> Iterator[tuple[str, list[float]]]:
        for item in items:
            yield item.id, [float(value) for value in self._by_id[item.id]["log_likelihoods"]]


class ClaimEngine:
    """The given claims of benchmarks of judges stand for answers; whose results these are is the verifier's name."""

    generates = False

    def __init__(self, verifier: str):
        self._verifier = verifier

    def identity(self) -> dict[str, Any]:
        return _identity(self._verifier)

    def settings(self) -> dict[str, Any]:
        return {"claims": "given"}

    def check(self, items: Sequence[BenchmarkItem], sampling: SamplingConfig | None) -> None:
        """There is nothing to ask."""

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> Iterator[tuple[Request, ChatAnswer]]:
        for request in requests:
            yield request, ChatAnswer(request.item.claim or "")

    def log_likelihoods(self, items: Sequence[BenchmarkItem]) -> Iterator[tuple[str, list[float]]]:
        raise NotImplementedError("benchmarks of judges have no choices")


def described(sampling: SamplingConfig) -> dict[str, Any]:
    """Settings as results and files of answers have them."""
    found = {**sampling.describe(), "seed": sampling.seed, "stop": sampling.stop, "n_samples": sampling.num_samples}
    return {name: value for name, value in found.items() if name != "num_samples" and (name != "top_k" or value)}


def _identity(name: str | None, revision: str | None = None, server: str | None = None) -> dict[str, Any]:
    return {"name": name, "revision": revision, "adapter": None, "dtype": None, "server": server}
