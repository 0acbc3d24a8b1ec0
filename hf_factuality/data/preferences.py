"""From questions to fine-grained preference pairs: sample, verify, choose; a run that is killed goes on where it was.

Mask-DPO (ICLR 2025) describes these steps; its authors released neither the code nor the data.

A run lives in a folder:

| file | what it holds |
|---|---|
| `settings.json` | what the run must keep the same to be continued |
| `responses.jsonl` | a line per question: its responses |
| `verifications.jsonl` | a line per question: what the verifier found in each |
| `pairs.parquet`, `README.md` | the dataset with its card; written last, loads with `datasets.load_dataset(folder)` |
| `report.json` | what was made, and what was dropped and why |
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality import __version__
from hf_factuality.chat.journal import LineFile, only_run
from hf_factuality.data.pairs import Pair, PairConfig, PairReport, choose_pairs
from hf_factuality.data.sampling import GivenResponses, Sampler
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.io.files import write_atomically, writing
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput, evidence_passages
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import NO_EVIDENCE, JudgedRow, Row, judge_rows


if TYPE_CHECKING:
    from datasets import Dataset, Features


__all__ = ["PreferenceQuestion", "build_preferences", "load_pairs", "pair_features", "read_questions"]

logger = logging.getLogger(__name__)

_SIDES = ("chosen", "rejected")
_EVIDENCE = ("evidence", "knowledge", "reference", "document", "context")


@dataclass(frozen=True)
class PreferenceQuestion:
    """What is asked, and what the answers are judged by.

    Args:
        id (`str`): Unlike that of any other question.
        messages (`tuple[Mapping[str, str], ...]`): The conversation that a response continues.
        question (`str`): What the verifier is shown.
        evidence (`tuple[str, ...]`, *optional*): Passages.
        topic (`str`, *optional*): Of what it asks, for selections by topic.
        row (`Mapping[str, Any]`, *optional*): The dataset's other columns, which verifiers may read.
    """

    id: str
    messages: tuple[Mapping[str, str], ...]
    question: str
    evidence: tuple[str, ...] = ()
    topic: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)


def read_questions(rows: Sequence[Mapping[str, Any]], name: str = "the dataset") -> list[PreferenceQuestion]:
    """Questions of a dataset.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            Rows with `prompt` (messages or text) or `question`; and optionally `id`, `topic`, and evidence (text or a list
            of texts) as `evidence`, `knowledge`, `reference`, `document` or `context`.
        name (`str`, *optional*):
            Of the dataset, for errors.

    Returns:
        `list[PreferenceQuestion]`

    Raises:
        `DataError`: no rows, a row that is no question, two of one `id`.
    """
    found, seen = [], set()
    for number, row in enumerate(rows):
        place = f"row {number} of {name}"
        prompt = row.get("prompt") or row.get("question")
        if isinstance(prompt, str) and prompt.strip():
            messages: tuple[Mapping[str, str], ...] = ({"role": "user", "content": prompt},)
        elif (
            isinstance(prompt, (list, tuple))
            and prompt
            and all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in prompt)
        ):
            messages = tuple({"role": m["role"], "content": m["content"]} for m in prompt)
        else:
            raise DataError(
                f"{place} has no question: it needs `prompt` (messages or text) or `question`; it has {sorted(row)}"
            )
        question = row.get("question") or next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
        evidence = evidence_passages(next((row[key] for key in _EVIDENCE if row.get(key) is not None), None))
        if evidence is None:
            raise DataError(f"{place}: evidence must be text or a list of texts")
        key = str(row["id"]) if row.get("id") is not None else str(number)
        if key in seen:
            raise DataError(f"{place} has the id {key!r} of an earlier row; ids must differ")
        seen.add(key)
        topic = row.get("topic")
        found.append(
            PreferenceQuestion(key, messages, question, evidence, None if topic is None else str(topic), dict(row))
        )
    if not found:
        raise DataError(f"{name} has no rows")
    return found


def build_preferences(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    pairs: PairConfig | None = None,
    seed: int = 0,
    questions_per_batch: int = 1,
    patience: float = 3600.0,
    progress: bool = True,
    overlap: bool | None = None,
) -> Dataset:
    """Sample responses to each question, verify them, and make the pairs of a preference dataset.

    Started again on the same folder with the same settings it continues: nothing is sampled or verified twice, and the
    dataset is the one that an uninterrupted run makes (with a sampler that repeats itself for a seed). Responses that the
    verifier failed on, or of which a server judged no sentence, are tried again once, at the end and in each later run, and
    else left out and counted.

    Args:
        questions (`Sequence[PreferenceQuestion]`):
            See [`read_questions`].
        sampler ([`~hf_factuality.data.sampling.Sampler`]):
            Samples the responses.
        verifier ([`~hf_factuality.verifiers.base.Verifier`]):
            Labels their sentences.
        folder (`str` or `PathLike`):
            Where the run lives.
        pairs ([`~hf_factuality.data.pairs.PairConfig`], *optional*):
            What makes a pair. May differ when a run is continued, since it is applied at the end.
        seed (`int`, *optional*, defaults to `0`):
            Of sampling.
        questions_per_batch (`int`, *optional*, defaults to `1`):
            Questions that are sampled together, and verified together.
        patience (`float`, *optional*, defaults to `3600.0`):
            Seconds to wait, in growing steps, for a verifier or sampler whose server is down, before the run stops.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        overlap (`bool`, *optional*):
            Whether the responses to one batch are verified, in a thread, while those to the next are sampled. By default
            if the verifier asks a server; one that runs a model here would compete with the sampler, and could disturb
            its random state.

    Returns:
        `datasets.Dataset`: columns of [`pair_features`].

    Raises:
        `DataError`: the folder holds a run with other settings, or files that are none; no pair is left.
        `JudgingError`: a server was down for longer than `patience`; what is done is kept.
    """
    if getattr(verifier, "requires_evidence", True) and not any(question.evidence for question in questions):
        raise DataError(
            f"{type(verifier).__name__} needs evidence and no question has any: give the rows a column of "
            f"{', '.join(_EVIDENCE)}, or use a verifier that finds evidence itself"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    batches = [questions[i : i + questions_per_batch] for i in range(0, len(questions), questions_per_batch)]
    with ExitStack() as stack:
        taken = f"another run is under way in {folder}; wait for it, or use another folder"
        stack.enter_context(only_run(folder / ".lock", taken))
        _check_settings(folder / "settings.json", questions, sampler, verifier, seed, questions_per_batch)
        responses, verdicts = LineFile(folder / "responses.jsonl"), LineFile(folder / "verifications.jsonl")
        stack.callback(responses.close)
        stack.callback(verdicts.close)
        work = _Verification(responses, verdicts, verifier, patience)
        bar = stack.enter_context(_bar(len(questions), progress))
        behind = _Behind(bar) if (work.served if overlap is None else overlap) else None
        try:
            for batch in batches:
                if not all(question.id in responses for question in batch):
                    responses.add(_sample(batch, sampler, seed, patience))
                if behind:
                    behind.start(work, batch)
                else:
                    work.judge(batch)
                    bar.update(len(batch))
            if behind:
                behind.wait()
        except Exception:
            if behind:  # the sampler is gone; what it sampled before is still verified
                behind.finish()
            raise
        except BaseException:
            work.stopped = True  # a thread that waits for its server ends
            raise
        failed = [question for question in questions if any(map(work.failed, verdicts[question.id]))]
        if failed:
            logger.warning("the verifier failed on responses to %d questions; trying these again", len(failed))
            work.judge(failed, again=True)
        return _finish(questions, responses, verdicts, folder, pairs or PairConfig())


def load_pairs(folder: str | os.PathLike) -> Dataset:
    """The dataset that [`build_preferences`] wrote.

    Raises:
        `DataError`: there is none.
    """
    from datasets import Dataset

    from hf_factuality.data.pair_card import describe_run

    path = Path(folder) / "pairs.parquet"
    if not path.is_file():
        raise DataError(f"there is no {path}; a run writes it at its end: start it again to finish it")
    dataset = Dataset.from_parquet(str(path))
    dataset.info.description = describe_run(path.parent)  # for the card of a model that is trained on it
    return dataset


def pair_features() -> Features:
    """Columns of the dataset: conversations, their sentences, scores.

    `chosen_spans` and `rejected_spans` hold [`~hf_factuality.spans.LabeledSpan`] as dictionaries: characters of the content
    of `chosen` and `rejected`.
    """
    from datasets import Features, Value

    text, number, messages = Value("string"), Value("float64"), [{"role": Value("string"), "content": Value("string")}]
    spans = [
        {
            "start": Value("int64"),
            "end": Value("int64"),
            "label": text,
            "score": number,
            "claim": text,
            "evidence": text,
        }
    ]
    return Features(
        {
            "id": text, "prompt": messages, "chosen": messages, "rejected": messages, "chosen_spans": spans,
            "rejected_spans": spans, "chosen_score": number, "rejected_score": number, "topic": text,
        }
    )  # fmt: skip


def _check_settings(path: Path, questions, sampler: Sampler, verifier: Verifier, seed: int, per_batch: int) -> None:
    digest = hashlib.sha256()
    for question in questions:
        digest.update(
            json.dumps(
                [question.id, list(map(dict, question.messages)), question.question, question.evidence]
            ).encode()
        )
    settings = {
        "questions": digest.hexdigest()[:16], "number_of_questions": len(questions), "seed": seed,
        "questions_per_batch": per_batch, "sampling": sampler.describe(), "verifier": _describe(verifier),
    }  # fmt: skip
    settings = json.loads(json.dumps(settings))
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is no file of settings ({error}); use another folder") from None
        before.pop("hf_factuality", None)
        for key in settings:
            if before.get(key) != settings[key]:
                raise DataError(
                    f"{path.parent} holds a run with other settings: {key} was {before.get(key)!r}, now {settings[key]!r}; "
                    "use the same, or another folder"
                )
    else:
        write_atomically(path, json.dumps({**settings, "hf_factuality": __version__}, indent=2) + "\n")


def _describe(verifier: Verifier) -> dict[str, Any]:
    """Class and plain settings of a verifier and its stages; no addresses, no keys, no folders."""
    found: dict[str, Any] = {"class": type(verifier).__name__}
    for stage in ("extractor", "retriever", "judge"):
        part = getattr(verifier, stage, None)
        if part is not None:
            found[stage] = {"class": type(part).__name__}
            for source in (part, getattr(part, "client", None), getattr(part, "base", None)):
                for name in ("model", "revision", "threshold", "fingerprint", "top_k"):
                    value = getattr(source, name, None)
                    if isinstance(value, (str, int, float)):
                        local = name == "model" and Path(str(value)).exists()
                        found[stage][name] = Path(str(value)).name if local else value
    return found


def _is_served(verifier: Verifier) -> bool:
    from hf_factuality.chat.client import ChatClient

    return isinstance(getattr(getattr(verifier, "judge", None), "client", None), ChatClient)


def _sample(
    batch: Sequence[PreferenceQuestion], sampler: Sampler, seed: int, patience: float
) -> list[tuple[str, list]]:
    if isinstance(sampler, GivenResponses):
        found = sampler.responses_to([question.id for question in batch])
    else:
        batch_seed = int.from_bytes(hashlib.sha256(f"{seed} {batch[0].id}".encode()).digest()[:4], "big") >> 1
        messages = [question.messages for question in batch]
        found = _patiently(lambda: sampler.sample(messages, batch_seed), patience, "sampling")
    return [
        (question.id, [None if r is None else [r.text, r.finished] for r in rows])
        for question, rows in zip(batch, found, strict=True)
    ]


class _Behind:
    """Verifies one batch in a thread while the caller samples the next.

    The thread is a daemon: an interpreter that is told to end does not wait for a server.
    """

    def __init__(self, bar: Any):
        self._bar = bar
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: _Verification, batch: Sequence[PreferenceQuestion]) -> None:
        self.wait()

        def run():
            try:
                work.judge(batch)
                self._bar.update(len(batch))
            except BaseException as error:  # raised where the caller waits
                self._error = error

        self._thread = threading.Thread(target=run, name="verification", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Raises what the verification raised."""
        self.finish()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _patiently(call, patience: float, what: str, stopped: Callable[[], bool] = lambda: False) -> Any:
    """The result of `call`; while a server is down, tries again until `patience` seconds are over."""
    start, delay = time.monotonic(), 2.0
    while True:
        try:
            return call()
        except (JudgingError, OSError) as error:
            waited = time.monotonic() - start
            if stopped():
                raise
            if waited >= patience:
                raise JudgingError(
                    f"{what} has failed for {waited:.0f} seconds: {error}; what is done is kept: start the run again to go on"
                ) from error
            logger.warning("%s failed, trying again in %.0f seconds: %s", what, delay, error)
            time.sleep(min(delay, patience - waited))
            delay = min(2 * delay, 60.0)


