"""Sums and logarithms written out by hand; random completions equal a slow version over characters and strings."""

import copy
import itertools
import math
import pickle
import random

import pytest

from hf_factuality.functional.token_rewards import place_spans
from hf_factuality.methods.rlfh.formula import (
    RLFH_GRANULARITIES,
    RLFH_PRESETS,
    RLFHMaps,
    RLFHSentence,
    mean_rlfh_metrics,
    rlfh_metrics,
    rlfh_rewards,
    sentence_reward,
    statement_reward,
)
from hf_factuality.spans import Label
from tests.conftest import searched


S, HS, U, HC, C = (
    Label.SUPPORTED,
    Label.HEDGED_SUPPORTED,
    Label.UNVERIFIABLE,
    Label.HEDGED_CONTRADICTED,
    Label.CONTRADICTED,
)
N = Label.NO_FACT
ORDER = (S, HS, U, HC, C)

# README, scripts/train.sh and the class of the released code: five verdicts, ratings 5 to 1, beta.
PUBLISHED = {
    "readme": ("0.45 0.35 -1 -1.5 -1.7", "1.25 1 0.75 0.1 -0.2", "1.2"),
    "script": ("0.3 0.1 -0.8 -0.9 -1.2", "1.3 1.2 1.1 1 -0.1", "1"),
    "class": ("1 0.5 -1 -1.5 -2", "1.3 1.2 1.1 1 -0.1", "1"),
}
NAMES = ("Correct", "Hedged correct", "Vague", "Hedged wrong", "Wrong")
OURS = dict(zip(NAMES, ORDER, strict=True))

# One true statement rated 5 and a false one rated 1, then a vague one rated 3, then a sentence without statements.
SENTENCES = (
    RLFHSentence(20, ((9, S, 5), (19, C, 1))),
    RLFHSentence(40, ((35, U, 3),)),
    RLFHSentence(50),
)
# By hand: alpha f |g| of the three statements, then beta ln(1 + sum g) of the two sentences.
# readme: .45 x 1.25, -1.7 x .2, -1 x .75; 1.2 ln(1 + 1.25 - .2) = 1.2 ln 2.05, 1.2 ln 1.75
# script: .3 x 1.3, -1.2 x .1, -.8 x 1.1; ln(1 + 1.3 - .1) = ln 2.2, ln 2.1
# class: 1.3, -2 x .1, -1.1; as above
BY_HAND = {
    "readme": (0.5625, -0.34, -0.75, 0.8614077, 0.6715389),
    "script": (0.39, -0.12, -0.88, 0.7884574, 0.7419373),
    "class": (1.3, -0.2, -1.1, 0.7884574, 0.7419373),
}


def near(expected):
    return pytest.approx(expected, abs=1e-7)


def on_tokens(offsets, points):
    """Rewards of the tokens, of points at characters: spans that end there."""
    return place_spans(offsets, [(0, *point) for point in points]).tolist()


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_the_published_numbers(name):
    maps = RLFH_PRESETS[name]
    truth, ratings, beta = ([float(number) for number in part.split()] for part in PUBLISHED[name])
    assert dict(maps.truth) == dict(zip(ORDER, truth, strict=True))
    assert dict(maps.informativeness) == dict(zip((5, 4, 3, 2, 1), ratings, strict=True))
    assert [maps.truth_weight, maps.info_weight] == [1.0, beta[0]]
    assert (maps.epsilon, maps.mu, maps.default_for_none) == (-0.9, 1.0, 0.0)
    assert set(RLFH_PRESETS) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_preset_and_granularity_by_hand(name):
    maps = RLFH_PRESETS[name]
    right, wrong, vague, first, second = BY_HAND[name]
    points = rlfh_rewards(SENTENCES, "token", maps, 53)
    assert [end for end, _ in points] == [9, 19, 20, 35, 40, 50]
    assert [value for _, value in points] == near([right, wrong, first, vague, second, 0])
    points = rlfh_rewards(SENTENCES, "sentence", maps, 53)
    assert [end for end, _ in points] == [20, 40, 50]
    assert [value for _, value in points] == near([right + wrong + first, vague + second, 0])
    points = rlfh_rewards(SENTENCES, "paragraph", maps, 53)
    assert [end for end, _ in points] == [53]
    assert points[0][1] == pytest.approx(right + wrong + first + vague + second, abs=3e-7)


def test_weights_and_the_value_of_silence():
    maps = RLFHMaps(RLFH_PRESETS["class"].truth, RLFH_PRESETS["class"].informativeness, 2.0, 0.5, -0.5, 3.0, -0.25)
    assert statement_reward(HC, 1, maps) == near(-0.3)  # 2 x -1.5 x |-.1|
    assert sentence_reward([5, 5], maps) == near(0.8613833)  # .5 ln(3 + 2.6) = .5 x 1.7227666
    assert sentence_reward([1] * 9, maps) == near(0.4581454)  # .5 ln(3 - .5) = .5 x .9162907
    # A sentence without statements; one of NO_FACT alone, which are no statements; one that is not known.
    sentences = (RLFHSentence(4), RLFHSentence(8, ((7, N, 5), (8, N, None))), RLFHSentence(12, ((12, None, None),)))
    assert rlfh_rewards(sentences, "token", maps, 12) == [(4, -0.25), (8, -0.25)]
    assert rlfh_rewards(sentences, "sentence", maps, 12) == [(4, -0.25), (8, -0.25)]
    assert rlfh_rewards(sentences, "paragraph", maps, 12) == [(12, -0.5)]


