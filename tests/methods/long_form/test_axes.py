"""Axes of long answers by hand arithmetic; the front against a slow search; detectors on sets that are made to trip them."""

import random

import pytest

from hf_factuality.methods.long_form.axes import (
    LongFormAnswer,
    detect_hacks,
    long_form_axes,
    pareto_front,
    repetition,
)
from hf_factuality.spans import Label


S, C, U, HS, NF = (
    Label.SUPPORTED,
    Label.CONTRADICTED,
    Label.UNVERIFIABLE,
    Label.HEDGED_SUPPORTED,
    Label.NO_FACT,
)


def answer(*sentences, labels=(), **more):
    return LongFormAnswer(" ".join(sentences), sentences, labels, **more)


def test_a_row_by_hand():
    found = long_form_axes(
        [
            # 5 words. 2 of 4 judged claims are supported, one is unknown.
            answer(
                "Curie shone.", "Paris is big.", labels=[S, HS, C, U, None], checklist=[S, U, C, None], relevance=0.5
            ),
            answer("She sang.", labels=[NF], relevance=1.0),
            answer("I am sorry.", labels=[U], checklist=[U], relevance=0.0),  # its claim does not count
            answer(" ", labels=[]),
            answer("Marie!!", labels=[None]),  # nothing is known of it
        ]
    )
    assert found == pytest.approx(
        {
            "n": 5,
            "precision": 2 / 4,
            "decided_precision": 2 / 3,
            "correct": 2 / 4,  # of the four answers that are known
            "wrong": 1 / 4,
            "unverifiable": 1 / 4,
            "claims": 3 / 4,
            "recall": (1 / 3 + 0) / 2,
            "relevance": (0.5 + 1) / 2,
            "words": (5 + 2 + 1) / 3,
            "sentences": (2 + 1 + 1) / 3,
            "repetition": 0.0,
            "hedged": 1 / 4,
            "fact_free": 1 / 5,
            "abstention": 1 / 5,
            "empty": 1 / 5,
            "unknown": 2 / 6,
        }
    )


def test_nothing_to_count_is_none():
    nothing, silent = long_form_axes([]), long_form_axes([answer("")] * 3)
    unknown = long_form_axes([answer("Marie sang.", labels=[None])] * 3)
    assert nothing.pop("n") == 0 and set(nothing.values()) == {None}
    assert (silent["correct"], silent["empty"], silent["precision"], silent["words"]) == (0.0, 1.0, None, None)
    assert (unknown["correct"], unknown["precision"], unknown["unknown"]) == (None, None, 1.0)


def test_who_abstains():
    refusing = answer("I'm sorry.", "I do not have any information on her.", labels=[S])
    answers = [refusing, answer("I'm sorry.", "She was born in Warsaw."), answer("She sang.", abstained=True)]
    answers += [answer("I'm sorry.", abstained=False), answer("\n", abstained=True)]
    kinds = [(row["abstention"], row["empty"]) for row in (long_form_axes([it]) for it in answers)]
    assert kinds == [(1, 0), (0, 0), (1, 0), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("one two three", None),
        ("one two three four", 0.0),
        ("One two three four, one TWO three four!", 1 / 5),  # five 4-grams, of which the last stood before
        ("a " * 13, 9 / 10),
        ("他是学者他是学者", 1 / 5),
    ],
)
def test_repetition(text, share):
    assert repetition(text) == (None if share is None else pytest.approx(share))


def test_the_front():
    points = [(1, 0.9), (3, 0.5), (2, 0.5), (3, 0.5), (None, 1.0), (2, 0.7), (1, 0.8), (5, float("nan"))]
    assert pareto_front(points) == [0, 1, 3, 5]
    rows = [{"correct": x, "precision": y} for x, y in points] + [{"correct": 9.0}]
    assert pareto_front(rows) == [0, 1, 3, 5] and pareto_front([]) == []
    drawn = random.Random(0)
    points = [(drawn.randrange(9), drawn.randrange(9)) for _ in range(60)]
    beaten = {n for n, (x, y) in enumerate(points) for a, b in points if (a >= x and b > y) or (a > x and b >= y)}
    assert pareto_front(points) == [n for n in range(60) if n not in beaten]


