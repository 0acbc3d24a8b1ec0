"""A search over passages as a tool of TRL: with numbered results, and limits on calls and length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_factuality.io.tool_results import NOTHING_FOUND
from hf_factuality.verifiers.base import Retriever, VerifierInput, require_method


class SearchEnvironment:
    """An environment of TRL whose one tool, `search`, looks passages up for the policy.

    Give the trainer what makes one: `environment_factory=functools.partial(SearchEnvironment, retriever)`. Each passage has a
    number, by which an answer cites it, and keeps it: numbers count on over the searches of a rollout, and a passage that is found
    again is shown under its first number.

    Args:
        retriever ([`~hf_factuality.verifiers.base.Retriever`]):
            Where passages come from, such as a [`~hf_factuality.retrieval.CorpusRetriever`] (BM25 over a knowledge base), a
            [`~hf_factuality.retrieval.DenseRetriever`] (embeddings) or an object of your own that asks a server. It gets
            the query as the claim, and the columns of the row.
        max_calls (`int`, *optional*, defaults to `4`):
            Searches of a rollout. A later one fails, as does one for nothing, and the policy is told why.
        max_passages (`int`, *optional*, defaults to `5`):
            Passages of a search, at most.
        max_characters (`int`, *optional*, defaults to `600`):
            Characters of a passage that are shown, at most.
        max_query (`int`, *optional*, defaults to `400`):
            Characters of a query that are searched for, at most.

    Attributes:
        calls (`int`): Searches of the rollout that were carried out.
        passages (`list[str]`): What they found; passage n is the n-th.

    Raises:
        `TypeError`: the retriever has no method `retrieve`. `ValueError`: a limit is below 1.
    """

    def __init__(
        self,
        retriever: Retriever,
        max_calls: int = 4,
        max_passages: int = 5,
        max_characters: int = 600,
        max_query: int = 400,
    ):
        require_method(retriever, "retrieve", "a retriever")
        limits = {"max_calls": max_calls, "max_passages": max_passages, "max_characters": max_characters}
        for name, value in {**limits, "max_query": max_query}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self._retriever, self._max_query = retriever, max_query
        self._max_calls, self._max_passages, self._max_characters = max_calls, max_passages, max_characters
        self.reset()

    def reset(self, **row: Any) -> None:
        """Begin a rollout. The trainer calls it with the columns of the row."""
        self._row: Mapping[str, Any] = row
        self.calls = 0
        self.passages: list[str] = []

    def search(self, query: str) -> str:
        """
        Searches a collection of passages. Cite what you use of them by number, as in [1].

        Args:
            query: What to look for.

        Returns:
            Passages with their numbers.
        """
        query = " ".join(str(query).split())[: self._max_query]
        if not query:
            raise ValueError("the query is empty")
        if self.calls >= self._max_calls:
            raise ValueError(f"all {self._max_calls} searches were used")
        self.calls += 1
        found = self._retriever.retrieve([VerifierInput("", row=self._row)], [[query]])[0][0] or ()
        lines: dict[str, None] = {}
        for passage in found[: self._max_passages]:
            # On one line: a number at the start of a line within a passage would be read as another one.
            text = " ".join(passage.split())[: self._max_characters].strip()
            if not text:
                continue
            if text not in self.passages:
                self.passages.append(text)
            lines[f"[{self.passages.index(text) + 1}] {text}"] = None
        return "\n".join(lines) or NOTHING_FOUND