class _Verification:
    """Verifies responses and writes down what was found.

    Args:
        responses, verdicts ([`LineFile`]): Files of the run.
        verifier ([`~hf_factuality.verifiers.base.Verifier`]): Who verifies.
        patience (`float`): Seconds.
    """

    def __init__(self, responses: LineFile, verdicts: LineFile, verifier: Verifier, patience: float):
        self.responses, self.verdicts, self.patience = responses, verdicts, patience
        # The verifier gets the responses of a batch of questions in one call, however many these are.
        self.guard = GuardedVerifier(verifier, None, sys.maxsize, raises=(JudgingError, OSError))
        self.served = _is_served(verifier)
        self.stopped = False

    def failed(self, found: dict[str, Any] | None) -> bool:
        """Whether to try again: an error, or nothing judged by a server, which may have refused every request."""
        if found is None or found["error"] is not None:
            return found is not None and found["error"] != NO_EVIDENCE
        return self.served and bool(found["spans"]) and all(span["label"] is None for span in found["spans"])

    def judge(self, questions: Sequence[PreferenceQuestion], again: bool = False) -> None:
        """Judge the responses to questions; those of questions that were verified already only `again`, if they failed."""
        rows = []
        found: dict[str, list] = {}
        for question in questions:
            done = question.id in self.verdicts
            if done and not again:
                continue
            responses = self.responses[question.id]
            found[question.id] = self.verdicts[question.id] if done else [None] * len(responses)
            for number, (response, old) in enumerate(zip(responses, found[question.id], strict=True)):
                if response is None or (old and not self.failed(old)):
                    continue
                item = VerifierInput(response[0], question.question, question.evidence, question.row)
                rows.append(Row(item, key=(question.id, number)))
        if rows:
            judged = _patiently(lambda: self._judge(rows), self.patience, "verification", lambda: self.stopped)
            sent = [it.found.error for it in judged if it.left_out is None]
            if not self.verdicts and sent and all(sent):
                raise JudgingError(f"the verifier failed on all {len(sent)} responses of the first batch: {sent[0]}")
            for it in judged:
                key, number = it.row.key
                found[key][number] = it.found.to_dict()
        if found:
            self.verdicts.add(found.items())

    def _judge(self, rows: Sequence[Row]) -> list[JudgedRow]:
        (judged,) = judge_rows(self.guard, rows, chunk=None)
        return judged