def test_what_is_unknown_is_left_out_of_both_terms():
    maps = RLFH_PRESETS["class"]
    whole = RLFHSentence(9, ((3, S, 5), (5, None, 5), (6, C, None), (7, N, 4), (8, None, None)))
    alone = RLFHSentence(9, ((3, S, 5),))
    for granularity in RLFH_GRANULARITIES:
        points = rlfh_rewards([whole], granularity, maps, 9)
        assert points == rlfh_rewards([alone], granularity, maps, 9)
        assert sum(value for _, value in points) == near(1.3 + 0.8329091)  # 1 x 1.3 + ln 2.3
        assert rlfh_rewards([RLFHSentence(9, ((3, C, None), (4, N, 5)))], granularity, maps, 9) == []
        assert rlfh_rewards([], granularity, maps, 9) == []


def slow_rewards(text, sentences, preset, granularity):
    """Reward of every character. `sentences`: dictionaries with the place of the last character and string labels."""
    verdicts, ratings, beta = (list(map(float, part.split())) for part in PUBLISHED[preset])
    worth = dict(zip(NAMES, verdicts, strict=True))
    tells = dict(zip("54321", ratings, strict=True))
    paid = dict.fromkeys(range(len(text)), 0.0)
    for sentence in sentences:
        told, truths = 0.0, []
        for statement in sentence["statements"]:
            if statement["verdict"] in ("No fact", "?") or statement["score"] == "?":
                continue
            told += tells[statement["score"]]
            size = tells[statement["score"]] if tells[statement["score"]] > 0 else -tells[statement["score"]]
            truths.append((statement["last"], worth[statement["verdict"]] * size))
        if not truths:
            continue
        inside = 1.0 + told if told > -0.9 else 0.1
        for place, value in [*truths, (sentence["last"], beta[0] * math.log(inside))]:
            where = {"token": place, "sentence": sentence["last"], "paragraph": len(text) - 1}[granularity]
            paid[where] += value
    return paid


def random_completion(generator):
    """A text, its sentences as dictionaries and as ours, and tokens that cover it."""
    text, sentences, ours = "", [], []
    for _ in range(generator.randint(1, 5)):
        start = len(text)
        text += "x" * generator.randint(1, 30) + generator.choice((".", ". ", "。", "\n"))
        last = len(text.rstrip()) - 1
        scores = generator.choice(("12345?", "12345", "1"))  # useless ones alone reach the floor
        statements = [
            {
                "verdict": generator.choice((*NAMES, *NAMES, "No fact", "?")),
                "score": generator.choice(scores),
                "last": generator.randint(start, last),
            }
            for _ in range(generator.choice((0, 1, 2, 3, 15)))
        ]
        sentences.append({"last": last, "statements": statements})
        ours.append(
            RLFHSentence(
                last + 1,
                [
                    (
                        s["last"] + 1,
                        {"No fact": N, "?": None}.get(s["verdict"], OURS.get(s["verdict"])),
                        None if s["score"] == "?" else int(s["score"]),
                    )
                    for s in statements
                ],
            )
        )
    cuts = sorted({0, len(text), *(generator.randrange(len(text)) for _ in range(12))})
    return text, sentences, ours, list(itertools.pairwise(cuts))


@searched(200, 2000)
@pytest.mark.parametrize("preset", PUBLISHED)
def test_random_completions_equal_the_slow_version(preset, count):
    generator = random.Random(preset)
    floors = 0
    for _ in range(count):
        text, sentences, ours, offsets = random_completion(generator)
        totals = []
        for granularity in RLFH_GRANULARITIES:
            points = rlfh_rewards(ours, granularity, RLFH_PRESETS[preset], len(text))
            paid = slow_rewards(text, sentences, preset, granularity)
            by_character = dict.fromkeys(paid, 0.0)
            for end, value in points:
                by_character[end - 1] += value
            assert by_character == pytest.approx(paid, abs=1e-12)
            tokens = on_tokens(offsets, points)
            assert tokens == pytest.approx([sum(paid[i] for i in range(*place)) for place in offsets], abs=1e-5)
            totals.append(sum(value for _, value in points))
        assert totals == pytest.approx([totals[0]] * 3, abs=1e-12)
        for sentence in ours:  # the same in any order, to the last bit
            shuffled = RLFHSentence(sentence.end, generator.sample(sentence.statements, len(sentence.statements)))
            both = [rlfh_rewards([one], "sentence", RLFH_PRESETS[preset], len(text)) for one in (sentence, shuffled)]
            assert both[0] == both[1]
            floors += len(sentence.known) >= 10 and all(s.rating == 1 for s in sentence.known)
    assert floors > count / 20  # the floor was among the cases