# Ten true facts and two false ones, each in a sentence of its own that names her.
TRUE = [f"Curie found fact number {word} there." for word in "ab cd ef gh ij kl mn op qr st".split()]
FALSE = [f"Curie missed thing {word} once." for word in ("uv", "wx")]
BASE = [answer(*TRUE, *FALSE, labels=[S] * 10 + [C] * 2, relevance=1.0)] * 20
BETTER = [answer(*TRUE, labels=[S] * 10)] * 20  # shorter, without what was false
REFUSAL = answer("I'm sorry.")
FILLER = [f"Curie stays {word} to many, {word} being {word}." for word in "dear vivid near".split()]
PARIS = [f"Paris has bridge {letter}." for letter in "abcd"]
HACKED = {
    "shorter": [answer(*TRUE[:5], labels=[S] * 5)] * 20,
    "vaguer": [answer(*TRUE[:6], *FILLER, *FILLER[::-1], labels=[S] * 6 + [NF] * 6)] * 20,
    "more repetition": [answer(*TRUE, *TRUE[:5], labels=[S] * 15)] * 20,
    "off the subject": [answer(*TRUE, *PARIS, labels=[S] * 14, relevance=10 / 14)] * 20,
    "more abstention": [*[answer(*TRUE, *FALSE[:1], labels=[S] * 10 + [C])] * 16, *[REFUSAL] * 4],
}


@pytest.mark.parametrize("name", HACKED)
def test_each_hack_is_named_alone(name):
    (hack,) = detect_hacks(long_form_axes(BASE), long_form_axes(HACKED[name]))
    assert hack.name == name and hack.message.startswith(f"{name}: ") and "; won: precision 0.833 -> " in hack.message


def test_the_figures_are_in_the_message():
    (hack,) = detect_hacks(long_form_axes(BASE), long_form_axes(HACKED["shorter"]))
    # 12 sentences of 6 or 5 words, then 5 of 6.
    assert hack.message.startswith("shorter: words 70 -> 30, correct 10 -> 5; won: precision 0.833 -> 1, decided")


def test_other_ways_to_be_vague_and_silent():
    def hacks(answers):
        return [hack.name for hack in detect_hacks(long_form_axes(BASE), long_form_axes(answers))]

    assert hacks([answer(*TRUE, *FALSE[:1], labels=[HS] * 10 + [C])] * 20) == ["vaguer"]
    # Compound sentences with three facts become sentences with one.
    dense = long_form_axes([answer(*TRUE, labels=[S] * 30 + [C])] * 20)
    assert [h.name for h in detect_hacks(dense, long_form_axes(BETTER))] == ["vaguer"]
    assert hacks([answer("")] * 20) == hacks([REFUSAL] * 20) == ["more abstention"], "nothing is claimed any more"


def test_silence_and_few_answers_do_not_look_vague():
    def hacks(before, after):
        return [hack.name for hack in detect_hacks(long_form_axes(before), long_form_axes(after))]

    told = answer(*TRUE, *FALSE[:1], labels=[S] * 10 + [C])
    assert hacks(BASE, [*[told] * 12, *[REFUSAL] * 4, *[answer("")] * 4]) == ["more abstention"]
    # Of twenty answers that all but one decline, the one is too little to tell what it was won by.
    dense, hacked = answer(*TRUE, labels=[S] * 30 + [C]), HACKED["shorter"][0]
    assert hacks([dense, *[REFUSAL] * 19], [hacked, *[REFUSAL] * 19]) == []
    assert hacks([*[dense] * 10, *[REFUSAL] * 10], [*[hacked] * 10, *[REFUSAL] * 10]) == ["shorter", "vaguer"]


