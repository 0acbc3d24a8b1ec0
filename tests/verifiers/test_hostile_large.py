"""A million characters: read by every extractor and judge in bounded time, and no slower per character than a tenth of it."""

import random
import time

import pytest

from hf_factuality import Label
from hf_factuality.reading.sentences import _WINDOW, sentence_offsets
from hf_factuality.verifiers import JudgeInput, LexicalJudge, SentenceExtractor, VerifierInput
from hf_factuality.verifiers.extractors.anchor import anchor_claim
from hf_factuality.verifiers.extractors.llm import FActScoreExtractor, RLFHExtractor, parse_claims, parse_statements
from hf_factuality.verifiers.judges.llm import parse_choice
from tests.verifiers import hostile
from tests.verifiers.test_hostile import EVIDENCE, FACT, Model


# Seconds of process time per million characters; what is quadratic takes minutes to hours.
PER_MEGABYTE = 20
UNITS = [
    "Ada was born in Leeds. ", "中。", "中", "A.\n", "a\n", "- a\n", "* a\n", "1. ", "(1) a ", "“", "“中。", "“A b. ", "(", "?",
    "not ", "may ", "I think ", "3 million ", "2020-01-01 ", "一", "不", "没有", "\u0300", "\U0001f600", "\ud800", "<think>", "word ", "x",
    "supported ", ">> Sentence 1: x\n* y\n", "Ada.Bob ", "abc.Def ghi ", "'", "1,", "1.1.", "[INST", "|", "\u2028", "\r", "Dr. ", "the ",
]  # fmt: skip


def seconds(function, *arguments):
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def anchored(text):
    anchor_claim("Ada was born in Leeds, said the word.", text, (0, len(text)))


def judged(text):
    LexicalJudge().judge([JudgeInput(FACT, (text,)), JudgeInput(text, EVIDENCE)])


def extracted(text):
    said = "- Ada was born.\n- a b"
    FActScoreExtractor(Model(lambda request: said)).extract([VerifierInput(text)])


def stated(text):
    said = ">> Sentence 1: Ada was born.\n* Ada was born.\n* a b"
    RLFHExtractor(Model(lambda request: said)).extract([VerifierInput(text)])


def read(text):
    parse_choice(text, hostile.LABELS)
    parse_claims(text, "No facts.")
    parse_statements(text, "No statements.")


WORK = [sentence_offsets, anchored, judged, read, extracted, stated]


def allowed(work, size):
    """Twice as much, for a busy machine; ten times for one prompt per sentence, as a sentence may have two characters."""
    return 0.5 + (10 if work is extracted else 2) * PER_MEGABYTE * size / 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_megabyte_of_everything(work):
    size = 1_000_000
    spent = {unit: seconds(work, (unit * (size // len(unit) + 1))[:size]) for unit in UNITS}
    assert not {unit: value for unit, value in spent.items() if value > allowed(work, size)}


@pytest.mark.parametrize("text", hostile.megabytes(), ids=lambda text: repr(text[:3]))
def test_megabytes(text):
    start = time.process_time()
    ranges = sentence_offsets(text)
    assert time.process_time() - start < 20
    assert all(0 <= start < end <= len(text) for start, end in ranges)
    assert sum(map(str.isalnum, text)) == sum(sum(map(str.isalnum, text[start:end])) for start, end in ranges)
    (judgement,) = LexicalJudge().judge([JudgeInput(text[:100_000], EVIDENCE)])
    assert judgement.label in (Label.UNVERIFIABLE, Label.NO_FACT)
    assert parse_choice(text, hostile.LABELS) is None and not parse_claims(text, "No facts.")


def test_long_lines_are_cut_where_short_ones_are():
    """Sentences of a line far longer than a window are those that its sentences give when they stand alone."""
    generator = random.Random(0)
    names = ["Ada Hale", "Dr. Ng", "The U.S. Army", "Mr. J. Smith", "“Wait.”", "A dog (a big one)"]
    ends = ["was born in Leeds.", "saw 3.5 million stars!", "asked why?", "left at 5 p.m. on foot."]
    parts = [f"{generator.choice(names)} {generator.choice(ends)}" for _ in range(4000)]
    alone = {part: [part[slice(*piece)] for piece in sentence_offsets(part)] for part in set(parts)}
    text = " ".join(parts)
    assert len(text) > 20 * _WINDOW
    expected = [piece for part in parts for piece in alone[part]]
    found = [text[start:end] for start, end in sentence_offsets(text)]
    assert found == expected
    chinese = "".join(f"第{generator.randrange(1, 99)}句话说完了。" for _ in range(3000))
    assert [chinese[start:end] for start, end in sentence_offsets(chinese)] == [
        f"{sentence}。" for sentence in chinese.split("。")[:-1]
    ]


def test_a_sentence_longer_than_a_window_stays_whole():
    text = "Ada was born. " + "and then " * _WINDOW + "she died. Bob sang."
    found = [text[start:end] for start, end in sentence_offsets(text)]
    assert [found[0], found[-1]] == ["Ada was born.", "Bob sang."] and len(found) == 3
    (spans,) = SentenceExtractor().extract([VerifierInput("word " * 200_000)])
    assert len(spans) == 1


def test_a_window_does_not_end_a_quotation():
    """Wherever the windows of a long line end, a sentence with a quotation of several is whole."""
    quotation = "He wrote “Stay. Do not go. Come” and left. "
    alone = [quotation[slice(*piece)] for piece in sentence_offsets(quotation)]
    assert alone == [quotation.strip()]
    for shift in range(0, 120, 5):
        text = "x" * shift + " " + "Ada was born in Leeds. " * 170
        text = text[: text.rindex("Ada", 0, _WINDOW - 10)] + quotation * 3 + "Ada was born in Leeds. " * 200
        found = [text[slice(*piece)] for piece in sentence_offsets(text)]
        assert [piece for piece in found if not piece.endswith("Leeds.")] == alone * 3
