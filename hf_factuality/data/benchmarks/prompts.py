"""Messages of a question, in the styles that several benchmarks share.

`"chat"` is the plain question, with one sentence on the form of the answer where the benchmark needs one. `"fspo"` is what
[`hf_factuality.data.load_fspo`] trains with, its `<think>` opened. `"published"` is TruthfulQA's, with its six-shot primer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hf_factuality.data.prompts import PREFILL, instructions


_PRIMER = Path(__file__).with_name("truthfulqa_primer.txt")


def ask(
    style: str, question: str, data_source: str = "", instruction: str | None = None, system: str | None = None
) -> tuple[dict[str, str], ...]:
    """`instruction` (a line behind the question) and `system` are of the chat; `data_source` chooses FSPO's example."""
    if style == "fspo":
        system = instructions(question, data_source)
        return (_turn("system", system), _turn("user", question), _turn("assistant", PREFILL))
    asked = _turn("user", question if instruction is None else f"{question}\n{instruction}")
    return (_turn("system", system), asked) if system else (asked,)


def candidates(question: str, *answers: str) -> str:
    """A question with one or two candidate answers, marked as in the files of FSPO (arXiv 2505.24630)."""
    labels = [""] if len(answers) == 1 else [f" {number}" for number in range(1, len(answers) + 1)]
    lines = [f"#Candidate Answer{label}#: {answer}" for label, answer in zip(labels, answers, strict=True)]
    return "\n".join([f"#Question#: {question}", *lines])


def published_truthfulqa(question: str) -> tuple[dict[str, str], ...]:
    """To the character, as one message, which a model without chat template reads as it is; the answer follows a space."""
    return ask("chat", f"{_primer()}\n\nQ: {question}\nA:")


def primer_turns(question: str) -> tuple[dict[str, str], ...]:
    """The primer's questions and answers as turns, then the question. Not the published prompt, but its content."""
    turns = []
    for pair in _primer().split("\n\n"):
        asked, answered = pair.split("\n")
        turns += [_turn("user", asked.removeprefix("Q: ")), _turn("assistant", answered.removeprefix("A: "))]
    return (*turns, _turn("user", question))


@cache
def _primer() -> str:
    return _PRIMER.read_text(encoding="utf-8").strip()


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
