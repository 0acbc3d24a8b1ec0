"""Hand-counted characters: `text` is written out above each case."""

import random

import pytest
import torch

from hf_factuality.functional import (
    BINARY_VALUES,
    CREDITS,
    TERNARY_VALUES,
    credit_name,
    fill_unjudged,
    separate_spans,
    shape_advantages,
    span_values,
    token_span_index,
    token_values,
)
from hf_factuality.spans import Label, LabeledSpan


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
#       0123456789...
TEXT = "Ann ran. Bob sat."
SPANS = [LabeledSpan(0, 8, S), LabeledSpan(9, 17, C)]


def test_tokens_get_the_span_that_holds_their_characters():
    #          Ann     ran     .       _       Bob      _sat      .         <end>
    offsets = [(0, 3), (3, 7), (7, 8), (8, 9), (9, 12), (12, 16), (16, 17), (17, 17)]
    assert token_span_index(offsets, SPANS) == [0, 0, 0, -1, 1, 1, 1, -1]


def test_a_token_across_two_spans_goes_to_the_larger_share():
    # ". Bo": one character of the first sentence, two of the second. "n. B": two and one. "n. Bo": a tie, the first.
    assert token_span_index([(7, 11)], SPANS) == [1]
    assert token_span_index([(6, 10)], SPANS) == [0]
    assert token_span_index([(6, 11)], SPANS) == [0]


def test_several_tokens_of_one_character_and_overlapping_spans():
    # A character of four bytes in four tokens; a clause inside a sentence keeps the sentence's tokens (a tie: the first).
    assert token_span_index([(0, 1)] * 4 + [(1, 2)], [LabeledSpan(0, 1, S)]) == [0, 0, 0, 0, -1]
    assert token_span_index([(0, 4), (4, 8)], [LabeledSpan(4, 8, C), LabeledSpan(0, 8, S)]) == [1, 0]


def test_where_claims_overlap_the_lowest_counts():
    # Characters: 0-9 the first alone, 10-13 both, 14-19 the second alone. A token with its space belongs to its word.
    claims = [LabeledSpan(0, 14, S), LabeledSpan(10, 20, C)]
    offsets = [(0, 5), (5, 9), (9, 12), (12, 14), (14, 20)]
    for spans in (claims, claims[::-1]):
        assert token_values([offsets], [spans], TERNARY_VALUES, 5).tolist() == [[1, 1, -1, -1, -1]]
    # A claim within another one; a failure counts where nothing else does; the same range twice.
    spans = [LabeledSpan(0, 12, S), LabeledSpan(1, 4, C), LabeledSpan(8, 16, None), LabeledSpan(8, 12, U)] * 2
    offsets = [(0, 4), (4, 6), (6, 8), (8, 12), (12, 16), (16, 18)]
    assert token_values([offsets], [spans], TERNARY_VALUES, 6, 0.5).tolist() == [[-1, 1, 1, 0, 0, 0.5]]
    pieces, values = separate_spans(spans, span_values(spans, BINARY_VALUES))
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 1), (1, 4), (4, 8), (8, 12), (12, 16)]
    assert values == [1, -1, 1, -1, None]


def test_spans_that_only_touch_stay_as_they_are():
    spans = [LabeledSpan(9, 17, C), LabeledSpan(0, 8, S), LabeledSpan(8, 9, None), LabeledSpan(17, 17, U)]
    assert separate_spans(spans, [-1, 1, None, 0]) == (spans, [-1, 1, None, 0])
    assert separate_spans([], []) == ([], [])


def test_pieces_are_what_a_loop_over_characters_finds():
    draw = random.Random(0)
    for _ in range(200):
        places = [sorted(draw.sample(range(30), 2)) for _ in range(draw.randint(2, 8))]
        spans = [LabeledSpan(*both, draw.choice([S, C, U, None])) for both in places]
        values = span_values(spans, TERNARY_VALUES)
        pieces, found = separate_spans(spans, values)
        for character in range(30):
            over = [v for span, v in zip(spans, values, strict=True) if span.start <= character < span.end]
            known = [v for v in over if v is not None]
            piece = [v for p, v in zip(pieces, found, strict=True) if p.start <= character < p.end]
            assert piece == ([min(known)] if known else [None] if over else [])


