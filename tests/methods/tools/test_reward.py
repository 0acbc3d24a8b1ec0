"""Rewards of rollouts that search, by an exact verifier."""

import json

import pytest

from hf_factuality.errors import DataError
from hf_factuality.methods.tools.reward import (
    CitationReward,
    DecliningReward,
    RubricReward,
    SearchCost,
    StatedAnswerReward,
)
from hf_factuality.spans import Label, LabeledSpan, Verification


FOUND = ["Vellin is a town in Arlandia.", "Mara was born in Vellin.", "Mara worked in Ostry."]


class Contains:
    """Supported is what a passage says word for word; a text with '?!' cannot be judged, and 'Hm' states nothing."""

    requires_evidence = True

    def __init__(self):
        self.asked = []

    def verify(self, inputs):
        self.asked += inputs
        return [self.one(item) for item in inputs]

    def one(self, item):
        if "broken" in item.completion:
            return Verification(error="broken")
        said = item.completion.strip()
        label = Label.SUPPORTED if any(said in passage for passage in item.evidence) else Label.CONTRADICTED
        label = Label.NO_FACT if said.startswith("Perhaps") else label
        return Verification((LabeledSpan(0, len(item.completion), label),))


TEXTS = {
    "one each": ("Mara was born in Vellin [2]. Vellin is a town in Arlandia [1].", [0.5, 0.5]),
    "everything": ("Mara was born in Vellin [1][2][3].", [0.5]),  # precision 1/3
    "wrong and none": ("Mara was born in Vellin [3]. Mara worked in Ostry.", [0.0, 0.0]),
    "not there": ("Mara was born in Vellin [9].", [0.0]),
    "no fact": ("Perhaps it rained there. Mara was born in Vellin [2].", [1.0]),
    "nothing": ("", []),
}


@pytest.mark.parametrize("name", TEXTS)
def test_citations_are_paid_where_the_statement_ends(name):
    text, expected = TEXTS[name]
    (points,) = CitationReward(Contains())(completion_texts=[text], retrieved=[FOUND])
    assert [value for *_, value in points] == expected
    assert all(text[:end].rstrip(" [0-9].").strip() for _, end, _ in points)
    (total,) = CitationReward(Contains(), at="end")(completion_texts=[text], retrieved=[FOUND])
    assert total == pytest.approx(sum(expected))


def test_each_question_is_asked_once_and_unknown_is_not_wrong():
    verifier = Contains()
    text = "Mara was born in Vellin [2]. It is broken [1]."
    found = CitationReward(verifier)(completion_texts=[text, text], retrieved=[FOUND, FOUND])
    assert found[0] == [(0, text.index(" It"), 1.0)] == found[1]
    assert len(verifier.asked) <= 2 + 2  # what failed is sent again, alone
    assert CitationReward(Contains())(completion_texts=[text[29:], text], retrieved=[FOUND, FOUND])[0] is None


def test_without_tools_it_says_what_it_needs():
    with pytest.raises(DataError, match="pass tools or environment_factory"):
        CitationReward(Contains())(completion_texts=["a"])
    with pytest.raises(ValueError, match="set at='end'"):
        CitationReward(Contains(), formula="dr_tulu")


def test_rubrics():
    rubrics = [
        {"text": FOUND[1], "entities": ["Mara", "Vellin"]},
        {"text": FOUND[0], "entities": ["Vellin", "Arlandia"]},
    ]
    texts = [
        "Mara was born in Vellin [2], in Arlandia [1].",
        "Mara was born in Vellin [2].",
        "Mara, Vellin, Arlandia.",
    ]
    columns = {"completion_texts": texts, "retrieved": [FOUND] * 3, "rubrics": [rubrics, json.dumps(rubrics), rubrics]}
    assert RubricReward(Contains())(**columns) == [1.0, 0.5, 0.0]
    paid = RubricReward(Contains(), outcome=lambda **row: [1.0, 1.0, 0.0])(**columns)
    assert paid == [1.0, pytest.approx(0.85), 0.0]
    assert RubricReward(Contains())(**{**columns, "rubrics": [[], [FOUND[1]], None]}) == [None, 1.0, None]
    with pytest.raises(DataError, match="'rubrics' must hold"):
        RubricReward(Contains())(**{**columns, "rubrics": [7, 7, 7]})


def rollout(text, calls):
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}] * calls + [
        {"role": "assistant", "content": text}
    ]


def test_searches_cost():
    completions = [rollout("a", 0), rollout("a", 3), "text"]
    assert SearchCost(0.1, 1)(completions) == [0.0, pytest.approx(-0.2), 0.0]
    with pytest.raises(ValueError, match="must not be negative"):
        SearchCost(-1.0)


def test_declining_is_paid_where_nobody_of_the_group_found_anything():
    declines, answers = "I don't know.", "Mara was born in Vellin."
    prompts = [[{"role": "user", "content": question}] for question in "aaabb"]
    texts = [declines, declines, answers, declines, answers]
    given = dict(
        prompts=prompts, completions=[rollout(text, calls) for text, calls in zip(texts, (1, 0, 1, 1, 1), strict=True)],
        completion_texts=texts,
    )  # fmt: skip
    expected = [1.0, -0.5, -1.0, -0.5, 0.0]  # the fourth searched for nothing: another one found something
    assert DecliningReward(found="passages")(**given, retrieved=[[], [], [], [], FOUND]) == expected
    for error in (dict(given), {**given, "retrieved": [FOUND] * 5}):
        with pytest.raises(DataError):
            DecliningReward()(**error)
    with pytest.raises(ValueError, match="found='all'"):
        DecliningReward(found="all")


def test_a_passage_that_supports_nothing_that_is_said_is_nothing_found():
    """Most searches always return something."""
    declines, answers = "I don't know.", "Mara was born in Vellin."
    texts = [declines, answers, declines, answers, declines, answers]
    told = [None, Label.UNVERIFIABLE, None, Label.SUPPORTED, None, "failed"]
    verifications = [
        Verification(error="down") if label == "failed" else Verification((LabeledSpan(0, 5, label),) if label else ())
        for label in told
    ]
    found = DecliningReward()(
        list("aabbcc"), [rollout(text, 1) for text in texts], completion_texts=texts, retrieved=[FOUND] * 6,
        verifications=verifications,
    )  # fmt: skip
    assert found == [1.0, -1.0, -0.5, 0.0, None, None]


def test_an_answer_may_state_the_gold_answer_anywhere():
    texts = ["Mara was born in Vellin [2].", "<think>Vellin?</think> It is Ostry.", "I don't know.", "Vellin"]
    found = StatedAnswerReward()([None] * 4, completion_texts=texts, answer=[["Vellin"], "Vellin", ["Vellin"], None])
    assert found == [1.0, 0.0, 0.0, None]


def test_a_passage_that_only_repeats_its_call_supports_nothing_and_keeps_its_number():
    text = "Mara was born in Vellin [2]. Mara worked in Ostry [3]."
    (points,) = CitationReward(Contains())(completion_texts=[text], retrieved=[[FOUND[0], "", FOUND[2]]])
    assert [value for *_, value in points] == [0.0, 0.5]


def test_processes_without_a_statement_count_their_batches_too(monkeypatch):
    """Their exchange would wait for ever for the one that states nothing."""
    reward, counted = CitationReward(Contains()), []
    monkeypatch.setattr(reward.judging.unjudged, "add", lambda *given: counted.append(given))
    assert reward(completion_texts=["", ""], retrieved=[FOUND, []]) == [[], []] and len(counted) == 1
