"""Judging of answers: once per answer by a verifier, or by votes of a model that is shown the reference answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_factuality._lazy import object_name
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.journal import KnownAnswers
from hf_factuality.generation.cache import content_key
from hf_factuality.methods.abstention.reward import GRADES
from hf_factuality.metrics._common import describe_component, who_judges
from hf_factuality.reading.scopes import opens_think
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.registry import load_verifier, served_arguments
from hf_factuality.verifiers.service import CHUNK, JudgedRow, VerificationRequest


logger = logging.getLogger(__name__)

# What each word of a judge says of an answer; of `halluqa` the metric reads it.
_SAID = {"yes": "refused", "no": "answered", "是": "refused", "否": "answered"}
JUDGE_TOKENS = 16
"""Room for a vote by default."""
JUDGE_PROMPTS = {"halluqa": ("judge_answer_zh.txt", _SAID), "truthfulqa-generation": ("judge_answer_en.txt", _SAID),
                 "abstentionbench": ("judge_abstention.txt", _SAID)}  # fmt: skip


def opens_reasoning(item: BenchmarkItem) -> bool:
    """Whether the prompt of an item ends in `<think>`."""
    last = item.messages[-1] if item.messages else {}
    return last.get("role") == "assistant" and opens_think(last["content"])


def answer_row(item: BenchmarkItem, sample: int, text: str, scope: str = "answer") -> VerificationRequest:
    """An answer that is to be judged; its key is the item and the number of the sample."""
    whole = VerifierInput(text, item.question, tuple(item.evidence), {"topic": item.topic})
    return VerificationRequest(whole, scope, opens_reasoning(item), key=(item, sample))


def found_in(sample: Mapping[str, Any], name: str = "verification") -> Verification | None:
    """What a verifier found in a completion, of which this is known; `None` if it was not verified."""
    return Verification.from_dict(sample[name]) if name in sample else None


def gold_answers(item: BenchmarkItem) -> list[str]:
    """The gold answers of an item; none, if it has none."""
    return [item.answer] if isinstance(item.answer, str) else list(item.answer or ())


def default_retriever(items: Sequence[BenchmarkItem]) -> str:
    """How evidence is found for items, if nobody says it."""
    return "topic" if items and all(item.topic for item in items) else "corpus"


class AnswerVerifier:
    """A verifier, or one by its name, with evidence of the items, or of a knowledge base instead.

    By default `retriever` is `"topic"` if every item has a topic, else `"corpus"` (all pages, by `KNOWLEDGE.bm25`). Without
    `items`, which then come later, it is `"corpus"`, and nothing is known of their evidence.
    """

    def __init__(
        self,
        given: str | Verifier,
        items: Sequence[BenchmarkItem],
        base_url: str | None = None,
        *,
        knowledge: Path | None = None,
        retriever: str | None = None,
        top_k: int = 5,
        tokens: int | None = None,
    ):
        name = given if isinstance(given, str) else object_name(given)
        verifier = load_verifier(given, **served_arguments(base_url, tokens))
        self.description: dict[str, Any] = {"name": name}
        if knowledge is not None:
            from hf_factuality.retrieval.corpus import with_knowledge

            retriever = retriever or default_retriever(items)
            verifier = with_knowledge(verifier, name, knowledge, retriever == "topic", top_k)
            settings = {"fingerprint": verifier.retriever.base.fingerprint, "retriever": retriever, "top_k": top_k}
            self.description["knowledge"] = {"file": knowledge.name, **settings}
        self.guarded = GuardedVerifier(verifier, timeout=None)
        self.judge = verifier.judge if isinstance(verifier, VerifierPipeline) else None
        self.requires_evidence = self.guarded.requires_evidence
        self.check(items)
        self.description |= dict(zip(("extractor", "judge"), who_judges(verifier), strict=True))

    def check(self, items: Sequence[BenchmarkItem]) -> None:
        """`DataError` if there are items, and none has the evidence that the verifier needs."""
        if items and self.requires_evidence and not any(item.evidence for item in items):
            fix = "give `knowledge` FILE (docs/knowledge.md), or a `dataset` with evidence"
            raise DataError(f"`verifier` {self.description['name']} needs evidence and no item has any; {fix}")

    def key(self, row: VerificationRequest) -> str:
        """Names everything that a verification depends on."""
        item, _ = row.key
        shown = {"completion": row.shown.completion, "question": row.shown.question}
        evidence = {"evidence": list(row.shown.evidence), "topic": item.topic}
        return content_key({"verifier": self.description, **shown, **evidence})


class JournalVerdicts:
    """Verifications of a journal by the same verifier and evidence; `names`: of a verification, and of its key."""

    def __init__(self, journal: KnownAnswers, verifier: AnswerVerifier, *names: str):
        self._journal, self._key = journal, verifier.key
        self._found, self._by = names or ("verification", "verified")

    def _sample(self, row: VerificationRequest) -> dict[str, Any]:
        item, number = row.key
        return self._journal.sample(item.id, number)

    def get(self, row: VerificationRequest) -> Verification | None:
        """What the journal holds; a failure may have been the server's, and is no verdict, nor is a cut answer."""
        found = self._known(row)
        return None if found is None or found.unanswered else found

    def _known(self, row: VerificationRequest) -> Verification | None:
        sample = self._sample(row)
        found = found_in(sample, self._found)
        known = found is not None and found.error is None and sample.get(self._by) == self._key(row)
        return found if known else None

    def add(self, judged: Sequence[JudgedRow]) -> None:
        for it in judged:
            if it.found.error is not None and self._known(it.row) is not None:
                continue  # a failure replaces no labels
            item, number = it.row.key
            line = {"id": item.id, "sample": number, self._found: it.verification.to_dict()}
            self._journal.add([{**line, self._by: self._key(it.row)}])

    def forget(self, rows: Sequence[VerificationRequest]) -> None:
        """Drop what is of another verifier, or other evidence."""
        for row in rows:
            sample = self._sample(row)
            if sample.get(self._by) not in (None, self._key(row)):
                del sample[self._found], sample[self._by]


