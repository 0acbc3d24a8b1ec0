"""Evidence for claims: passages of a topic's page, by BM25 or embeddings, and several retrievers as one.

A claim for which nothing is found gets an empty tuple and is counted: that a page is missing says nothing about a claim.
FActScore's and RLFH's released retrievers end the run, or drop the row, where a page is missing.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_factuality.errors import RetrievalError
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.retrieval.passages import (
    Passage,
    PassageConfig,
    best_places,
    bm25_index,
    bm25_scores,
    split_passages,
    terms,
)
from hf_factuality.verifiers.base import Retriever, VerifierInput


logger = logging.getLogger(__name__)

Claims = Sequence[Sequence[str]]
QUERIES = ("claim", "topic", "sentences")
# What a judge reads of a passage.
FORMATS: Mapping[str, Callable[[Passage], str]] = {
    "text": lambda passage: passage.text,
    "title": lambda passage: f"{passage.title}: {passage.text}",
    "rlfh": lambda passage: f"<{passage.title}> {passage.text}",
    "factscore": lambda passage: f"Title: {passage.title}\nText: {passage.text}",
}


class CountingRetriever:
    """Counts `claims`, those `without_evidence`, and what else went wrong, with a warning each time that a count doubles."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self._counts_lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.config()), ()  # without locks, caches and counts

    def count(self, found: list[list[tuple]], problems: Mapping[str, Sequence[str]]) -> None:
        """Add to the counts; `problems` maps a count to what it was met with, of which the log names the last."""
        with self._counts_lock:
            self.counts["claims"] += sum(map(len, found))
            self.counts["without_evidence"] += sum(not passages for row in found for passages in row)
            for name, met in problems.items():
                before, after = self.counts[name], self.counts[name] + len(met)
                self.counts[name] = after
                if met and before.bit_length() < after.bit_length():
                    what = f"{type(self).__name__}: {name.replace('_', ' ')}: {after} so far"
                    logger.warning(f"{what}, the last {met[-1]!r:.200}; the claims concerned get no evidence")


class PageRetriever(CountingRetriever):
    """What searches the pages of a base, and shows their passages in a format."""

    def __init__(self, base: KnowledgeBase | str | Path, top_k: int, passage_format: str):
        super().__init__()
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k!r}")
        if passage_format not in FORMATS:
            raise ValueError(f"passage_format must be one of {sorted(FORMATS)}, got {passage_format!r}")
        self.base = base if isinstance(base, KnowledgeBase) else KnowledgeBase(base)
        self.top_k, self.passage_format = top_k, passage_format

    def search(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[Passage, ...]]]:
        """Like `retrieve`, with titles, offsets and scores."""
        raise NotImplementedError

    def searched(self, inputs: Sequence[VerifierInput]) -> list[bool]:
        """Per input, whether there was anything to search."""
        return [True] * len(inputs)

    def retrieve(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[str, ...] | None]]:
        """Per input and claim, the passages as text, best first; empty if none was found, `None` if there was nothing to search."""
        shown = FORMATS[self.passage_format]
        found = zip(self.search(inputs, claims), self.searched(inputs), strict=True)
        return [[tuple(map(shown, passages)) if any_ else None for passages in row] for row, any_ in found]


