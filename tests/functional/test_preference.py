"""Which tokens of a preference pair count; expected values by hand and by slow loops."""

import pytest

from hf_factuality import Label, LabeledSpan
from hf_factuality.functional.preference import (
    FREE_OF_HALLUCINATION,
    HALLUCINATED,
    kept_window,
    span_token_mask,
)


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
#      a true one . | white space | a false one . | unjudged | template
OFFSETS = [(0, 4), (4, 8), (8, 9), (9, 10), (10, 14), (14, 18), (18, 22), (22, 29), (29, 29)]
SPANS = [LabeledSpan(0, 9, S), LabeledSpan(10, 18, C), LabeledSpan(18, 22, None)]


@pytest.mark.parametrize(
    "labels, outside, expected",
    [
        (FREE_OF_HALLUCINATION, "drop", [1, 1, 1, 0, 0, 0, 0, 0, 0]),
        (HALLUCINATED, "drop", [0, 0, 0, 0, 1, 1, 0, 0, 0]),
        (FREE_OF_HALLUCINATION, "after_last", [1, 1, 1, 0, 0, 0, 0, 2, 2]),
        (HALLUCINATED, "after_last", [0, 0, 0, 0, 1, 1, 0, 2, 2]),
        (FREE_OF_HALLUCINATION, "keep", [1, 1, 1, 2, 0, 0, 0, 2, 2]),
        (tuple(Label), "keep", [1, 1, 1, 2, 1, 1, 0, 2, 2]),  # not judged: never counts
        (None, "drop", [1] * 9),
    ],
)
def test_span_token_mask(labels, outside, expected):
    assert span_token_mask(OFFSETS, SPANS, labels, outside) == expected


def test_the_papers_labels_part_all_labels_in_two():
    assert sorted(FREE_OF_HALLUCINATION + HALLUCINATED) == sorted(Label)
    assert N in FREE_OF_HALLUCINATION and U in HALLUCINATED


def test_without_spans_nothing_counts_but_by_rule():
    assert span_token_mask([(0, 2), (2, 4)], [], [S], "drop") == [0, 0]
    assert span_token_mask([(0, 2), (2, 4)], [], [S], "after_last") == [0, 0]  # there is no last span
    assert span_token_mask([(0, 2), (2, 4)], [], [S], "keep") == [2, 2]


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
def test_kept_window_equals_cutting_a_list(mode):
    for prompt in range(4):
        for completion in range(5):
            for max_length in (None, *range(1, 10)):
                sequence = [("p", i) for i in range(prompt)] + [("c", i) for i in range(completion)]
                if max_length is not None:
                    sequence = sequence[:max_length] if mode == "keep_start" else sequence[-max_length:]
                expected = [i for side, i in sequence[1:] if side == "c"]  # nothing predicts the first token
                start, end = kept_window(prompt, completion, max_length, mode)
                assert list(range(completion))[start:end] == expected, (prompt, completion, max_length)
