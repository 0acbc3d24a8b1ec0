"""Which statements are the same: hand-made pairs, and hostile ones."""

import random
import string
import time

import numpy as np
import pytest

from hf_factuality.methods.klcf.statements import SampledClaim, by_meaning, by_words
from hf_factuality.spans import Label
from tests.conftest import searched


S = Label.SUPPORTED
SAME = [
    ("Ada was born in Leeds.", "ada was born in Leeds"),
    ("The Humber is a river.", "Humber is river"),
    ("**Ada** was born in `Leeds`!".replace("!", ""), "“Ada” was born (in Leeds)."),
    ("It has 1,234,000 people.", "It has 1234000 people"),
    ("Ada’s sister", "Ada's sister"),
    ("from 1901–1950", "from 1901-1950"),
    ("Jose\u0301 was born.", "José was born."),  # NFD and NFC
    ("ＡＤＡ was born in １９０１", "ada was born in 1901"),
    ("Ada\u00a0was\u200b born", "Ada was born"),
    ("玛丽出生在华沙。", "玛丽出生在华沙"),
]
OTHER = [
    ("Ada was born in 1901.", "Ada was born in 1910."),
    ("Ada was born in Leeds.", "Ben was born in Leeds."),
    ("Ada was born in Leeds.", "Ada was not born in Leeds."),
    ("Ada was never in Leeds.", "Ada was in Leeds."),
    ("玛丽出生在华沙。", "玛丽不出生在华沙。"),
    ("Leeds beat York.", "York beat Leeds."),
    ("It is 3.5 m.", "It is 35 m."),
    ("It is -5 degrees.", "It is 5 degrees."),
    ("It is 10² km.", "It is 102 km."),
    ("It is .5 m.", "It is 5 m."),
    ("It costs $5.", "It costs €5."),
    ("It has 5! orders", "It has 5 orders."),
    ("She wrote C.", "She wrote C++."),
    ("She found Sagittarius A*.", "She found Sagittarius A."),
    ("Vitamin A is good.", "Vitamin is good."),
    ("She had three sons.", "She had four sons."),
    ("She was the first queen.", "She was the second queen."),
    ("She was born on 5 March.", "She was born on 5 May."),
    ("They have 5 million.", "They have 5 billion."),
    ("Ada married William.", "Ada married Williams."),
    ("José was born.", "Jose was born."),
    ("He died in Leeds.", "She died in Leeds."),
    ("किताब पुरानी है", "कताब पुरानी है"),
    ("ada was born in leeds", "ben was born in leeds"),
    ("Er ist nicht in Ulm.", "Er ist in Ulm."),
    ("Ada never loved Leeds.", "Ada always loved Leeds."),
    ("Ada was a doctor.", "Ada was a good doctor."),
    ("Ada died in the 18th century.", "Ada died in the 19th century."),
    ("Ada died in the eighteenth century.", "Ada died in the nineteenth century."),
    ("Ada was Queen of England in 1901.", "Ada was Queen of England and Ireland in 1901."),
]


def close(texts):
    """Embeddings of a model that takes all texts for the same."""
    return np.tile(np.array([[1.0, 2.0]], dtype=np.float32), (len(texts), 1))


def merged(*texts, encode=None, threshold=0.95):
    found = by_words(SampledClaim(number, text, S) for number, text in enumerate(texts))
    found = by_meaning(found, encode, threshold) if encode else found
    return [[claim.sample for claim in statement] for statement in found]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_words(one, other):
    assert merged(one, other) == merged(other, one) == [[0, 1]]


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_differs_in_a_number_a_name_or_a_negation_is_never_the_same(one, other):
    for encode in (None, close):
        assert sorted(merged(one, other, encode=encode)) == [[0], [1]]
        assert sorted(merged(other, one, encode=encode)) == [[0], [1]]


def test_near_embeddings():
    texts = [
        "Ada was born in Leeds in 1901.",
        "Ada came into the world in Leeds in 1901.",
        "Ada died in Leeds in 1901.",
    ]
    at = {0: (1.0, 0.0), 1: (0.96, 0.28), 2: (0.0, 1.0)}  # cosine of the first two: .96

    def encode(asked):
        return np.array([at[texts.index(text)] for text in asked], dtype=np.float32) * 7

    assert merged(*texts, encode=encode, threshold=0.95) == [[0, 1], [2]]
    assert merged(*texts, encode=encode, threshold=0.97) == [[0], [1], [2]]
    assert merged(*texts[::-1], encode=encode, threshold=0.27) == [
        [0, 1],
        [2],
    ]  # the nearest earlier one that is first
    ones = "In 1901, Ada married in York.", "Ada wed in York in 1901."
    assert merged(*ones, encode=close) == [[0, 1]]  # numbers and names may change places with each other


def test_no_chains():
    """A statement joins one that it is near itself."""
    angles = [0.0, 0.3, 0.6]
    texts = ["Ada was born", "Ada came alive", "Ada did arise"]
    vectors = np.array([[np.cos(a), np.sin(a)] for a in angles])
    assert merged(*texts, encode=lambda asked: vectors, threshold=0.95) == [[0, 1], [2]]


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_embeddings_that_are_no_numbers_merge_nothing(value):
    texts = ["Ada was born", "Ada came alive"]
    assert merged(*texts, encode=lambda asked: np.full((len(asked), 2), value)) == [[0], [1]]


@searched(1000, 10_000)
def test_thousands_of_hostile_claims_take_no_quadratic_time(count):
    rng = random.Random(0)
    marks = [
        "**",
        "`",
        "<b>",
        "*a ",
        "\u0301",
        "\u202e",
        "\ud800",
        "'",
        '"',
        ",",
        "1,",
        "(",
        "玛",
        "not ",
        "\x00",
        "%",
    ]
    pieces = [*marks, *string.ascii_letters, " ", " ", "9"]
    claims = [SampledClaim(n, "".join(rng.choices(pieces, k=rng.choice((3, 1000)))), S) for n in range(count // 2)]
    claims += [SampledClaim(n, "a" * 1000 + str(n), S) for n in range(count // 4)]
    claims += [
        SampledClaim(n, f"Ada did {''.join(rng.choices(string.ascii_lowercase, k=9))}", S) for n in range(count // 4)
    ]
    start = time.process_time()
    found = by_words(claims)
    assert time.process_time() - start < 20 * count / 10_000
    assert 0.9 * count < sum(map(len, found)) <= count and len(found) > 0.9 * count
    vectors = np.random.default_rng(0).normal(size=(len(found), 384)).astype(np.float32)
    by_meaning(found, lambda asked: vectors, 0.95)
    assert time.process_time() - start < 60 * count / 10_000