class TopicRetriever(PageRetriever):
    """Passages of the page that the row's topic names, ranked by BM25; implements `Retriever`.

    A topic without a page, and a row without a topic, leave nothing to search: `None` per claim, counted as
    `missing_pages` and `missing_topics`. Where the page is there, it is the evidence, whatever it says of the claim.

    Args:
        base ([`~hf_factuality.retrieval.knowledge.KnowledgeBase`], `str` or `Path`):
            Where the pages are.
        topic_column (`str`, *optional*, defaults to `"topic"`):
            Column of the row with a title, or with a list of titles whose pages are searched together, as in RLFH.
        top_k (`int`, *optional*, defaults to `5`):
            Passages per claim at most.
        query (`str`, *optional*, defaults to `"claim"`):
            - `"claim"`: the claim.
            - `"topic"`: the topic and the claim (FActScore).
            - `"sentences"`: each sentence of the claim for itself; of its scores those below the `top_k`-th best become 0,
              and the rest are added up (RLFH, where `top_k` is 2, and 3 in its training script).
        passages ([`PassageConfig`], *optional*):
            How pages are cut; `FACTSCORE_PASSAGES` and `RLFH_PASSAGES` are the papers'.
        pad (`bool`, *optional*, defaults to `True`):
            Whether the first passages of the page fill up what fewer than `top_k` matching ones leave (RLFH: no).
        passage_format (`str`, *optional*, defaults to `"title"`):
            What the judge reads: `"text"`, `"title"` ("TITLE: text"), `"rlfh"` or `"factscore"`.
        max_pages (`int`, *optional*, defaults to `256`):
            Pages that stay in memory with their index.
        k1, b, method (`float`, `float`, `str`, *optional*, default to `1.5`, `0.75`, `"lucene"`):
            See [`~hf_factuality.retrieval.passages.bm25_index`].

    Raises:
        `ValueError`: a setting that is none of those above.
        `RetrievalError`: the base cannot be read.
    """

    def __init__(
        self,
        base: KnowledgeBase | str | Path,
        topic_column: str = "topic",
        top_k: int = 5,
        query: str = "claim",
        passages: PassageConfig | Mapping[str, Any] | None = None,
        pad: bool = True,
        passage_format: str = "title",
        max_pages: int = 256,
        k1: float = 1.5,
        b: float = 0.75,
        method: str = "lucene",
    ):
        if query not in QUERIES:
            raise ValueError(f"query must be one of {QUERIES}, got {query!r}")
        super().__init__(base, top_k, passage_format)
        self.topic_column, self.query, self.pad, self.max_pages = topic_column, query, pad, max_pages
        self.passages = PassageConfig(**passages) if isinstance(passages, Mapping) else passages or PassageConfig()
        self._bm25 = {"k1": k1, "b": b, "method": method}
        bm25_index((), **self._bm25)  # refuses a wrong variant now
        self._pages = lru_cache(maxsize=max_pages)(self._load)

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again, as plain values and a base."""
        names = ("base", "topic_column", "top_k", "query", "pad", "passage_format", "max_pages")
        return {name: getattr(self, name) for name in names} | {"passages": asdict(self.passages), **self._bm25}

    def search(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[Passage, ...]]]:
        """Like `retrieve`, with titles, offsets and scores. `RetrievalError`: no row has the topic column, or a topic is no
        text."""
        topics = self._topics(inputs)
        pages = [self._pages(titles) for titles in topics]
        queries = [
            [self._queries(claim, titles) if passages else [] for claim in texts]
            for texts, titles, (passages, _) in zip(claims, topics, pages, strict=True)
        ]
        prepared = self._prepare(list(dict.fromkeys(query for row in queries for texts in row for query in texts)))
        results = [
            [self._ranked(passages, index, [prepared[query] for query in texts]) for texts in row]
            for row, (passages, index) in zip(queries, pages, strict=True)
        ]
        missing = [", ".join(titles) for titles, (passages, _) in zip(topics, pages, strict=True) if not passages]
        pageless = list(filter(None, missing))
        self.count(results, {"missing_pages": pageless, "missing_topics": [""] * (len(missing) - len(pageless))})
        return results

    def searched(self, inputs: Sequence[VerifierInput]) -> list[bool]:
        return [bool(self._pages(titles)[0]) for titles in self._topics(inputs)]

    def _topics(self, inputs: Sequence[VerifierInput]) -> list[tuple[str, ...]]:
        column = self.topic_column
        if inputs and not any(column in item.row for item in inputs):
            columns = sorted(map(str, inputs[0].row))
            raise RetrievalError(f"no row has the column {column!r} (columns: {columns}); name it with topic_column")
        topics = []
        for item in inputs:
            value = item.row.get(column)
            titles = [value] if isinstance(value, str) else [] if value is None else value
            if not isinstance(titles, (list, tuple)) or not all(isinstance(title, str) for title in titles):
                raise RetrievalError(f"the topic in {column!r} must be a title or a list of them, got {value!r:.100}")
            topics.append(tuple(dict.fromkeys(title for title in titles if title.strip())))
        return topics

    def _load(self, titles: tuple[str, ...]) -> tuple[tuple[Passage, ...], Any]:
        pages = {page.id: page for page in map(self.base.page, titles) if page is not None}
        passages = tuple(passage for page in pages.values() for passage in split_passages(page, self.passages))
        return passages, self._index(passages) if passages else None

    def _queries(self, claim: str, titles: Sequence[str]) -> list[str]:
        if self.query == "sentences":
            # A claim is what was read of a completion already; its sentences are only words to search for.
            return [claim[start:end] for start, end in sentence_offsets(claim)]
        return [" ".join((*titles, claim)) if self.query == "topic" else claim]

    def _ranked(self, passages: Sequence[Passage], index: Any, queries: Sequence[Any]) -> tuple[Passage, ...]:
        total = np.zeros(len(passages), dtype=np.float32)
        for query in queries:
            scores = self._scores(index, query, len(passages))
            if self.query == "sentences" and len(scores) > self.top_k:
                scores = np.where(scores < np.partition(scores, -self.top_k)[-self.top_k], 0, scores)
            total = total + scores
        places = self._places(total)
        if self.pad and len(places) < self.top_k:
            places += [place for place in range(min(2 * self.top_k, len(passages))) if place not in places]
        return tuple(replace(passages[place], score=float(total[place])) for place in places[: self.top_k])

    # What another ranking replaces.
    def _index(self, passages: Sequence[Passage]) -> Any:
        return bm25_index((terms(passage.text) for passage in passages), **self._bm25)

    def _prepare(self, queries: list[str]) -> dict[str, Any]:
        return {query: terms(query) for query in queries}

    def _scores(self, index: Any, query: Any, count: int) -> np.ndarray:
        return bm25_scores(index, query, count)

    def _places(self, scores: np.ndarray) -> list[int]:
        return best_places(scores, self.top_k)


class SentenceEncoder:
    """Texts to float32 rows by a `sentence-transformers` model, loaded on first use, or an object with its `encode`."""

    def __init__(self, model: Any, batch_size: int = 64, device: str | None = None):
        named = isinstance(model, (str, Path))
        if named and importlib.util.find_spec("sentence_transformers") is None:
            raise ImportError("embeddings need sentence-transformers: pip install hf_factuality[dense]")
        self.model, self.batch_size, self.device = model, batch_size, device
        self._encoder = None if named else model
        self._lock = threading.Lock()

    def __call__(self, texts: list[str]) -> np.ndarray:
        with self._lock:
            if self._encoder is None:
                from sentence_transformers import SentenceTransformer

                self._encoder = SentenceTransformer(str(self.model), device=self.device)
            found = self._encoder.encode(texts, batch_size=self.batch_size, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)


class DenseRetriever(TopicRetriever):
    """[`TopicRetriever`] that ranks by the inner product of sentence embeddings, as FActScore does with GTR.

    Needs `pip install hf_factuality[dense]`; the model loads on first use. Passages are encoded with their title, once
    per page; the queries of a call are encoded together. All passages of a page have a score, so `pad` is without effect.

    Args:
        base, **kwargs:
            See [`TopicRetriever`]; `query` is `"topic"` here unless given.
        model (`str` or `Any`, *optional*, defaults to `"sentence-transformers/gtr-t5-large"`):
            Name or folder of a `sentence-transformers` model, or an object with its `encode`.
        batch_size (`int`, *optional*, defaults to `64`):
            Texts per forward pass.
        device (`str`, *optional*):
            Where the model runs; `None` leaves it to `sentence-transformers`.

    Raises:
        `ImportError`: `sentence-transformers` is not installed.
    """

    def __init__(
        self,
        base: KnowledgeBase | str | Path,
        model: Any = "sentence-transformers/gtr-t5-large",
        batch_size: int = 64,
        device: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(base, **{"query": "topic", **kwargs})
        self.model, self.batch_size, self.device = model, batch_size, device
        self._encode = SentenceEncoder(model, batch_size, device)

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again; the device is left out. `ValueError`: the model came loaded."""
        if not isinstance(self.model, (str, Path)):
            raise ValueError("DenseRetriever was given a loaded model; make it from a model id to save it")
        return {**super().config(), "model": str(self.model), "batch_size": self.batch_size}

    def _index(self, passages: Sequence[Passage]) -> np.ndarray:
        return self._encode([f"{passage.title} {passage.text}" for passage in passages])

    def _prepare(self, queries: list[str]) -> dict[str, Any]:
        return dict(zip(queries, self._encode(queries), strict=True)) if queries else {}

    def _scores(self, index: Any, query: Any, count: int) -> np.ndarray:
        return index @ query

    def _places(self, scores: np.ndarray) -> list[int]:
        return np.argsort(-scores, kind="stable")[: self.top_k].tolist()


