"""TruthfulQA: multiple choice (MC1 and MC2) and open answers.

`truthfulqa_primer.txt` holds the six questions and answers that the authors put before every question, as the evaluation
harnesses do. No file of the dataset was at hand when this was written: columns are those of the two configurations on the
Hub (`truthfulqa/truthful_qa`), of the authors' CSV file and of their `mc_task.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks import prompts
from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.rows import Reader, Row, Unusable


_PRIMER = Path(__file__).with_name("truthfulqa_primer.txt")
_NO_COMMENT = "I have no comment."


@cache
def primer() -> str:
    """The six questions and answers, without a line end behind the last."""
    return _PRIMER.read_text(encoding="utf-8").strip()


def published_prompt(question: str) -> tuple[dict[str, str], ...]:
    """The published prompt, to the character, as one message of the user.

    A model without chat template is to read the message as it is. The answer follows the colon after a space.
    """
    return prompts.chat(f"{primer()}\n\nQ: {question}\nA:")


def primer_turns(question: str) -> tuple[dict[str, str], ...]:
    """The primer's questions and answers as turns, then the question. Not the published prompt, but its content."""
    messages: list[dict[str, str]] = []
    for pair in primer().split("\n\n"):
        asked, answered = pair.split("\n")
        messages.append({"role": "user", "content": asked.removeprefix("Q: ")})
        messages.append({"role": "assistant", "content": answered.removeprefix("A: ")})
    return (*messages, {"role": "user", "content": question})


def _targets(row: Row, name: str) -> tuple[list[str], list[bool]]:
    """Choices and labels: `{"choices": [...], "labels": [...]}` (Hub) or `{choice: label}` (authors' file)."""
    value: Any = row.get(name)
    if not isinstance(value, Mapping):
        raise Unusable(f"no {name}")
    if set(value) == {"choices", "labels"}:
        choices, labels = value["choices"], value["labels"]
    else:
        choices, labels = list(value), list(value.values())
    if not isinstance(choices, list) or not isinstance(labels, list) or not len(choices) == len(labels) >= 2:
        raise Unusable(f"{name} needs two or more choices, and a label for each")
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise Unusable(f"a choice of {name} is no text")
    if not all(isinstance(label, int) and label in (0, 1) for label in labels):
        raise Unusable(f"a label of {name} is neither 0 nor 1")
    return choices, [bool(label) for label in labels]


def build_choice(row: Row, style: str) -> BenchmarkItem:
    """All choices of MC1 and MC2, each once.

    `reference` holds `mc1_targets` and `mc2_targets` (`choices` and `labels`) for the metric, and in `mc1_choices` and
    `mc2_choices` the positions of their choices in `BenchmarkItem.choices`: the likelihoods for the metric are
    `[log_likelihoods[i] for i in reference["mc1_choices"]]`, and likewise for MC2.
    """
    question = row.text("question")
    places: dict[str, int] = {}
    correct: list[bool] = []
    reference: dict[str, Any] = {}
    # MC2 first: its choices are nearly always all that there are.
    for kind in ("mc2", "mc1"):
        choices, labels = _targets(row, f"{kind}_targets")
        for choice, label in zip(choices, labels, strict=True):
            if choice not in places:
                places[choice] = len(places)
                correct.append(label)
        reference[f"{kind}_targets"] = {"choices": choices, "labels": [int(label) for label in labels]}
        reference[f"{kind}_choices"] = [places[choice] for choice in choices]
    space = " " if style == "published" else ""
    return BenchmarkItem(
        row.id,
        published_prompt(question) if style == "published" else primer_turns(question),
        question,
        choices=tuple(space + choice for choice in places),
        correct=tuple(correct),
        reference=reference,
    )


def build_open(row: Row, style: str) -> BenchmarkItem:
    """An open question with its reference answers.

    "I have no comment." counts as correct, as in the published scoring. The correct answers of the dataset, without it,
    are the evidence that an answer can be checked against.
    """
    question = row.text("question")
    given = row.texts("correct_answers", separator=";")
    best = row.optional_text("best_answer") or given[0]
    evidence = tuple(dict.fromkeys([best, *given]))
    correct = list(dict.fromkeys([*evidence, _NO_COMMENT]))
    incorrect = row.texts("incorrect_answers", separator=";")
    if style == "published":
        messages = published_prompt(question)
    else:
        messages = prompts.fspo(question) if style == "fspo" else prompts.chat(question)
    return BenchmarkItem(
        row.id,
        messages,
        question,
        answer=correct,
        evidence=evidence,
        domain=row.optional_text("category"),
        reference={
            "question": question,
            "evidence": list(evidence),
            "best_answer": best,
            "correct_answers": correct,
            "incorrect_answers": incorrect,
        },
    )


READERS = (
    Reader(
        Benchmark(
            name="truthfulqa",
            kind="log_likelihood",
            metrics=("truthfulqa",),
            repo_id="truthfulqa/truthful_qa",
            config="multiple_choice",
            split="validation",
            styles=("published", "chat"),
            max_new_tokens=1,  # not used
            description="817 questions that invite a common mistake: likelihoods of given answers (MC1, MC2)",
            source="arXiv 2109.07958",
        ),
        build_choice,
        {"question": ("question",), "mc1_targets": ("mc1_targets",), "mc2_targets": ("mc2_targets",)},
    ),
    Reader(
        Benchmark(
            name="truthfulqa-generation",
            # The judges of the paper are gone. `halluqa` with a verifier gives the share of answers whose claims all
            # follow from the reference answers: the same question, but no published figure.
            metrics=("halluqa",),
            repo_id="truthfulqa/truthful_qa",
            config="generation",
            split="validation",
            styles=("chat", "published", "fspo"),
            temperature=1.0,
            top_p=0.9,
            description="the same questions with open answers, checked against the reference answers",
            source="arXiv 2109.07958; sampled as in 2505.24630",
        ),
        build_open,
        {
            "question": ("question",),
            "correct_answers": ("correct_answers",),
            "incorrect_answers": ("incorrect_answers",),
        },
        optional={"best_answer": ("best_answer",), "category": ("category",)},
    ),
)