def test_credit_by_name_and_by_function():
    advantages, labels = torch.tensor([2.0, -1.0]), torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    expected = {
        "flip": [[2, 2, -2], [1, -1, -1]],
        "additive": [[2.5, 2, 1.5], [-0.5, -1, -1.5]],
        "scaled": [[3, 2, 1], [-0.5, -1, -1.5]],
        "none": [2, -1],
    }
    by_labels = [name for name, credit in CREDITS.items() if credit.rewards is None]
    assert {name: shape_advantages(name, advantages, labels, mask, 0.5).tolist() for name in by_labels} == expected
    with pytest.raises(ValueError, match="credit='to_go' reads what tokens earn"):
        shape_advantages("to_go", advantages, labels, mask)

    def doubled(advantages, labels, mask):
        return 2 * advantages[:, None].double() * mask.log()

    shaped = shape_advantages(doubled, advantages, labels, mask)
    assert shaped.tolist() == [[0, 0, 0], [0, 0, 0]] and shaped.dtype == torch.float32
    assert credit_name(doubled).endswith("test_credit:test_credit_by_name_and_by_function.<locals>.doubled")
    assert credit_name("flip") == "flip"


@pytest.mark.parametrize(
    ("credit", "got"),
    [
        (lambda advantages, labels, mask: advantages, r"\(2,\), torch.float32"),
        (lambda advantages, labels, mask: mask, "torch.bool"),
        (lambda advantages, labels, mask: None, "None"),
        (lambda advantages, labels, mask: advantages[:, None, None] * labels, r"\(2, 2, 3"),
    ],
)
def test_another_result_of_a_function_is_refused(credit, got):
    labels = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=rf"credit=.*<lambda> returned .*{got}.*shape \(B, T\)"):
        shape_advantages(credit, torch.ones(2), labels, labels == 0)


def test_token_values_pad_fail_and_outside():
    offsets = [[(0, 8), (8, 9), (9, 17), (17, 17)], [(0, 8)]]
    spans = [[LabeledSpan(0, 8, S), LabeledSpan(9, 17, None)], [LabeledSpan(0, 8, N)]]
    values = token_values(offsets, spans, TERNARY_VALUES, 5)
    assert values.dtype == torch.float32
    assert values.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    # The released code: +1 outside the sentences, -1 for everything that is not supported. A failure stays 0.
    values = token_values(offsets, spans, BINARY_VALUES, 5, outside=[1.0, 0.0])
    assert values.tolist() == [[1, 1, 0, 1, 0], [-1, 0, 0, 0, 0]]
    assert token_values([], [], TERNARY_VALUES, 3).shape == (0, 3)


def test_token_values_refuse_rows_that_do_not_fit():
    with pytest.raises(ValueError, match="2 tokens, more than length=1"):
        token_values([[(0, 1), (1, 2)]], [[]], TERNARY_VALUES, 1)
    with pytest.raises(ValueError, match="offsets of 1 completions and spans of 2"):
        token_values([[]], [[], []], TERNARY_VALUES, 1)


def test_values_of_all_labels():
    spans = [LabeledSpan(0, 1, label) for label in [*Label, None]]
    assert span_values(spans, TERNARY_VALUES) == [1, 1, 0, -1, -1, 0, None]
    assert span_values(spans, BINARY_VALUES) == [1, 1, -1, -1, -1, -1, None]


def test_unjudged_rows_take_the_mean_of_their_group():
    nan = float("nan")
    filled = fill_unjudged(torch.tensor([1.0, nan, 0.0, 0.5, nan, nan, 1.0, nan, nan, nan, nan, nan]), 4)
    assert filled[:4].tolist() == [1.0, 0.5, 0.0, 0.5]
    assert fill_unjudged(torch.tensor([1.0, nan, 0.5]), 1).tolist()[::2] == [
        1.0,
        0.5,
    ]  # nothing to compare with, or to fill
    assert torch.isnan(filled[4:]).all()  # one judged row has nothing to be compared with, none even less
    with pytest.raises(ValueError, match="groups of 5"):
        fill_unjudged(torch.zeros(12), 5)