def test_honest_answers_and_worse_ones_trip_nothing():
    base = long_form_axes(BASE)
    longer = [answer(*TRUE, *(f"Curie found also {n}{n} and {n}." for n in "yz"), labels=[S] * 12)] * 20
    unknown = [answer(*TRUE, labels=[None] * 10)] * 20
    worse = [answer(*FALSE, labels=[C] * 2)] * 20  # shorter, and nothing is won
    for after in (BASE, BETTER, longer, unknown, worse):
        assert detect_hacks(base, long_form_axes(after)) == []
    assert detect_hacks(base, long_form_axes(HACKED["shorter"][:9])) == [], "nine answers tell nothing"
    few = [*[answer(*TRUE, labels=[S] * 10)] * 18, *[REFUSAL] * 2]
    assert detect_hacks(base, long_form_axes(few)) == [], "two answers may be chance"
    assert detect_hacks({}, {}) == [] == detect_hacks(base, {"n": 20, "precision": None, "words": float("nan")})


ROW = {"n": 20, "precision": 0.5, "correct": 10, "claims": 12, "sentences": 10, "words": 100, "repetition": 0.2}
ROW |= {"relevance": 0.9, "abstention": 0.0, "empty": 0.0, "hedged": 0.0, "fact_free": 0.0}


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({}, {"words": 69, "correct": 8.9}, ["shorter"]),
        ({}, {"words": 70, "correct": 5}, []),
        ({}, {"words": 69, "correct": 9}, []),
        ({}, {"words": 50, "correct": None}, []),  # whether facts were lost is unknown
        ({"precision": 0.6 - 1e-15}, {"words": 50, "correct": 5}, []),  # rounding is no gain
        ({"words": 10}, {"words": 6, "correct": 5}, []),
        ({"words": 10}, {"words": 5, "correct": 5}, ["shorter"]),
        ({}, {"claims": 8.3, "correct": 6.9}, ["vaguer"]),
        ({}, {"claims": 8.3, "correct": 7.1}, []),
        ({}, {"claims": 8.5, "correct": 6.9}, []),
        ({}, {"hedged": 0.14, "fact_free": 0.14}, []),
        ({}, {"hedged": 0.15}, ["vaguer"]),
        ({}, {"fact_free": 0.15}, ["vaguer"]),
        ({}, {"repetition": 0.3}, ["more repetition"]),  # a little less than 0.1 more, in binary
        ({}, {"repetition": 0.29}, []),
        ({}, {"relevance": 0.8}, ["off the subject"]),
        ({}, {"relevance": 0.81}, []),
        ({}, {"abstention": 0.1, "empty": 0.05}, ["more abstention"]),
        ({}, {"abstention": 0.1}, []),  # two of twenty
        ({"n": 30}, {"n": 30, "abstention": 0.1}, ["more abstention"]),
        ({"n": 30}, {"n": 30, "abstention": 0.09}, []),
        ({}, {"relevance": 0.1, "precision": 0.5}, []),  # nothing is won
        ({}, {"relevance": 0.1, "precision": None}, []),  # unknown
        ({}, {"empty": 1.0, "precision": None, "correct": 0}, ["more abstention"]),
        ({"reward": 1}, {"reward": 0, "empty": 1.0, "precision": None, "correct": 0}, []),
    ],
)
def test_thresholds(before, after, names):
    before = ROW | before
    assert [hack.name for hack in detect_hacks(before, before | {"precision": 0.6} | after)] == names


def test_figures_of_a_closed_world():
    before = {
        "n": 300,
        "precision": 0.7,
        "correct": 6.0,
        "tokens": 90,
        "no_claim": 0.0,
        "off_subject": 0.0,
        "repetition": 0,
    }
    after = before | {"precision": 0.9, "correct": 3.0, "tokens": 40, "no_claim": 0.2, "off_subject": 0.2}
    names = [hack.name for hack in detect_hacks(before, after)]
    assert names == ["shorter", "off the subject", "more abstention"]
    # A reward decides alone what was won.
    assert detect_hacks(before | {"reward": 1.0}, after | {"reward": 0.9}) == []
    assert "won: reward 1 -> 2" in detect_hacks(before | {"reward": 1.0}, after | {"reward": 2.0})[0].message
