"""Benchmarks of judges: claims with evidence and human labels, of which a verifier is measured, not a model.

Columns are those of `lytang/LLM-AggreFact`, `wandb/RAGTruth-processed`, `pminervini/HaluEval`, of WiCE's `claim-*.jsonl`,
RAGTruth's `response.jsonl` with `source_info.jsonl`, and of the rows that SummaC's own code makes (`SummaCBenchmark`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.data.benchmarks.rows import BenchmarkRow, Unusable
from hf_factuality.verifiers.base import evidence_passages


_LABELS = {"1": True, "0": False, "true": True, "false": False, "supported": True, "not_supported": False,
           "correct": True, "incorrect": False}  # fmt: skip


def build_claim(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """A claim, its document and whether it is supported: 1 or 0. The domain is the dataset that the row is from."""
    said = _LABELS.get(row.text("label").strip().lower().replace(" ", "_"))
    if said is None:
        raise Unusable("label is neither 1 nor 0")
    return _item(row, row.text("claim"), _passages(row), {"supported": said}, domain=row.optional_text("dataset"))


def build_wice(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """A claim of Wikipedia and the sentences of the page that it cites, as one passage. As in the paper's binary task, what is
    supported in part is not supported."""
    label = row.text("label").strip()
    if label not in ("supported", "partially_supported", "not_supported"):
        raise Unusable("label is not supported, partially_supported or not_supported")
    sentences = "\n".join(row.texts("evidence", "\n"))
    return _item(row, row.text("claim"), (sentences,), {"supported": label == "supported"})


def build_ragtruth(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """A response with its hallucinated spans; the domain is the task. Only the test split counts. Structured sources are shown as JSON."""
    if row.optional_text("split") not in (None, "test"):  # the authors' file holds both
        raise Unusable("split is not test")
    response = row.values.get("response")
    if not isinstance(response, str) or not response.strip():
        raise Unusable("no response")
    spans = row.values.get("labels")
    if isinstance(spans, str):
        try:
            spans = json.loads(spans or "[]")
        except ValueError:
            spans = None
    ends = [(it.get("start"), it.get("end")) if isinstance(it, Mapping) else it for it in spans or ()]
    if not isinstance(spans, list) or not all(_is_span(it, len(response)) for it in ends):
        raise Unusable("labels are no spans of the response")
    source = row.values.get("source_info")
    question = row.optional_text("query")
    if isinstance(source, Mapping) and {"question", "passages"} <= set(source):
        question, source = str(source["question"]), source["passages"]
    text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
    if source is None or not text.strip():
        raise Unusable("no source_info")
    reference = {"spans": [list(it) for it in ends]}
    return _item(row, response, (text,), reference, question, row.optional_text("task_type"))


def build_halueval_claim(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """The drawn candidate of a row: an answer, a response or a summary, right or hallucinated, with its knowledge."""
    claim = row.text("hallucinated_answer" if row.drawn else "right_answer")
    history = row.optional_text("dialogue_history")
    passages = (row.text("knowledge"), *(() if history is None else (history,)))
    return _item(row, claim, passages, {"supported": not row.drawn}, row.optional_text("question"))


def _item(
    row: BenchmarkRow,
    claim: str,
    evidence: tuple[str, ...],
    reference: dict[str, Any],
    question: str | None = None,
    domain: str | None = None,
) -> BenchmarkItem:
    return BenchmarkItem(row.id, (), question, evidence=evidence, domain=domain, reference=reference, claim=claim)


def _passages(row: BenchmarkRow) -> tuple[str, ...]:
    found = evidence_passages(row.values.get("document"))
    if not found:
        raise Unusable("no document")
    return found


def _is_span(ends: Any, length: int) -> bool:
    whole = isinstance(ends, (list, tuple)) and len(ends) == 2 and all(type(end) is int for end in ends)
    return whole and 0 <= ends[0] <= ends[1] <= length