class CombinedRetriever:
    """Several retrievers as one; implements `Retriever`.

    Args:
        retrievers (`Sequence[Retriever]`):
            At least one, in order of preference.
        mode (`str`, *optional*, defaults to `"first"`):
            - `"first"`: a claim goes on to the next retriever only while nothing is found.
            - `"all"`: the passages of each, one after the other.
            - `"fusion"`: by reciprocal rank: a passage scores the sum of 1 / (60 + rank) over the retrievers that found it
              (Cormack et al. 2009); equal scores in order of the retrievers.
        top_k (`int`, *optional*):
            Passages per claim at most. A passage that several find is returned once.

    Raises:
        `ValueError`: no retriever, or an unknown mode.
        `RetrievalError`: one of them returned another number of results than it got claims.
    """

    def __init__(self, retrievers: Sequence[Retriever], mode: str = "first", top_k: int | None = None):
        if not retrievers or mode not in ("first", "all", "fusion"):
            raise ValueError(f"mode must be 'first', 'all' or 'fusion', over at least one retriever, got {mode!r}")
        self.retrievers, self.mode, self.top_k = list(retrievers), mode, top_k

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again, as plain values and retrievers."""
        return {"retrievers": self.retrievers, "mode": self.mode, "top_k": self.top_k}

    def retrieve(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[str, ...] | None]]:
        """Per input and claim, the passages, best first."""
        results: list[list[dict[str, float]]] = [[{} for _ in texts] for texts in claims]
        failed = [[True] * len(texts) for texts in claims]  # every retriever that was asked
        for retriever in self.retrievers:
            open_claims = [
                [place for place in range(len(row)) if self.mode != "first" or not row[place]] for row in results
            ]
            rows = [row for row, places in enumerate(open_claims) if places]
            asked = [[claims[row][place] for place in open_claims[row]] for row in rows]
            found = retriever.retrieve([inputs[row] for row in rows], asked) if rows else []
            if [len(row) for row in found] != [len(row) for row in asked]:
                raise RetrievalError(f"{type(retriever).__name__} must return one result per input and claim")
            for row, answers in zip(rows, found, strict=True):
                for place, passages in zip(open_claims[row], answers, strict=True):
                    scores = results[row][place]
                    failed[row][place] &= passages is None
                    for rank, passage in enumerate(dict.fromkeys(passages or ()), start=1):
                        scores[passage] = scores.get(passage, 0.0) + (
                            1 / (60 + rank) if self.mode == "fusion" else 0.0
                        )
        # Sorting is stable: without scores, or with equal ones, the order is that of finding.
        return [
            [
                None if no else tuple(sorted(s, key=s.__getitem__, reverse=True)[: self.top_k])
                for s, no in zip(*both, strict=True)
            ]
            for both in zip(results, failed, strict=True)
        ]


def query_texts(inputs: Sequence[VerifierInput], claims: Claims, columns: Sequence[str]) -> list[list[str]]:
    """Per input and claim, the query: the text of the columns, but for those that are missing or blank, and the claim."""
    queries = []
    for item, texts in zip(inputs, claims, strict=True):
        values = [item.row.get(column) for column in columns]
        shown = [value.strip() for value in values if isinstance(value, str) and value.strip()]
        queries.append([" ".join((*shown, claim)) for claim in texts])
    return queries
