"""Hand-counted characters, and a walk over every character of random texts."""

import random

import pytest
import torch

from hf_factuality.functional.token_rewards import place_spans


#        0123456789012345678
TEXT = "Ann ran. Bob sat."
#           Ann     _ran    .       _Bob     _sat      .         <end>
OFFSETS = [(0, 3), (3, 7), (7, 8), (8, 12), (12, 16), (16, 17), (17, 17)]


def placed(points, offsets=OFFSETS):
    """Of spans from the beginning of the text, by where they end."""
    return place_spans(offsets, [(0, *point) for point in points]).tolist()


def test_a_value_goes_to_the_token_of_the_last_character_before_its_end():
    assert placed([(8, 1.0)]) == [0, 0, 1, 0, 0, 0, 0]  # "." of the first sentence
    assert placed([(7, 1.0)]) == [0, 1, 0, 0, 0, 0, 0]
    assert placed([(6, 1.0)]) == [0, 1, 0, 0, 0, 0, 0]  # inside " ran"
    assert placed([(9, 1.0)]) == [0, 0, 0, 1, 0, 0, 0]  # the space belongs to " Bob"
    assert placed([(17, 1.0)]) == [0, 0, 0, 0, 0, 1, 0]  # not the special token after the text
    assert placed([(1, 1.0)]) == [1, 0, 0, 0, 0, 0, 0]


def test_nothing_before_the_first_token_is_lost():
    assert placed([(0, 1.0)]) == [1, 0, 0, 0, 0, 0, 0]
    # A special token first: it holds no character. And a text whose first two characters no token holds.
    assert placed([(0, 1.0), (2, 2.0)], [(0, 0), (0, 3), (3, 5)]) == [0, 3, 0]
    assert placed([(1, 1.0), (2, 2.0)], [(2, 4), (4, 5)]) == [3, 0]
    # Nothing but special tokens.
    assert placed([(0, 1.0)], [(0, 0), (0, 0)]) == [1, 0]


def test_tokens_that_share_a_character():
    # A character of four bytes in four tokens: it is said with the last one. An empty token among them holds nothing.
    assert placed([(1, 1.0)], [(0, 1)] * 4 + [(1, 2)]) == [0, 0, 0, 1, 0]
    assert placed([(1, 1.0)], [(0, 1), (0, 0), (0, 1), (0, 0)]) == [0, 0, 1, 0]
    # One token with a whole character and a part of the next one.
    assert placed([(1, 1.0), (2, 4.0)], [(0, 2), (1, 2), (2, 3)]) == [1, 4, 0]


def test_values_are_added_and_a_row_may_be_empty():
    rewards = place_spans([(0, 2)], [(1, 2, -1.0), (0, 1, 3.0)])
    assert rewards.dtype == torch.float32 and rewards.tolist() == [2]
    assert place_spans([], []).shape == (0,) and place_spans([], []).dtype == torch.float32


def test_sums_are_exact_before_they_are_rounded_to_float32():
    # Even in float64, 1e17 + 1 is 1e17.
    assert placed([(3, 1e17), (2, 1.0), (1, -1e17)]) == [1, 0, 0, 0, 0, 0, 0]


def test_random_texts_equal_a_walk_over_the_characters():
    generator = random.Random(0)
    for _ in range(300):
        owners, offsets = [], []  # per character the tokens that hold it
        for token in range(generator.randint(1, 12)):
            width = generator.choice((0, 0, 1, 1, 2, 5))
            start = len(owners)
            if width and owners and generator.random() < 0.2:  # shares the last character with its neighbour
                start -= 1
                owners[-1].append(token)
                width -= 1
            owners += [[token] for _ in range(width)]
            offsets.append((start, len(owners)))
        points = [
            (generator.randint(0, len(owners)), generator.uniform(-2, 2)) for _ in range(generator.randint(0, 6))
        ]
        expected = [0.0] * len(offsets)
        for end, value in points:
            said = [token for held in owners[:end] for token in held] or [owners[0][0] if owners else 0]
            expected[max(said) if end else said[0]] += value
        rewards = placed(points, offsets)
        assert rewards == pytest.approx(expected, abs=1e-6)
        assert sum(rewards) == pytest.approx(sum(value for _, value in points), abs=1e-5)


@pytest.mark.parametrize(
    ("offsets", "spans", "message"),
    [
        ([], [(0, 1, 1.0)], "1 spans and no token"),
        ([(0, 3)], [(2, 1, 1.0)], r"span \[2, 1\) is not a range"),
        ([(0, 3)], [(-1, 1, 1.0)], r"span \[-1, 1\)"),
        ([(0, 3)], [(0, 4, 1.0)], r"span \[0, 4\) is not a range of its 3 characters"),
        ([(0, 3)], [(0, 2.0, 1.0)], r"span \[0, 2.0\)"),
        ([(0, 3)], [(True, 2, 1.0)], r"span \[True, 2\)"),
        ([(0, 3)], [(0, 2, float("nan"))], r"value of span \[0, 2\) is nan"),
        ([(0, 3)], [(0, 2, float("-inf"))], "is -inf"),
        ([(0, 3)], [(0, 2, None)], "is None; leave out what is unknown"),
        ([(0, 3)], [(0, 2, 2e38), (0, 1, 2e38)], "reward of token 0 is 4e\\+38, too large for float32"),
    ],
)
def test_wrong_spans_are_refused_by_name(offsets, spans, message):
    with pytest.raises(ValueError, match=message):
        place_spans(offsets, spans)