def _finish(questions, responses: LineFile, verdicts: LineFile, folder: Path, config: PairConfig) -> Dataset:
    from datasets import Dataset

    report, rows = PairReport(), []
    for question in questions:
        for pair in _pairs_of(responses[question.id], verdicts[question.id], config, report):
            rows.append(_row(question, pair))
    truncated = sum(not r[1] for q in questions for r in responses[q.id] if r is not None)
    lost = sum(r is None for q in questions for r in responses[q.id])
    for line in report.lines():
        logger.info(line)
    summary = {
        **asdict(report),
        "dropped": dict(report.dropped),
        "cut_off_responses": truncated,
        "lost_responses": lost,
        **{f"{side}_score": sum(row[f"{side}_score"] for row in rows) / len(rows) for side in _SIDES if rows},
    }
    write_atomically(folder / "report.json", json.dumps({**summary, "pair_settings": asdict(config)}, indent=2) + "\n")
    if not rows:
        (folder / "pairs.parquet").unlink(missing_ok=True)  # of a run with other settings of pairs
        raise DataError("no pair is left: " + "; ".join(report.lines()))
    dataset = Dataset.from_list(rows, features=pair_features())
    with writing(folder / "pairs.parquet") as partial:
        dataset.to_parquet(str(partial))
    from hf_factuality.data.pair_card import card_text

    write_atomically(folder / "README.md", card_text(folder))
    return dataset


def _pairs_of(responses: list, verdicts: list, config: PairConfig, report: PairReport) -> Iterator[Pair]:
    kept = [(r[0], v) for r, v in zip(responses, verdicts, strict=True) if r is not None]
    found = [None if v is None else Verification.from_dict(v) for _, v in kept]
    yield from choose_pairs([text for text, _ in kept], found, config, report)


def _row(question: PreferenceQuestion, pair: Pair) -> dict[str, Any]:
    row: dict[str, Any] = {"id": question.id, "prompt": list(map(dict, question.messages)), "topic": question.topic}
    for side in _SIDES:
        response = getattr(pair, side)
        row[side] = [{"role": "assistant", "content": response.text}]
        row[f"{side}_spans"] = [span.to_dict() for span in response.spans]
        row[f"{side}_score"] = response.score
    return row


def _bar(total: int, shown: bool):
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="questions", unit="question", disable=not shown)
