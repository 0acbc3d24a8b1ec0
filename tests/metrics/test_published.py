"""Figures of the papers, recomputed from the data that they published."""

import json

import pytest

from hf_factuality.data import read_factscore
from hf_factuality.errors import DataError


@pytest.mark.parametrize(
    "model, score, published, responses",
    [
        ("ChatGPT", 58.28, 58.3, 157),
        ("InstructGPT", 42.57, 42.5, 182),
        ("PerplexityAI", 71.57, 71.5, 166),
    ],
)
def test_factscore_of_the_human_labels(make, data_dir, model, score, published, responses):
    """Min et al. 2023, table 1: the mean of S / (S + NS + IR) over those of 183 responses that are annotated."""
    path = data_dir / "factscore" / f"{model}.jsonl"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    predictions = read_factscore(path)
    result = make("factscore").compute(predictions=predictions, gamma=0, judge="human")
    assert 100 * result["factscore"] == pytest.approx(score, abs=0.005)
    assert 100 * result["factscore"] == pytest.approx(published, abs=0.1)
    assert result["comparable_to_published"] is True
    assert (result["n"], result["n_scored"]) == (183, responses)
    assert result["left_out"]["responses"]["abstained"] == 183 - responses
    assert result["parts"]["respond_ratio"] == pytest.approx(responses / 183)
    assert result["confidence_interval"]["low"] < score / 100 < result["confidence_interval"]["high"]

    # Without the irrelevant facts it is another number: they belong in the denominator.
    shares = []
    for prediction in predictions:
        labels = [label for _, label in prediction.get("claims", ()) if label != "IR"]
        shares += [labels.count("S") / len(labels)] if labels else []
    assert 100 * sum(shares) / len(shares) > score + 3


def annotated(*sentences):
    keys = ("is-relevant", "human-atomic-facts", "model-atomic-facts")
    return [{"text": "x", **dict(zip(keys, sentence, strict=True))} for sentence in sentences]


def test_sentences_without_human_facts_count_as_irrelevant(make, tmp_path):
    """By hand: 1 of 1 + 2, 0 of 2, 1 of 2 + 1; one abstains, and one states nothing. (1/3 + 0 + 1/3) / 3 = 2/9."""
    supported, wrong, extracted = {"text": "a", "label": "S"}, {"text": "b", "label": "NS"}, {"text": "c"}
    rows = [
        {"output": "r1", "annotations": annotated((True, [supported], [extracted]), (False, None, [extracted] * 2))},
        {"output": "r2", "annotations": annotated((False, None, [extracted] * 2))},  # nothing but irrelevant
        {"output": "r3", "annotations": annotated((True, [supported, wrong], []), (True, [], [extracted]))},
        {"output": "I'm sorry.", "annotations": None},
        {"output": "Hm.", "annotations": annotated((True, [], []))},
    ]
    path = tmp_path / "Model.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    predictions = read_factscore(path)
    assert predictions[0] == {"text": "r1", "claims": [["a", "S"], ["c", "IR"], ["c", "IR"]]}
    assert predictions[3] == {"text": "I'm sorry.", "abstained": True}
    result = make("factscore").compute(predictions=predictions, gamma=0, judge="human")
    assert result["factscore"] == pytest.approx(2 / 9) and result["parts"]["respond_ratio"] == 3 / 5
    assert result["left_out"]["responses"]["abstained"] == result["left_out"]["responses"]["no_facts"] == 1


@pytest.mark.parametrize(
    "row",
    [[], "x", {"output": "x"}, {"output": "x", "annotations": [{"text": "s"}]}, {"output": "x", "annotations": 3}],
)
def test_another_file_is_refused_with_its_line(tmp_path, row):
    path = tmp_path / "other.jsonl"
    path.write_text("\n" + json.dumps(row), encoding="utf-8")
    with pytest.raises(DataError, match="line 2 is no annotation of FActScore"):
        read_factscore(path)
