"""A whole answer against its gold answers: what each scorer says, what is unknown, and the name in the registry."""

import pytest

from hf_factuality.spans import Label
from hf_factuality.verifiers import GoldJudge, VerifierInput, load_pipeline, load_verifier
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


S, C = Label.SUPPORTED, Label.CONTRADICTED


@pytest.mark.parametrize(
    ("scorer", "answer", "golds", "label", "score"),
    [
        ("contains", "She was born in Ulm", ["Ulm"], S, 1.0),
        ("contains", "in ulm", ["Ulm"], C, 0.0),  # as released: case counts
        ("contains", "10", ["1"], S, 1.0),  # as released: so do characters
        ("contains", "Bern", ["Ulm", "Bern"], S, 1.0),
        ("contains", "柏林。", ["柏林"], S, 1.0),
        ("world", "the Ulm!", ["ulm"], S, 1.0),
        ("world", "in Ulm", ["Ulm"], C, 0.0),
        ("HotpotQA", "Ada Hale", ["Ada King"], S, 0.5),
        ("HotpotQA", "Ada Hale of Ulm", ["Ada"], C, 0.4),
        ("world", "<think> Bern? </think><answer> Ulm </answer>", ["Ulm"], S, 1.0),
        ("world", "<answer></answer>", ["Ulm"], C, 0.0),
    ],
)
def test_labels(scorer, answer, golds, label, score):
    (found,) = load_verifier(f"gold:{scorer}").verify([VerifierInput(answer, "?", tuple(golds))])
    (span,) = found.spans
    assert (span.start, span.end, span.label) == (0, len(answer), label) and span.score == pytest.approx(score)


def test_unknown_is_not_wrong():
    rows = [VerificationRequest(VerifierInput("Ulm", "?", evidence)) for evidence in ((), ("Ulm",))]
    rows.append(VerificationRequest(VerifierInput("  ", "?", ("Ulm",))))
    ((none, right, blank),) = judge_rows(GuardedVerifier(load_verifier("gold"), timeout=None), rows)
    assert none.left_out == "no_evidence" and right.found.spans[0].label is S and blank.left_out == "empty"
    (found,) = load_verifier("gold").verify([VerifierInput("Ulm", "?", (" ",))])
    assert found.spans[0].label is None and not found.judged


def test_settings(tmp_path):
    load_verifier("gold:HotpotQA").save_pretrained(tmp_path)
    assert load_pipeline(tmp_path).judge == GoldJudge("HotpotQA")
    with pytest.raises(ValueError, match="unknown scorer 'nonsense'"):
        load_verifier("gold:nonsense")
    with pytest.raises(ValueError, match="scorer is given twice"):
        load_verifier("gold:world", scorer="world")