class AnswerJudge:
    """Votes of a served model that sees the reference answers; the prompts, one for each kind of benchmark, are ours.

    `prompt` is a .txt file with `{{question}}`, `{{answer}}`, `{{correct}}` and perhaps `{{incorrect}}`. It asks, as ours of
    the benchmark, for yes or no (是 or 否), or for CORRECT, INCORRECT or NOT_ATTEMPTED. Anything else is no vote.
    """

    limit_flag = "`judge_tokens`"

    def __init__(
        self, benchmark: str, model: str, base_url: str, *, prompt: Path | None = None, votes=1, tokens=JUDGE_TOKENS
    ):
        from hf_factuality.generation.client import ChatClient
        from hf_factuality.verifiers.prompts import load_prompt

        if votes < 1 or votes % 2 == 0:
            raise ValueError(f"`judge_votes` must be an odd number, so that there is a majority, got {votes}")
        name, self._said = JUDGE_PROMPTS.get(benchmark, ("grade_answer", GRADES))
        path = prompt or (Path(__file__).with_name(name) if name.endswith(".txt") else name)
        fields = ("question", "answer", "correct", "incorrect")
        self._prompt = load_prompt(path, fields, fields[:3])
        self._client = ChatClient(base_url, model)
        self.close = self._client.close
        self._votes, self.tokens = votes, tokens
        self.description = {
            **(describe_component(self._client) or {}),
            "name": "AnswerJudge",
            "prompt": self._prompt.name,
            "prompt_key": content_key({"prompt": self._prompt.text}),
            "votes": votes,
        } | ({} if tokens == JUDGE_TOKENS else {"tokens": tokens})  # so that what the default judged stays judged

    def key(self, row: VerificationRequest) -> str:
        """Names everything that the votes depend on."""
        return content_key({"judge": self.description, "messages": self._text(row)})

    def _text(self, row: VerificationRequest) -> str:
        item, _ = row.key
        correct = item.reference.get("correct_answers") or gold_answers(item)
        return self._prompt.fill(
            {
                "question": item.question,
                "answer": row.shown.completion,
                "correct": "\n".join(f"- {text}" for text in correct) or None,
                "incorrect": "\n".join(f"- {text}" for text in item.reference.get("incorrect_answers") or ()) or None,
            }
        )

    def outcome(self, votes: Sequence[str | None]) -> str | None:
        """What more than half of the votes say became of an answer; `None` if they do not agree, or could not be read."""
        said = [self._said.get(vote) for vote in votes]
        return next((it for it in said if 2 * said.count(it) > len(said)), None)

    def vote(self, rows: Sequence[VerificationRequest]) -> Iterator[tuple[VerificationRequest, list[str | None]]]:
        """Each row with the votes; `None` for one that could not be read or had no answer."""
        from hf_factuality.generation.client import ChatRequest
        from hf_factuality.verifiers.judges.llm import raise_limit, read_choice

        words, several = tuple(self._said), self._votes > 1
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            requests = [
                ChatRequest(
                    (("user", self._text(row)),),
                    temperature=float(several),
                    max_new_tokens=self.tokens,
                    seed=vote if several else None,
                )
                for row in chunk
                for vote in range(self._votes)
            ]
            answers = self._client.chat(requests)
            if cut := sum(answer.was_cut for answer in answers):
                logger.warning("%s", raise_limit(cut, self, ("tokens",)))
            votes = (read_choice(found, words, nucleus=float(several))[0] for found in answers)
            for row in chunk:
                yield row, list(islice(votes, self._votes))
