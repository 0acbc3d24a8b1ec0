"""Whoever reads a text takes it from `hf_factuality.reading`."""

import ast
import random
import re
from pathlib import Path

import pytest

from hf_factuality.data.benchmarks import BenchmarkItem
from hf_factuality.evaluation.scoring import final_answer
from hf_factuality.evaluation.verification import answer_row
from hf_factuality.functional.answers import exact_match
from hf_factuality.reading import extract_answer, read
from hf_factuality.reading.completion import without_citations
from hf_factuality.rewards import AbstentionReward, ChecklistReward, exact_reward
from hf_factuality.rewards.answers import complete_text
from hf_factuality.spans import Label
from hf_factuality.verifiers import GoldVerifier, LexicalVerifier, SentenceExtractor
from hf_factuality.verifiers.base import Judgement, VerifierInput
from hf_factuality.verifiers.service import Row


PACKAGE = Path(__file__).resolve().parents[2] / "hf_factuality"
# What a pattern holds that looks for tags, boxes, verdicts, confidences, citations, refusals or Markdown.
READS = re.compile(
    r"</?(?:think|answer|confidence)\b|\\\\?boxed|\[VERIFY|####|sorry|don't know|do not know|不知道|抱歉|\\\*\\\*|\^#|†|footnote",
    re.IGNORECASE,
)
# They write prompts and answers, or look at what is no completion: cards and worlds of their own.
WRITERS = {"hub/cards", "hub/published.py", "io/markdown.py"}


def patterns(path):
    """Strings that are given to functions of `re`, or searched for by a method of strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        regular = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
        searched = node.func.attr in ("find", "rfind", "index", "partition", "rpartition", "split", "count")
        if regular or searched:
            for part in node.args[:1]:
                for one in ast.walk(part):
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield node.lineno, one.value


def test_no_pattern_for_what_a_text_says_stands_outside_the_room():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("reading/", *WRITERS)):
            found += [f"{name}:{line} {text[:60]!r}" for line, text in patterns(path) if READS.search(text)]
    assert found == []


PIECES = [
    "Ulm", "Bonn", "The answer is Ulm.", "It is in Bonn. ", "I don't know. ", "I'm sorry, but I cannot answer that. ", "\n\n", "\n", " ",
    "<think>", "</think>", "<THINK>", "<answer>", "</answer>", "<answer>Ulm</answer>", "<confidence>0.9</confidence>",
    "<confidence>", "</confidence>", "<confidence>It lies on the Danube.</confidence>", "\\boxed{Ulm}", "\\boxed{", "}", "#### Ulm",
    "[VERIFY] wrong", "[VERIFY] correct", "[1]", " [1, 2].", "¹", "# Ulm\n", "- Ulm\n", "**Ulm**", "| a | b |\n|---|---|\n| Ulm | 1 |\n",
    "```\nUlm\n```\n", "Nobody Knows is a 2004 film. ", "我不知道。", "Je ne sais pas. ", "Would you like more? ", "$x$",
]  # fmt: skip


class Shown:
    """A judge that keeps what it is shown, and finds nothing."""

    def __init__(self):
        self.seen = []

    def judge(self, inputs):
        self.seen += inputs
        return [Judgement(Label.UNVERIFIABLE)] * len(inputs)


def composition(draw):
    return "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 9)))


@pytest.mark.parametrize("seed", range(4))
def test_the_same_text_is_read_alike_by_all(seed, count=250):
    """Rewards, the gold verifier, what is evaluated and what is judged: one answer, one refusal, one visible text."""
    draw = random.Random(seed)
    alike(draw, count)


@pytest.mark.slow
def test_ten_thousand_texts_are_read_alike_by_all():
    alike(random.Random(100), 10_000)


def alike(draw, count):
    extractor, gold, abstention = SentenceExtractor(), GoldVerifier("world"), AbstentionReward("truthrl")
    seen = []
    for _ in range(count):
        text, opened = composition(draw), draw.random() < 0.2
        found = read(text, opened)
        # The visible text: what a verifier, a checklist and `evaluate` are shown.
        row = Row(VerifierInput(text, "Where?", ("Ulm.",)), "answer", opened)
        visible = found.part()[0]
        assert row.shown.completion == visible
        messages = ({"role": "user", "content": "Where?"},)
        item = BenchmarkItem(
            "a",
            messages if not opened else (*messages, {"role": "assistant", "content": "<think>"}),
            "Where?",
            answer="Ulm",
        )
        assert answer_row(item, 0, text, "answer").shown.completion == visible
        whole = complete_text(text, "Where? <think>" if opened else "Where?")
        judge = Shown()
        reward = ChecklistReward(judge)
        reward.recall(completions=[text], prompts=["Where? <think>" if opened else "Where?"], checklist=[["Ulm."]])
        if visible.strip():
            assert [one.evidence for one in judge.seen] == [(without_citations(visible),)], text
        # The final answer: of rewards, which want tags, of `evaluate`, and of the gold verifier, which is shown the answer.
        assert final_answer(item, text, "HotpotQA") == found.final, text
        tagged = extract_answer(whole)
        assert tagged is None or tagged == (found.final or ""), text
        (score,) = exact_reward([""], [whole], answer=["Ulm"])
        right = bool(tagged) and exact_match(tagged, ["Ulm"]) == 1.0
        assert (score == 1.0) == right, text
        if visible.strip():
            (spans,) = gold.extractor.extract([VerifierInput(visible)])
            seen += spans
            if not opened:
                # The refusal: one that declines is wrong for the gold verifier, and states nothing.
                assert (spans[0].label is not None) == read(visible).declines, text
                if read(visible).declines:
                    (judged,) = extractor.extract([VerifierInput(visible)])
                    assert all(span.label is not None for span in judged), text
                    (verified,) = LexicalVerifier().verify([VerifierInput(visible, None, ("Ulm.",))])
                    assert {span.label for span in verified.spans} <= {Label.NO_FACT}, text
        (paid,) = abstention([whole], answer=["Ulm"], prompts=[""])
        assert (paid == 1.0) == right, text
    assert seen
