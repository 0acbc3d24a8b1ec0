import pytest

from hf_factuality.data.labelled_claims import LabelColumns, claim_label, read_claim
from hf_factuality.errors import DataError
from hf_factuality.methods.verifier.data import read_labelled_claims
from hf_factuality.spans import Label


def test_labels():
    true = (True, "Supported", "hedged supported", "entailment", 1, 1.0, Label.SUPPORTED)
    false = (
        False,
        "not-supported",
        "partially supported",
        0,
        0.0,
        "contradicted",
        "Not Enough Info",
        Label.UNVERIFIABLE,
    )
    assert all(claim_label(label) is True for label in true)
    assert all(claim_label(label) is False for label in false)
    for label in ("maybe", "no_fact", "", None, 2, 0.5, ["supported"]):
        with pytest.raises(DataError, match="row 3 must be supported or not_supported"):
            claim_label(label, "row 3")


def test_a_row():
    found = read_claim(
        {"said": "He sang.", "label": "yes", "evidence": ["He sang.", " "]}, "row 1", LabelColumns("said")
    )
    assert found.supported and found.input.completion == "He sang." and found.input.evidence == ("He sang.",)
    assert found.group == ("He sang.",) and found.kind is None
    assert read_claim({"claim": "He sang.", "label": 0, "group": "a"}, "row 1").group == "a"


def test_training_and_agreement_read_the_same_rows():
    row = {"claim": "He sang.", "evidence": ["He sang."], "label": "contradicted", "error": "negation"}
    [found] = read_labelled_claims([("claims.jsonl", [(1, row), (2, {**row, "label": None})])])
    assert found["label"] == "not_supported" and found["kind"] == "negation" and found["evidence"] == ["He sang."]
    assert read_claim(row, "row 1").supported is False
