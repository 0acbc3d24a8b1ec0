"""Figures of the papers, recomputed from the data that they published."""

import json

import pytest


def annotated(row):
    """A line of FActScore's human annotation as a prediction; a response without annotation abstains."""
    if row["annotations"] is None:
        return {"text": row["output"], "abstained": True}
    facts = [fact for sentence in row["annotations"] for fact in sentence.get("human-atomic-facts") or ()]
    return {"text": row["output"], "claims": [[fact["text"], fact["label"]] for fact in facts]}


def test_factscore_of_chatgpt(make, data_dir):
    """Min et al. 2023, table 1: ChatGPT 58.3 by human labels, the mean of S / (S + NS + IR) over 157 responses."""
    path = data_dir / "factscore" / "ChatGPT.jsonl"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    result = make("factscore").compute(predictions=[annotated(row) for row in rows], gamma=0, judge="human")
    assert 100 * result["factscore"] == pytest.approx(58.3, abs=0.05)
    assert result["comparable_to_published"] is True
    assert (result["n"], result["n_scored"], result["left_out"]["responses"]["abstained"]) == (183, 157, 26)
    assert result["parts"]["respond_ratio"] == pytest.approx(157 / 183)
    assert result["confidence_interval"]["low"] < 0.583 < result["confidence_interval"]["high"]

    # Without the irrelevant facts it is another number: they belong in the denominator.
    shares = []
    for row in rows:
        labels = [label for _, label in annotated(row).get("claims", ()) if label != "IR"]
        shares += [labels.count("S") / len(labels)] if labels else []
    assert 100 * sum(shares) / len(shares) == pytest.approx(62.3, abs=0.05)
