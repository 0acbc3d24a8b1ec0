"""The one table of results: what of a change is more than noise, and its two forms."""

import math

import pytest

from hf_factuality.hub.tables import before_and_after, change_interval, change_verdict, format_table


def entry(value, low=None, high=None, level=0.95, **more):
    interval = None if low is None else {"low": low, "high": high, "level": level}
    return {
        "metric": "accuracy", "value": value, "confidence_interval": interval, "higher_is_better": True, "n": 9, "n_scored": 9,
        **more,
    }  # fmt: skip


def test_the_interval_of_a_change_by_hand():
    # 0.3 -+ the roots of 0.1^2 + 0.2^2 and of 0.05^2 + 0.1^2.
    found = change_interval(entry(0.4, 0.3, 0.6), entry(0.7, 0.6, 0.75))
    assert found == pytest.approx((0.3 - math.sqrt(0.05), 0.3 + math.sqrt(0.0125)))
    # Symmetric intervals: that of a difference of two normal means.
    low, high = change_interval(entry(0.5, 0.4, 0.6), entry(0.5, 0.4, 0.6))
    assert (low, high) == pytest.approx((-0.1 * math.sqrt(2), 0.1 * math.sqrt(2)))


def test_without_both_intervals_nothing_is_known():
    known = entry(0.5, 0.4, 0.6)
    for other in (entry(0.5), entry(None, 0.4, 0.6), entry(0.5, 0.4, 0.6, level=0.9)):
        assert change_interval(known, other) is None and change_interval(other, known) is None
    assert change_verdict(None, True) == "unknown" and change_verdict((math.nan, math.nan), True) == "unknown"


@pytest.mark.parametrize(
    ("interval", "higher", "expected"),
    [
        ((0.1, 0.2), True, "better"),
        ((0.1, 0.2), False, "worse"),
        ((-0.2, -0.1), True, "worse"),
        ((-0.2, -0.1), False, "better"),
        ((0.1, 0.2), None, "changed"),
        ((-0.1, 0.2), True, "within noise"),
        ((0.0, 0.2), True, "within noise"),
    ],
)
def test_what_is_more_than_noise(interval, higher, expected):
    assert change_verdict(interval, higher) == expected


def test_rows_of_two_models():
    (row,) = before_and_after([entry(0.1, 0.05, 0.15, title="right")], [entry(0.9, 0.85, 0.95, n_scored=8)])
    assert (row["measure"], row["change"], row["verdict"], row["n"]) == ("right", "+0.800", "better", "9 / 8")


def test_text_and_markdown_have_the_same_cells():
    rows = [{"a": "x|y", "empty": "", "n": 1}, {"a": "z", "empty": "", "n": 22}]
    assert format_table(rows).splitlines() == ["a    n", "---  --", "x|y  1", "z    22"]
    assert format_table(rows, markdown=True).splitlines() == [
        "| a | n |",
        "|---|---|",
        "| x\\|y | 1 |",
        "| z | 22 |",
    ]


def test_a_table_fits_a_width_and_loses_no_text():
    rows = [{"metric": "abstention", "value": "0.5", "parts": " ".join(f"part{n} 0.{n}," for n in range(30))}] * 2
    wide = format_table(rows)
    assert max(map(len, wide.splitlines())) > 200
    for width in (60, 40):
        text = format_table(rows, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert all(text.count(word) == wide.count(word) for word in ("abstention", "part7 0.7,", "part29"))
    assert format_table(rows, width=1000) == wide
    many = [{f"column {n}": "a value" for n in range(9)}]
    assert format_table(many, width=40).splitlines()[:2] == ["column 0  a value", "column 1  a value"]
