"""Judging of answers: once per answer by a verifier, or by votes of a model that is shown the reference answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.chat.cache import content_key
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.journal import Journal
from hf_factuality.metrics._common import describe, who_judges
from hf_factuality.spans import Verification, opens_think
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.service import CHUNK, JudgedRow, Row


JUDGE_PROMPTS = {"halluqa": ("judge_answer_zh.txt", ("是", "否")), "truthfulqa-generation": ("judge_answer_en.txt", ("yes", "no"))}  # fmt: skip


def opens_reasoning(item: BenchmarkItem) -> bool:
    """Whether the prompt of an item ends in `<think>`."""
    last = item.messages[-1] if item.messages else {}
    return last.get("role") == "assistant" and opens_think(last["content"])


def answer_row(item: BenchmarkItem, sample: int, text: str, scope: str = "answer") -> Row:
    """An answer that is to be judged; its key is the item and the number of the sample."""
    whole = VerifierInput(text, item.question, tuple(item.evidence), {"topic": item.topic})
    return Row(whole, scope, opens_reasoning(item), key=(item, sample))


def journal_sample(journal: Journal, name: str, sample: int = 0) -> dict[str, Any] | None:
    """What a journal knows of a completion of an item; `None` if it is to come."""
    samples = journal.answers.get(name, {}).get("completions", [])
    return samples[sample] if sample < len(samples) else None


class AnswerVerifier:
    """A verifier by its name, with evidence of the rows or of a knowledge base.

    Args:
        name (`str`):
            As `load_verifier` takes it.
        knowledge (`Path`, *optional*):
            A knowledge base, whose passages replace the evidence of the rows.
        retriever (`str`, *optional*):
            `"topic"`: passages of the page that the item's topic names. `"corpus"`: of all pages, by the index in the folder
            `KNOWLEDGE.bm25`. By default, the first if every item has a topic.
        top_k (`int`, *optional*, defaults to `5`):
            Passages per claim.
        items (`Sequence[BenchmarkItem]`):
            What will be judged.
        **kwargs:
            Arguments of the verifier.

    Raises:
        `DataError`: there is no evidence, or the verifier cannot use a knowledge base.
        `ValueError`: see `load_verifier`.
        `RetrievalError`: base or index cannot be read.
    """

    def __init__(
        self,
        name: str,
        items: Sequence[BenchmarkItem],
        *,
        knowledge: Path | None = None,
        retriever: str | None = None,
        top_k: int = 5,
        **kwargs: Any,
    ):
        try:
            verifier = load_verifier(name, **kwargs)
        except TypeError as error:
            if not kwargs:
                raise
            raise ValueError(f"--verifier {name} does not take --verifier_base_url: {error}") from error
        self.description: dict[str, Any] = {"name": name}
        if knowledge is not None:
            if not isinstance(verifier, VerifierPipeline) or type(verifier).verify is not VerifierPipeline.verify:
                raise DataError(f"--verifier {name} finds its evidence itself; leave --knowledge out")
            retriever = retriever or ("topic" if all(item.topic for item in items) else "corpus")
            found, self.description["knowledge"] = _retriever(knowledge, retriever, top_k)
            verifier = VerifierPipeline(verifier.extractor, verifier.judge, found)
        self.guarded = GuardedVerifier(verifier, timeout=None)
        self.requires_evidence = self.guarded.requires_evidence
        if self.requires_evidence and not any(item.evidence for item in items):
            raise DataError(
                f"--verifier {name} needs evidence and no item has any; give --knowledge FILE (docs/knowledge.md), or a "
                "--dataset with evidence"
            )
        self.description |= dict(zip(("extractor", "judge"), who_judges(verifier), strict=True))

    def key(self, row: Row) -> str:
        """Names everything that a verification depends on."""
        item, _ = row.key
        return content_key(
            {
                "verifier": self.description,
                "completion": row.shown.completion,
                "question": row.shown.question,
                "evidence": list(row.shown.evidence),
                "topic": item.topic,
            }
        )


class JournalVerdicts:
    """The verifications of a journal, each found again by the same verifier with the same evidence.

    Args:
        journal ([`Journal`]):
            Where they are.
        verifier ([`AnswerVerifier`]):
            Who judges.
    """

    def __init__(self, journal: Journal, verifier: AnswerVerifier):
        self._journal, self._verifier = journal, verifier

    def get(self, row: Row) -> Verification | None:
        """What the journal holds; a failure may have been the server's, and is no verdict."""
        item, number = row.key
        sample = journal_sample(self._journal, item.id, number) or {}
        found = self._journal.verification(item.id, number)
        known = found is not None and found.error is None and sample.get("verified") == self._verifier.key(row)
        return found if known else None

    def add(self, judged: Sequence[JudgedRow]) -> None:
        """Add lines to the journal."""
        self._journal.add(
            {
                "id": it.row.key[0].id,
                "sample": it.row.key[1],
                "verification": it.verification.to_dict(),
                "verified": self._verifier.key(it.row),
            }
            for it in judged
        )

    def forget(self, rows: Sequence[Row]) -> None:
        """Drop what is of another verifier, or other evidence."""
        for row in rows:
            item, number = row.key
            sample = journal_sample(self._journal, item.id, number)
            if sample.get("verified") not in (None, self._verifier.key(row)):
                del sample["verification"], sample["verified"]


