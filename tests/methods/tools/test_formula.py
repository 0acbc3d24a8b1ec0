"""Formulas against arithmetic by hand."""

import pytest

from hf_factuality.methods.tools.formula import (
    CitedStatement,
    c_grpo_reward,
    citation_figures,
    citation_points,
    connected_rubrics,
    declining_reward,
    dr_tulu_citation_reward,
    search_cost,
)


ONE = CitedStatement(0, 10, True, (True,), (True,))
ALL = CitedStatement(11, 20, True, (True, False, False), (True, True, True))
NONE = CitedStatement(21, 30, False)
GONE = CitedStatement(31, 40, False, (False,), (False,))
UNKNOWN = CitedStatement(41, 50, None, (None,), (True,))


def test_citations_of_a_statement():
    assert [it.f1 for it in (ONE, ALL, NONE, GONE)] == [1.0, 0.5, 0.0, 0.0]  # of ALL: precision 1/3, recall 1
    assert citation_figures([ONE, ALL, NONE, GONE, UNKNOWN]) == {"recall": 0.5, "precision": 0.4, "f1": 0.375}
    assert citation_figures([NONE]) == {"recall": 0.0, "precision": None, "f1": 0.0}
    assert citation_figures([UNKNOWN]) == {"recall": None, "precision": None, "f1": None}


def test_points_are_paid_at_the_statement_and_more_statements_earn_no_more():
    assert citation_points([ONE, ALL]) == [(0, 10, 0.5), (11, 20, 0.25)]
    assert sum(value for *_, value in citation_points([ONE] * 5)) == pytest.approx(1.0)
    assert citation_points([ONE, UNKNOWN]) == [(0, 10, 1.0)]
    assert citation_points([UNKNOWN]) is None and citation_points([]) == []


def test_dr_tulu():
    """0.6 x mean F1 + 0.4 x citations that exist."""
    assert dr_tulu_citation_reward([ONE, GONE]) == pytest.approx(0.6 * 0.5 + 0.4 * 0.5)
    assert dr_tulu_citation_reward([NONE]) == 0.0 and dr_tulu_citation_reward([UNKNOWN]) is None


def test_rubrics_count_if_a_chain_of_supported_ones_leads_to_the_answer():
    entities = [["A", "B"], ["B", "C"], ["C", "D"], ["X", "Y"]]
    assert connected_rubrics([True] * 4, entities, "A") == [True, True, True, False]
    assert connected_rubrics([True, False, True, True], entities, "A") == [True, False, False, False]
    assert connected_rubrics([], [], "A") == []


def test_c_grpo_pays_rubrics_of_right_answers_alone():
    assert c_grpo_reward(1.0, 0.5) == pytest.approx(0.7 + 0.15) and c_grpo_reward(0.0, 1.0) == 0.0
    assert c_grpo_reward(1.0, 0.0) == pytest.approx(0.7)


def test_searching_and_declining():
    assert [search_cost(calls, 0.1, 2) for calls in (0, 2, 5)] == [0.0, 0.0, pytest.approx(-0.3)]
    values = {"right": 1.0, "invented": -1.0, "early": -0.5}
    cases = {
        (True, True, False): 1.0,
        (True, False, False): -0.5,
        (True, True, True): -0.5,
        (False, True, False): -1.0,
    }
    cases |= {(False, False, True): 0.0, (False, True, True): 0.0}
    for case, expected in cases.items():
        assert declining_reward(*case, values) == expected, case
