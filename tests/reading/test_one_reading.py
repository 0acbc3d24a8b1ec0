"""Whoever reads a text takes it from `hf_factuality.reading`."""

import ast
import random
import re
from pathlib import Path

import pytest

from hf_factuality.data.benchmarks import BenchmarkItem
from hf_factuality.evaluation.scoring import item_answer
from hf_factuality.evaluation.verification import answer_row
from hf_factuality.functional.answers import exact_match
from hf_factuality.reading import extract_answer, read
from hf_factuality.reading.completion import without_citations
from hf_factuality.reading.scopes import opens_think
from hf_factuality.rewards import AbstentionReward, ChecklistReward, ClaimReward, RLFHReward, exact_reward
from hf_factuality.rewards.answers import complete_text
from hf_factuality.spans import Label
from hf_factuality.verifiers import GoldVerifier, LexicalVerifier, SentenceExtractor, VerifierPipeline
from hf_factuality.verifiers.base import Judgement, VerifierInput
from hf_factuality.verifiers.judges.citations import Citations
from hf_factuality.verifiers.service import VerificationRequest
from tests.conftest import fast_few


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


@pytest.mark.parametrize("seed", fast_few(range(4), 0, 1))
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
        row = VerificationRequest(VerifierInput(text, "Where?", ("Ulm.",)), "answer", opened)
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
        assert item_answer(item, text, "HotpotQA") == found.final, text
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


WRITTEN = [
    "# Ada Lovelace\n\n**Ada** was born in London.[1] She wrote notes on the Engine [2, 3].\n\n## Sources\n[1] Life\n[2] Notes",
    "Here are the facts:\n\n| Name | Born |\n|---|---|\n| Ada | 1815 |\n| Charles | 1791 |\n\nBoth lived in London.",
    "<think>Ada was born in Paris? No, Berlin.</think>Ada was born in London. Would you like more?",
    "<think>Maybe Ulm.</think><answer>Einstein was born in **Ulm**.[1]</answer>",
    "I'm sorry, I don't know when. Ada was born in London.",
    "I don't know. Please consult an encyclopedia.",
    "<think>She was born in 1815.</think>I'm sorry, but I cannot answer that.",
    "<think>也许是北京。</think>根据资料，李白出生于碎叶城。[1]他是唐代诗人。您还想了解更多吗？",
    "抱歉，我不知道。",
    "Use this:\n\n```python\nprint('Ada was born in 1815.')\n```\n\nIt prints a sentence.",
    "1. Ada was born in London [1].\n2. She died in 1852 【2†doc】.\n\nLet me know if you need more!",
    "Ada was born in London. <confidence>0.8</confidence>",
    "The sum is \\boxed{42}. [VERIFY] correct",
    "Ada was born in London.[^1]\n\n[^1]: Life of Ada, p. 3.",
    "She was in Berlin.</think>\n\nAda was born in London (1).",
    "<think>Ada was born in Paris. She",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_the_same_statements_are_judged_by_all(text):
    opened = "</think>" in text and "<think>" not in text
    prompt, found = "Where? <think>" if opened else "Where?", read(text, opened)
    said, visible = [it.says for it in found.statements], found.part()[0]
    given = {"completions": [text], "completion_texts": [text], "prompts": [prompt]}

    def judged(ask, *parts):
        judge = Shown()
        ask(VerifierPipeline(parts[0] if parts else SentenceExtractor(), judge, *parts[1:], requires_evidence=False))
        return [(it.claim, len(it.evidence)) for it in judge.seen]

    row = VerificationRequest(VerifierInput(text), "answer", opened).shown
    shown = [(claim, 0) for claim in said]
    assert judged(lambda verifier: visible and verifier.verify([row])) == shown
    assert judged(lambda verifier: ClaimReward("binary_rar", verifier)(**given)) == shown
    assert judged(lambda verifier: RLFHReward(verifier, rate=5)(**given)) == shown
    # A judge of citations is shown the passages that each sentence cites, of the three that are there.
    cited = [(it.says, len(it.cites)) for it in found.statements]
    with_pages = VerifierInput(visible, None, ("One.", "Two.", "Three."))
    assert judged(lambda verifier: visible and verifier.verify([with_pages]), Citations(), Citations()) == cited
    # RLFH pays where statements end, whatever the prompt opened.
    pipeline = VerifierPipeline(SentenceExtractor(), Shown(), requires_evidence=False)
    (points,) = RLFHReward(pipeline, rate=5)(**given)
    assert {end for _, end, value in points if value} == {it.end for it in found.statements}


@pytest.mark.parametrize("prompt", ["Where? <think>", "Where? <THINK>\n", 'Where? <think depth="2"> '])
def test_rewards_see_what_a_prompt_opens_as_the_reading_does(prompt):
    assert opens_think(prompt) and complete_text("Ulm.", prompt) == "<think>Ulm."
