"""Judging of answers: once per answer by a verifier, or by votes of a model that is shown the reference answers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.chat.cache import content_key
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.rewards import complete_text
from hf_factuality.spans import Verification, scope_text
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.registry import load_verifier


CHUNK = 64
"""Answers that are judged, and written, at a time."""
GIVE_UP_AFTER = 128
"""Answers in a row that could not be judged, after which the verifier is taken to be down."""
RETRIEVERS = ("topic", "corpus")
JUDGE_PROMPTS = {"halluqa": ("judge_answer_zh.txt", ("是", "否")), "truthfulqa-generation": ("judge_answer_en.txt", ("yes", "no"))}  # fmt: skip


def opens_reasoning(item: BenchmarkItem) -> bool:
    """Whether the prompt of an item ends in `<think>`."""
    return bool(complete_text("", list(item.messages)))


@dataclass(frozen=True)
class Judged:
    """An answer that is to be judged.

    Args:
        id (`str`), sample (`int`):
            Of the completion.
        item ([`BenchmarkItem`]):
            The item.
        text (`str`):
            The completion.
        scope (`str`, *optional*, defaults to `"answer"`):
            What of it is judged, see [`~hf_factuality.spans.scope_text`].
    """

    id: str
    sample: int
    item: BenchmarkItem
    text: str
    scope: str = "answer"

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Characters in the scope."""
        return scope_text(self.text, self.scope, opens_reasoning(self.item))[1]

    def input(self) -> VerifierInput:
        """What a verifier gets."""
        text, _ = scope_text(self.text, self.scope, opens_reasoning(self.item))
        return VerifierInput(text, self.item.question, tuple(self.item.evidence), {"topic": self.item.topic})


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
        from hf_factuality.metrics._common import describe

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
        self.extractor = getattr(verifier, "extractor", None)
        self.judge = getattr(verifier, "judge", None) or verifier
        self.description |= {"extractor": describe(self.extractor), "judge": describe(self.judge)}

    def key(self, answer: Judged) -> str:
        """Names everything that a verification depends on."""
        found = answer.input()
        return content_key(
            {
                "verifier": self.description,
                "completion": found.completion,
                "question": found.question,
                "evidence": list(found.evidence),
                "topic": answer.item.topic,
            }
        )

    def verify(self, answers: Sequence[Judged]) -> Iterator[list[tuple[Judged, Verification]]]:
        """Chunks of answers with what was found; spans are characters of the completion.

        Answers that lack evidence are left out.

        Raises:
            `JudgingError`: nothing could be judged any more.
        """
        failed = 0
        sent = [answer for answer in answers if answer.item.evidence or not self.requires_evidence]
        for start in range(0, len(sent), CHUNK):
            chunk = sent[start : start + CHUNK]
            found = self.guarded.verify([answer.input() for answer in chunk])
            pairs = [(answer, it.spread(answer.ranges)) for answer, it in zip(chunk, found, strict=True)]
            yield pairs
            for _, it in pairs:
                failed = 0 if it.error is None else failed + 1
            if failed >= GIVE_UP_AFTER:
                raise JudgingError(f"the verifier failed on {failed} answers in a row; the last: {found[-1].error}")


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


class StoredVerifier:
    """Gives a metric the verifications that were made before, in the metric's own way of asking.

    Args:
        verifier ([`AnswerVerifier`]):
            Who made them.
        answers (`Sequence[tuple[Judged, Verification]]`):
            In the order of the predictions.
    """

    def __init__(self, verifier: AnswerVerifier, answers: Sequence[tuple[Judged, Verification]]):
        self.requires_evidence = verifier.requires_evidence
        self.extractor, self.judge = verifier.extractor, verifier.judge
        self._found: dict[Any, deque[Verification]] = defaultdict(deque)
        for answer, found in answers:
            item = answer.input()
            key = (item.completion, item.question, item.evidence)
            self._found[key].append(found.gather(answer.ranges))

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One per input; equal inputs in the order that they were given in."""
        results = []
        for item in inputs:
            waiting = self._found.get((item.completion, item.question, item.evidence))
            results.append(waiting.popleft() if waiting else Verification(error="not judged"))
        return results


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
        from hf_factuality.metrics._common import describe
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

    def key(self, answer: Judged) -> str:
        """Names everything that the votes depend on."""
        return content_key({"judge": self.description, "messages": self._text(answer)})

    def _text(self, answer: Judged) -> str:
        reference = answer.item.reference
        correct = reference.get("correct_answers") or list(answer.item.evidence)
        return self._prompt.fill(
            {
                "question": answer.item.question,
                "answer": answer.input().completion,
                "correct": "\n".join(f"- {text}" for text in correct),
                "incorrect": "\n".join(f"- {text}" for text in reference.get("incorrect_answers") or ()) or None,
            }
        )

    def vote(self, answers: Sequence[Judged]) -> Iterator[list[tuple[Judged, list[str | None]]]]:
        """Chunks of answers with the votes; `None` for one that could not be read or had no answer.

        Raises:
            [`~hf_factuality.chat.client.ServerError`]: the server is gone.
        """
        from hf_factuality.chat.client import ChatRequest
        from hf_factuality.verifiers.judges.llm import read_choice

        words = (*self._words, "yes", "no", "是", "否")
        for start in range(0, len(answers), CHUNK):
            chunk = answers[start : start + CHUNK]
            requests = [
                ChatRequest(
                    (("user", self._text(answer)),),
                    temperature=0.0 if self._votes == 1 else 1.0,
                    max_tokens=16,
                    seed=None if self._votes == 1 else vote,
                )
                for answer in chunk
                for vote in range(self._votes)
            ]
            said = self._client.chat(requests)
            votes = [read_choice(found, words, nucleus=float(self._votes > 1))[0] for found in said]
            yield [
                (answer, votes[place * self._votes : (place + 1) * self._votes]) for place, answer in enumerate(chunk)
            ]

    def close(self) -> None:
        """Close connections."""
        self._client.close()
