"""HalluQA: adversarial questions in Chinese, with open answers and with letters to choose from.

The released six-shot prompts are not included; the styles here are the plain question, and FSPO's.
"""

from __future__ import annotations

import re

from hf_factuality.data.benchmarks import prompts
from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.rows import Reader, Row, Unusable


_WHERE = "{file} of github.com/OpenMOSS/HalluQA"
_BEST = ("best_answer1", "best_answer2", "best_answer3", "best_answer4")
_WRONG = ("wrong_answer1", "wrong_answer2", "wrong_answer3", "wrong_answer4")
_LETTERS = "ABCDEFGH"
# "Reply with the letter of the correct option only."
_ONLY_LETTER = "请只回答正确选项的字母。"
_ANSWER = re.compile(r"(?:Answer:\s*)?([A-H])")


def build_open(row: Row, style: str) -> BenchmarkItem:
    """An open question; up to four correct answers are what a judge is shown."""
    question = row.text("question")
    best, wrong = ([text for text in map(row.optional_text, names) if text is not None] for names in (_BEST, _WRONG))
    if not best:
        raise Unusable("no correct answer")
    return BenchmarkItem(
        row.id,
        prompts.fspo(question) if style == "fspo" else prompts.chat(question),
        question,
        answer=best,
        evidence=tuple(best),
        domain=row.optional_text("category"),
        reference={
            "question": question,
            "evidence": best,
            "correct_answers": best,
            "incorrect_answers": wrong,
            "class": row.optional_text("class"),
        },
    )


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """Take question and options apart: "Question: Why? A:this B:that".

    Args:
        text (`str`):
            A question of `HalluQA_mc.json`, whose options begin with consecutive letters, a colon and no space.

    Returns:
        `tuple[str, dict[str, str]]`: the question and, by letter, the options; none if there are none.
    """
    text = text.removeprefix("Question:").strip()
    starts: list[int] = []
    for letter in _LETTERS:
        place = text.find(f" {letter}:", starts[-1] if starts else 0)
        if place < 0:
            break
        starts.append(place)
    options = {
        letter: text[start + 3 : end].strip()
        for letter, start, end in zip(_LETTERS, starts, [*starts[1:], len(text)], strict=False)
    }
    return text[: starts[0]].strip() if starts else text, options


def build_choice(row: Row, style: str) -> BenchmarkItem:
    """A question with lettered options; as released, the letter and "Answer: A" both count.

    "A." is a gold answer too: the training reward ignores the full stop after any letter but A, which it takes for an
    article. The metric `accuracy` reads the letter itself.
    """
    whole = row.text("question").strip()
    question, options = split_options(whole)
    match = _ANSWER.fullmatch(row.text("answer").strip())
    if len(options) < 2:
        raise Unusable("fewer than two options")
    if match is None or match[1] not in options:
        raise Unusable("answer is the letter of no option")
    letter = match[1]
    return BenchmarkItem(
        row.id,
        prompts.fspo(f"{whole}\n{_ONLY_LETTER}") if style == "fspo" else prompts.chat(whole, _ONLY_LETTER),
        question,
        answer=[letter, f"{letter}.", f"Answer: {letter}"],
        reference={"letter": letter, "options": options},
    )


READERS = (
    Reader(
        Benchmark(
            name="halluqa",
            metrics=("halluqa",),
            temperature=1.0,
            top_p=0.9,
            description="450 adversarial questions in Chinese with open answers",
            source="arXiv 2310.03368; sampled as in 2505.24630",
        ),
        build_open,
        {"question": ("question",), "best_answer1": ("best_answer1", "best_answer")},
        optional={
            **{name: (name,) for name in (*_BEST[1:], *_WRONG)},
            "category": ("category",),
            "class": ("class",),
        },
        where=_WHERE.format(file="HalluQA.json"),
    ),
    Reader(
        Benchmark(
            name="halluqa-mc",
            metrics=("accuracy",),
            data_source="world",  # the rule that compares normalised texts
            description="the questions of HalluQA with up to five options, answered by a letter",
            source="arXiv 2310.03368",
        ),
        build_choice,
        {"question": ("question",), "answer": ("answer",)},
        where=_WHERE.format(file="HalluQA_mc.json"),
    ),
)
