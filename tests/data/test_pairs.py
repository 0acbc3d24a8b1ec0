"""Pairs of one question: scores and selections by hand, every filter."""

import pytest

from hf_factuality.data.pairs import PairConfig, PairReport, choose_pairs, hallucination_free_share
from hf_factuality.errors import DataError, SpanError
from hf_factuality.spans import Label, LabeledSpan, Verification


MARKS = {
    "s": Label.SUPPORTED,
    "h": Label.HEDGED_SUPPORTED,
    "c": Label.CONTRADICTED,
    "d": Label.HEDGED_CONTRADICTED,
    "u": Label.UNVERIFIABLE,
    "n": Label.NO_FACT,
    "?": None,
}


def verification(marks):
    return Verification(tuple(LabeledSpan(i, i + 1, MARKS[mark]) for i, mark in enumerate(marks)))


def chosen(*responses, report=None, **settings):
    """Pairs as (chosen, rejected); a response is its marks, one character per sentence."""
    pairs = choose_pairs(responses, map(verification, responses), PairConfig(**settings), report)
    return [(pair.chosen.text, pair.rejected.text) for pair in pairs]


@pytest.mark.parametrize(
    ("marks", "share"),
    [("ssc", 2 / 3), ("n", 1.0), ("sncu", 0.5), ("hd", 0.5), ("s?", 1.0), ("c?c", 0.0), ("??", None), ("", None)],
)
def test_share(marks, share):
    assert hallucination_free_share(verification(marks).spans) == share


def test_best_against_worst():
    assert chosen("sc", "sss", "cc", "scc") == [("sss", "cc")]
    assert chosen("sc", "sss", "cc", "scc", pairs_per_question=2) == [("sss", "cc"), ("sc", "scc")]


def test_of_equal_scores_the_earlier_is_better():
    assert chosen("sc", "cs", "us") == [("sc", "us")]


def test_filters():
    def dropped(*responses, **settings):
        report = PairReport()
        assert chosen(*responses, report=report, **settings) == []
        assert report.pairs == 0
        return dict(report.dropped)

    assert dropped("sc", "sc") == {"identical": 1}
    assert dropped("cc", "u") == {"nothing_correct_in_chosen": 1}
    assert dropped("ss", "sn") == {"nothing_wrong_in_rejected": 1}
    assert dropped("ss") == {"too_few_responses": 1}
    assert dropped("ss", "?") == {"not_judged": 1, "too_few_responses": 1}
    assert dropped("ssc", "sc", min_margin=0.2) == {"margin": 1}
    assert dropped("n", "c", correct="supported") == {"nothing_correct_in_chosen": 1}
    assert chosen("n", "c") == [("n", "c")]


def test_sides_never_share_a_response():
    report = PairReport()
    assert chosen("ss", "sc", "cc", pairs_per_question=2, report=report) == [("ss", "cc")]
    assert report.dropped == {"too_few_responses": 1}


def test_failed_verifications_are_left_out_and_counted():
    report = PairReport()
    found = [verification("ss"), None, Verification(error="timed out"), verification("c")]
    pairs = choose_pairs(["ss", "cc", "cc", "c"], found, report=report)
    assert [(pair.chosen.index, pair.rejected.index) for pair in pairs] == [(0, 3)]
    assert (report.questions, report.responses, report.pairs, report.dropped["not_judged"]) == (1, 4, 1, 2)


def test_bad_input():
    with pytest.raises(DataError, match="2 responses have 1 verifications"):
        choose_pairs(["a", "b"], [None])
    with pytest.raises(SpanError, match="ends after"):
        choose_pairs(["s", "c"], [verification("ss"), None])
    for wrong in ({"pairs_per_question": 0}, {"correct": "true"}, {"min_margin": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PairConfig(**wrong)