def _retriever(knowledge: Path, kind: str, top_k: int) -> tuple[Any, dict[str, Any]]:
    from hf_factuality.retrieval.corpus import CorpusRetriever
    from hf_factuality.retrieval.knowledge import KnowledgeBase
    from hf_factuality.retrieval.retrievers import TopicRetriever

    base = KnowledgeBase(knowledge)
    if kind == "topic":
        found: Any = TopicRetriever(base, top_k=top_k)
    else:
        folder = knowledge.with_name(f"{knowledge.name}.bm25")
        if not folder.is_dir():
            raise DataError(
                f"--knowledge {knowledge.name} has no index of its passages, which items without a topic need; make it "
                f"with: hf-factuality index {knowledge.name} --bm25"
            )
        found = CorpusRetriever(base, folder, top_k=top_k)
    return found, {"file": knowledge.name, "fingerprint": base.fingerprint, "retriever": kind, "top_k": top_k}


class AnswerJudge:
    """Votes of a served model on "is this answer hallucinated?", with the reference answers in view.

    The prompts are our own, not the published ones. An answer that is not exactly one of the two words is no vote.

    Args:
        benchmark (`str`):
            Chooses the prompt if none is given.
        model (`str`), base_url (`str`):
            The judge.
        prompt (`Path`, *optional*):
            A .txt file with `{{question}}`, `{{answer}}`, `{{correct}}` and, if it likes, `{{incorrect}}`, which asks for
            yes or no (or 是 or 否).
        votes (`int`, *optional*, defaults to `1`):
            How often each answer is judged; the majority counts.
        **kwargs:
            Arguments of [`~hf_factuality.chat.client.ChatClient`].

    Raises:
        `ValueError`: the prompt lacks a value, or an argument is out of range.
        `OSError`: the prompt cannot be read.
    """

    def __init__(
        self, benchmark: str, model: str, base_url: str, prompt: Path | None = None, votes: int = 1, **kwargs: Any
    ):
        from hf_factuality.chat.client import ChatClient
        from hf_factuality.verifiers.prompts import load_prompt

        if votes < 1 or votes % 2 == 0:
            raise ValueError(f"--judge_votes must be an odd number, so that there is a majority, got {votes}")
        name, self._words = JUDGE_PROMPTS.get(benchmark, JUDGE_PROMPTS["truthfulqa-generation"])
        path = prompt or Path(__file__).with_name(name)
        fields = ("question", "answer", "correct", "incorrect")
        self._prompt = load_prompt(path, fields, fields[:3])
        self._client = ChatClient(base_url, model, **kwargs)
        self._votes = votes
        self.description = {
            **(describe(self._client) or {}),
            "name": "AnswerJudge",
            "prompt": path.name,
            "prompt_key": content_key({"prompt": self._prompt.text}),
            "votes": votes,
        }

    def key(self, row: Row) -> str:
        """Names everything that the votes depend on."""
        return content_key({"judge": self.description, "messages": self._text(row)})

    def _text(self, row: Row) -> str:
        item, _ = row.key
        correct = item.reference.get("correct_answers") or list(item.evidence)
        return self._prompt.fill(
            {
                "question": item.question,
                "answer": row.shown.completion,
                "correct": "\n".join(f"- {text}" for text in correct),
                "incorrect": "\n".join(f"- {text}" for text in item.reference.get("incorrect_answers") or ()) or None,
            }
        )

    def vote(self, rows: Sequence[Row]) -> Iterator[list[tuple[Row, list[str | None]]]]:
        """Chunks of rows with the votes; `None` for one that could not be read or had no answer.

        Raises:
            [`~hf_factuality.chat.client.ServerError`]: the server is gone.
        """
        from hf_factuality.chat.client import ChatRequest
        from hf_factuality.verifiers.judges.llm import read_choice

        words = (*self._words, "yes", "no", "是", "否")
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            requests = [
                ChatRequest(
                    (("user", self._text(row)),),
                    temperature=0.0 if self._votes == 1 else 1.0,
                    max_tokens=16,
                    seed=None if self._votes == 1 else vote,
                )
                for row in chunk
                for vote in range(self._votes)
            ]
            said = self._client.chat(requests)
            votes = [read_choice(found, words, nucleus=float(self._votes > 1))[0] for found in said]
            yield [(row, votes[place * self._votes : (place + 1) * self._votes]) for place, row in enumerate(chunk)]

    def close(self) -> None:
        """Close connections."""
        self._client.close()
