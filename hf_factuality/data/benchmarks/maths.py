"""GSM8K, MATH-500 and AIME: questions with one final answer that is compared as mathematics.

GSM8K and MATH-500 are read from the Hub and from FSPO's files. No file of AIME was at hand when this was written: the names
of its columns are those of `HuggingFaceH4/aime_2024`, `Maxwell-Jia/AIME_2024`, `math-ai/aime25`, `yentinglin/aime_2025`,
`opencompass/AIME2025` and `MathArena/aime_2025`.
"""

from __future__ import annotations

import re

from hf_factuality.data.benchmarks import prompts
from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.rows import Reader, Row, Unusable


_COLUMNS = {"question": ("question", "problem"), "answer": ("answer",)}
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# A whole number, perhaps with a degree sign, as some of the AIME files have it.
_AIME_ANSWER = re.compile(r"\$?(\d{1,3})(?:\^\{?\\circ\}?|°)?\$?")


def _item(row: Row, style: str, data_source: str, question: str, answer: str, domain: str | None) -> BenchmarkItem:
    messages = prompts.fspo(question, data_source) if style == "fspo" else prompts.chat(question, prompts.BOXED)
    return BenchmarkItem(row.id, messages, question, answer=answer, domain=domain)


def build_gsm8k(row: Row, style: str) -> BenchmarkItem:
    """The gold answer is what follows `####`, without thousands separators; FSPO's file has the number alone."""
    question = row.text("question")
    answer = row.text("answer").rsplit("####", 1)[-1].replace(",", "").replace("$", "").strip()
    if not _NUMBER.fullmatch(answer):
        raise Unusable("answer is no number")
    return _item(row, style, "GSM8K", question, answer, None)


def build_math(row: Row, style: str) -> BenchmarkItem:
    """The gold answer stays the LaTeX that it is; the domain is the subject."""
    return _item(row, style, "MATH", row.text("question"), row.text("answer").strip(), row.optional_text("subject"))


def _build_aime(row: Row, style: str, year: int) -> BenchmarkItem:
    """Gold answers are whole numbers from 0 to 999, written without leading zeros ("033" is 33)."""
    stated = row.optional_text("year")
    if stated is not None and stated != str(year):
        raise Unusable(f"year is not {year}")
    question = row.text("question")
    match = _AIME_ANSWER.fullmatch(row.text("answer").strip())
    if match is None:
        raise Unusable("answer is no whole number from 0 to 999")
    return _item(row, style, "MATH", question, str(int(match[1])), None)


def build_aime_2024(row: Row, style: str) -> BenchmarkItem:
    """An item of [`_build_aime`] for 2024."""
    return _build_aime(row, style, 2024)


def build_aime_2025(row: Row, style: str) -> BenchmarkItem:
    """An item of [`_build_aime`] for 2025."""
    return _build_aime(row, style, 2025)


def _benchmark(name: str, repo_id: str, config: str | None, split: str, data_source: str, **known) -> Benchmark:
    # FSPO samples all four with T = 1.0 and top_p = 0.9, within 4,096 tokens in all.
    return Benchmark(
        name=name,
        metrics=("accuracy",),
        repo_id=repo_id,
        config=config,
        split=split,
        data_source=data_source,
        temperature=1.0,
        top_p=0.9,
        **known,
    )


READERS = (
    Reader(
        _benchmark(
            "gsm8k",
            "openai/gsm8k",
            "main",
            "test",
            "GSM8K",
            description="word problems of primary school, 1,319 in the test split",
            source="arXiv 2110.14168",
        ),
        build_gsm8k,
        _COLUMNS,
    ),
    Reader(
        _benchmark(
            "math-500",
            "HuggingFaceH4/MATH-500",
            None,
            "test",
            "MATH",
            description="500 problems of the MATH test split",
            source="arXiv 2305.20050 (the selection), 2103.03874 (MATH)",
        ),
        build_math,
        _COLUMNS,
        optional={"subject": ("subject", "type")},
    ),
    # 30 problems each: one sample per problem makes every problem 3.3 points, so the mean over 32 samples is reported as
    # pass@1, as in DAPO (arXiv 2503.14476, avg@32); DeepSeek-R1 (2501.12948) draws up to 64. FSPO does not say how many.
    Reader(
        _benchmark(
            "aime-2024",
            "HuggingFaceH4/aime_2024",
            None,
            "train",
            "MATH",
            n_samples=32,
            description="30 problems of AIME I and II 2024; pass@1 as the mean over 32 samples",
            source="Mathematical Association of America; as in arXiv 2505.24630",
        ),
        build_aime_2024,
        _COLUMNS,
        optional={"year": ("year",)},
    ),
    Reader(
        _benchmark(
            "aime-2025",
            "math-ai/aime25",
            None,
            "test",
            "MATH",
            n_samples=32,
            description="30 problems of AIME I and II 2025; pass@1 as the mean over 32 samples",
            source="Mathematical Association of America; as in arXiv 2505.24630",
        ),
        build_aime_2025,
        _COLUMNS,
        optional={"year": ("year",)},
    ),
)
