"""HaluEval's questions: is this answer hallucinated, and which of two answers is not?

The knowledge that the answers were made from is not shown to the model; it is the item's evidence. Which candidate a row
shows (or shows first) is drawn by the row's number in the source, with the generator that the metric `halueval` uses: it
does not change with `limit` or with rows that are dropped.
"""

from __future__ import annotations

from hf_factuality.data.benchmarks import prompts
from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.rows import Reader, Row, Unusable


_COLUMNS = {
    "question": ("question",),
    "right_answer": ("right_answer",),
    "hallucinated_answer": ("hallucinated_answer",),
}
_OPTIONAL = {"knowledge": ("knowledge",)}

# Our own words, shorter than the published few-shot instruction: results do not compare with those of the paper.
_RECOGNISE = (
    "You are shown a question and an answer to it. Decide whether the answer is hallucinated: whether it contradicts what "
    "is known about the world, or does not answer the question. Reply with one word: Yes if it is hallucinated, No if it "
    "is not."
)
_CHOOSE = (
    "You are shown a question and two candidate answers, one of which is hallucinated. Reply with the correct candidate "
    "answer, word for word, without its label and with nothing else."
)


def _candidates(row: Row) -> tuple[str, str, str]:
    question, right, hallucinated = (row.text(name) for name in ("question", "right_answer", "hallucinated_answer"))
    if right.strip() == hallucinated.strip():
        raise Unusable("both answers are the same")
    return question, right, hallucinated


def _evidence(row: Row) -> tuple[str, ...]:
    knowledge = row.optional_text("knowledge")
    return () if knowledge is None else (knowledge,)


def build_recognition(row: Row, style: str) -> BenchmarkItem:
    """ "Is this answer hallucinated?" (Yes or No), for the candidate that was drawn."""
    question, right, hallucinated = _candidates(row)
    shown = prompts.candidates(question, hallucinated if row.drawn else right)
    return BenchmarkItem(
        row.id,
        prompts.fspo(shown, "HaluEval") if style == "fspo" else prompts.chat(shown, system=_RECOGNISE),
        question,
        answer="Yes" if row.drawn else "No",
        evidence=_evidence(row),
        reference={"hallucinated": bool(row.drawn)},
    )


def build_pairwise(row: Row, style: str) -> BenchmarkItem:
    """ "Which of the two is correct?", in the order that was drawn (hallucinated first if `drawn`)."""
    question, right, hallucinated = _candidates(row)
    order = (hallucinated, right) if row.drawn else (right, hallucinated)
    shown = prompts.candidates(question, *order)
    return BenchmarkItem(
        row.id,
        prompts.fspo(shown, "HaluEval") if style == "fspo" else prompts.chat(shown, system=_CHOOSE),
        question,
        answer=right,
        evidence=_evidence(row),
        reference={"hallucinated_answer": hallucinated, "hallucinated_first": bool(row.drawn)},
    )


READERS = (
    Reader(
        Benchmark(
            name="halueval-qa",
            metrics=("halueval",),
            repo_id="pminervini/HaluEval",
            config="qa",
            split="data",
            data_source="HaluEval",
            description="is this answer hallucinated, Yes or No, without the knowledge; the prompt is our own",
            source="arXiv 2305.11747",
        ),
        build_recognition,
        _COLUMNS,
        _OPTIONAL,
        draws=True,
    ),
    Reader(
        Benchmark(
            name="halueval-qa-pairwise",
            metrics=("accuracy",),
            repo_id="pminervini/HaluEval",
            config="qa",
            split="data",
            data_source="HaluEval",
            temperature=1.0,
            top_p=0.9,
            description="which of two answers is correct, as FSPO evaluates HaluEval",
            source="arXiv 2505.24630 (the choice), 2305.11747 (the questions)",
        ),
        build_pairwise,
        _COLUMNS,
        _OPTIONAL,
        draws=True,
    ),
)