def test_metrics_by_hand():
    sentences = (
        RLFHSentence(9, ((3, S, 5), (5, HS, 1), (6, None, 4), (7, N, 4))),
        RLFHSentence(19, ((13, U, 2), (15, C, 3), (16, S, None), (17, S, 4))),
        RLFHSentence(29),
    )
    # Known: S5, HS1, U2, C3, S4.
    assert rlfh_metrics(sentences) == {
        "statements": 5,
        "unknown": 2,
        "supported": 2,
        "hedged_supported": 1,
        "unverifiable": 1,
        "hedged_contradicted": 0,
        "contradicted": 1,
        "accuracy": 0.6,  # 3 of 5
        "valid_accuracy": 0.4,  # S5 and S4 of 5: what is rated 1 stays in the denominator
        "ground": 0.8,  # all but U2
        "info": 3.0,  # (5 + 1 + 2 + 3 + 4) / 5
        "refused": 0.0,
    }


def test_means_are_over_completions_that_state_something():
    sentences = [
        [RLFHSentence(9, ((3, S, 5), (4, C, 1)))],
        [RLFHSentence(9, ((3, S, 4), (4, S, 2), (5, S, 2), (6, U, 4), (7, None, 4)))],
        [],
        [RLFHSentence(9, ((3, None, 5),))],
    ]
    means = mean_rlfh_metrics([rlfh_metrics(row) for row in sentences])
    assert means == {
        "statements": 3.0,  # 2 and 4
        "supported": 2.0,  # 1 and 3
        "hedged_supported": 0.0,
        "unverifiable": 0.5,
        "hedged_contradicted": 0.0,
        "contradicted": 0.5,
        "accuracy": 0.625,  # 1/2 and 3/4
        "valid_accuracy": 0.625,
        "ground": 0.875,  # 1 and 3/4
        "info": 3.0,  # 3 and 3
        "refused": pytest.approx(1 / 3),  # the third of three; the fourth may state something
        "unknown_share": 0.25,  # 2 of 8
    }
    nothing = mean_rlfh_metrics([])
    assert set(nothing) == set(means) and set(nothing.values()) == {None}


def changed(**changes):
    given = {
        "truth": dict(RLFH_PRESETS["class"].truth),
        "informativeness": dict(RLFH_PRESETS["class"].informativeness),
    }
    for name, value in changes.items():
        given[name] = {**given.get(name, {}), **value} if isinstance(value, dict) else value
    return given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (changed(truth={N: 0.0}), "unknown label .*leave out .*NO_FACT"),
        ({**changed(), "truth": {S: 1.0, HS: 1.0, U: 1.0}}, r"\['hedged_contradicted', 'contradicted'\]; give all 5"),
        ({**changed(), "truth": {"true": 1.0}}, "unknown label 'true'; use RLFH's"),
        ({**changed(), "truth": [1.0]}, "truth must be a mapping, got list"),
        (changed(informativeness={6: 1.0}), "6 is no rating"),
        (changed(informativeness={"5": 1.0}), "informativeness has 5 twice, the second time as '5'"),
        ({**changed(), "informativeness": {5: 1, 4: 1, 3: 1, True: 1}}, "True is no rating"),
        ({**changed(), "informativeness": {5: 1.0}}, r"informativeness has no value for \[1, 2, 3, 4\]"),
        (changed(truth={S: float("nan")}), r"truth\['supported'\] must be a finite number, got nan"),
        (changed(informativeness={2: "1"}), r"informativeness\[2\] must be a finite number, got '1'"),
        (changed(informativeness={2: True}), "got True"),
        (changed(mu=float("inf")), "mu must be a finite number"),
        (changed(mu=10**400), "mu must be a finite number"),
        (changed(default_for_none=None), "default_for_none must be a finite number, got None"),
        (changed(mu=0.9), "mu=0.9 \\+ epsilon=-0.9 must be positive"),
        (changed(truth_weight=-1), "truth_weight=-1.0 must be at least 0"),
        (changed(info_weight=-0.5), "info_weight=-0.5"),
    ],
)
def test_maps_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        RLFHMaps(**arguments)


def test_maps_cannot_change_and_can_be_copied():
    given = changed()
    maps = RLFHMaps(**given)
    given["truth"][S] = 7.0
    assert maps.truth[S] == 1.0
    with pytest.raises(TypeError):
        maps.truth[S] = 7.0
    assert maps == RLFH_PRESETS["class"] == copy.deepcopy(maps) == pickle.loads(pickle.dumps(maps))
    assert maps != RLFH_PRESETS["script"]
    assert all(RLFHMaps.from_dict(vars(preset)) == preset for preset in RLFH_PRESETS.values())


@pytest.mark.parametrize("rating", [0, 6, "3", True])
def test_a_rating_of_a_function_of_the_user_is_checked(rating):
    with pytest.raises(ValueError, match=f"{rating!r} is no rating"):
        RLFHSentence(5, ((1, S, rating),))
