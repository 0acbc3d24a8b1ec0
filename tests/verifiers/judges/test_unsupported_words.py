"""`unsupported_words`: which words of a claim occur nowhere in its evidence."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_factuality.verifiers.judges.lexical.judge import unsupported_words
from tests.tables import cases


EVIDENCE = ("Ada Hale was born in Leeds in 1879.", "She wrote poems, and sold 3.5 million copies by 4 March 2001.")


def found(claim, evidence=EVIDENCE):
    return [claim[start:end] for start, end in unsupported_words(claim, evidence)]


@cases("lexical", "unsupported_words", "claim", "runs")
def test_runs(claim, runs):
    assert found(claim) == runs


def test_a_short_name_is_held_where_the_long_one_is():
    for claim, evidence in (("U.S.", "US"), ("United States", "U.S."), ("US", "United States"), ("U.S.", "U.S.")):
        assert found(f"The {claim} bank met.", (f"A bank of the {evidence} met.",)) == []
    assert found("The U.K. bank met.", ("A bank of the U.S. met.",)) == ["The U.K."]


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
