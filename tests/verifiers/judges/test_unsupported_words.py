"""`unsupported_words`: which words of a claim occur nowhere in its evidence."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_factuality.verifiers.judges.lexical import unsupported_words


EVIDENCE = ("Ada Hale was born in Leeds in 1879.", "She wrote poems, and sold 3.5 million copies by 4 March 2001.")


def found(claim, evidence=EVIDENCE):
    return [claim[start:end] for start, end in unsupported_words(claim, evidence)]


@pytest.mark.parametrize(
    ("claim", "runs"),
    [
        ("Ada Hale was born in Leeds in 1879.", []),
        ("Ada Hale was born in Leeds in 1880.", ["in 1880"]),  # a function word before an absent one goes with it
        ("Ada Hale, a doctor from York, wrote poems.", ["a doctor from York"]),  # ... and between two, but no comma
        ("Ada, doctor, teacher, wrote.", ["doctor, teacher"]),  # a mark between two
        ("Hale married and was born.", ["married"]),  # what follows does not
        ("Ada Hale's poems sold copies.", []),
        ("She sold 3,500,000 copies.", []),  # numbers and dates in any spelling
        ("She sold 3.6 million copies on 2001-03-04.", ["3.6 million"]),
        ("She sold copies on 2001-03-05.", ["on 2001-03-05"]),
        ("He was not.", []),  # function words only
        ("", []),
        ("爱因斯坦出生于德国。", []),
    ],
)
def test_runs(claim, runs):
    assert found(claim) == runs


def test_no_evidence_says_nothing():
    assert found("Ada Hale was born.", ()) == found("Ada Hale was born.", (" ",)) == []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_runs_are_sorted_disjoint_and_inside(claim, evidence):
    runs = unsupported_words(claim, (evidence,))
    flat = [bound for run in runs for bound in run]
    assert flat == sorted(flat) and all(a < b for a, b in runs)
    assert not flat or (flat[0] >= 0 and flat[-1] <= len(claim))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("violet amber crimson teal the of".split()), max_size=8))
def test_equals_a_set_difference_of_plain_words(words):
    """Oracle: content words that are not in the evidence, for words whose stem is unique."""
    claim = " ".join(words)
    flagged = {word for run in found(claim, ("Violet and teal.",)) for word in re.findall(r"\w+", run)}
    assert flagged - {"the", "of"} == set(words) & {"amber", "crimson"}
