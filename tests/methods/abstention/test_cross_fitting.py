"""Refusals by sureness: who is asked of whom, what is learnt, and that the folder trains a model."""

import json

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.data import refusals_by_sureness
from hf_factuality.errors import DataError
from hf_factuality.methods.abstention import cross_fitting


ROWS = [{"id": f"q{n}", "question": f"Where was person {n} born?", "answer": ["Ulm", "Ulm city"]} for n in range(11)]


@pytest.fixture
def asked(monkeypatch):
    """A model that is as sure of question n as n, and which questions it was asked after learning what."""
    found = []

    def answers(model, tokenizer, prompts, **settings):
        texts = [messages[-1]["content"] for messages in prompts]
        found.append((model, texts))
        return [{"answer": "Bern", "p_pred": int(text.split()[3]) / 100} for text in texts]

    monkeypatch.setattr(cross_fitting, "answers_with_probability", answers)
    return found


def learn(dataset):
    """The questions stand for the model that learnt them."""
    assert all(said == [{"role": "assistant", "content": "Ulm"}] for said in dataset["completion"])
    return [messages[-1]["content"] for messages in dataset["prompt"]], None


@pytest.mark.parametrize("folds", [2, 3, 11])
def test_no_question_is_asked_of_a_model_that_learnt_it(asked, tmp_path, folds):
    refusals_by_sureness(ROWS, learn, tmp_path, folds=folds)
    everything = {row["question"] for row in ROWS}
    assert len(asked) == folds and sorted(text for _, texts in asked for text in texts) == sorted(everything)
    for learnt, texts in asked:
        assert not set(learnt) & set(texts) and set(learnt) | set(texts) == everything


def test_equal_questions_stay_together(asked, tmp_path):
    rows = [row | {"id": f"{row['id']} {n}"} for row in ROWS for n in range(3)]
    refusals_by_sureness(rows, learn, tmp_path)
    for learnt, texts in asked:
        assert not set(learnt) & set(texts)
    with pytest.raises(DataError, match="there are 1"):
        refusals_by_sureness(rows[:3], learn, tmp_path)


def test_a_question_that_is_too_long_is_left_out_and_counted(tiny_model, tmp_path, caplog):
    parts = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    long = {"id": "long", "question": "Where was she born? " * 1000, "answer": "Ulm"}
    found = refusals_by_sureness([*ROWS[:3], long], lambda dataset: parts, tmp_path, max_new_tokens=2)
    assert found["id"] == ["q0", "q1", "q2"] and "1 questions are left out" in caplog.text
    assert json.loads((tmp_path / "report.json").read_text())["not_asked"] == 1
    with pytest.raises(DataError, match="none of the 2 questions"):
        longer = long | {"id": "longer", "question": long["question"] * 2}
        refusals_by_sureness([long, longer], lambda dataset: parts, tmp_path)


@pytest.mark.parametrize("share, answered", [(0.6, 7), (0.01, 1), (0.5, 6), (0.99, 11)])
def test_the_surest_get_the_gold_answer(asked, tmp_path, share, answered):
    found = refusals_by_sureness(ROWS, learn, tmp_path, answered_share=share, refusals=("No idea.",))
    assert [row["sure"] for row in found] == [False] * (11 - answered) + [True] * answered
    assert [row["completion"][0]["content"] for row in found] == ["No idea."] * (11 - answered) + ["Ulm"] * answered
    assert found["sureness"] == pytest.approx([n / 100 for n in range(11)]) and set(found["said"]) == {"Bern"}
    assert found["answer"][0] == ["Ulm", "Ulm city"] and found["id"] == [row["id"] for row in ROWS]


def test_the_folder_has_the_dataset_and_says_what_it_is(asked, tmp_path):
    found = refusals_by_sureness(ROWS, learn, tmp_path / "one", seed=3)
    again = refusals_by_sureness(ROWS, learn, tmp_path / "again", seed=3)
    assert load_dataset(str(tmp_path / "one"), split="train").to_list() == again.to_list()
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert (report["questions"], report["answered"], report["folds"]) == (11, 7, 2)
    assert "7 of 11 questions" in found.info.description and found.info.description.endswith("(surest)")
    other = refusals_by_sureness(ROWS, learn, tmp_path / "other", seed=4)
    assert other["completion"] != found["completion"], "the seed draws refusals"


@pytest.mark.parametrize(
    "rows, settings, kind, named",
    [
        (ROWS, {"answered_share": 1.0}, ValueError, "answered_share is between 0 and 1, got 1.0"),
        (ROWS, {"answered_share": 0}, ValueError, "got 0"),
        (ROWS, {"folds": 1}, DataError, "1 folds"),
        (ROWS[:2], {"folds": 3}, DataError, "of which there are 2"),
        (ROWS, {"refusals": (" ",)}, ValueError, "not blank"),
        (ROWS, {"language": "de"}, ValueError, "'de'"),
        ([*ROWS, {"question": "Why?"}], {}, DataError, "no gold answer"),
        ([], {}, DataError, "no rows"),
    ],
)
def test_what_cannot_be_is_refused_before_a_training(tmp_path, rows, settings, kind, named):
    with pytest.raises(kind, match=named):
        refusals_by_sureness(rows, lambda dataset: pytest.fail("trained"), tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_model_is_asked(tiny_model, tmp_path):
    """A real, tiny one: answers have a probability, and the model of the second fold is not that of the first."""
    tokenizer, seeds = AutoTokenizer.from_pretrained(tiny_model), iter((1, 2))

    def noisy(dataset):
        torch.manual_seed(next(seeds))
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        with torch.no_grad():
            model.lm_head.weight.add_(0.01 * torch.randn_like(model.lm_head.weight))
        return model, tokenizer

    found = refusals_by_sureness(ROWS[:4], noisy, tmp_path, answered_share=0.5, max_new_tokens=3, batch_size=1)
    assert all(0 < value <= 1 for value in found["sureness"]) and len(set(found["sureness"])) > 1
    assert sum(found["sure"]) == 2
    surest = sorted(range(4), key=lambda n: -found["sureness"][n])[:2]
    assert [n for n in range(4) if found["sure"][n]] == sorted(surest)
