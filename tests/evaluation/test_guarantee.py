"""`verify` with a guarantee: what is kept, where it is marked, what is refused, and that it holds for claims of one answer."""

import json
import math
import random

import pytest

from hf_factuality import verify
from hf_factuality.cli import main
from hf_factuality.errors import DataError
from hf_factuality.evaluation.guarantee import fit_guarantee, read_guarantee_labels
from hf_factuality.evaluation.labelled_claims import LabelColumns, judge_claims, read_labels
from hf_factuality.functional.risk_control import controlled_threshold
from hf_factuality.verifiers.guard import GuardedVerifier
from tests.conftest import searched
from tests.evaluation.conftest import write_rows
from tests.evaluation.test_agreement import Scored
from tests.report.marks import Marks


VERIFIER = "tests.evaluation.test_agreement:Scored"
# 60 answers: scores above .7 are right, those below wrong.
LABELS = [{"claim": f"{0.5 + n / 120:.3f}", "evidence": f"e{n}", "label": n >= 24} for n in range(60)]


def test_what_is_kept_is_marked_everywhere(tmp_path, capsys):
    answers = [{"completion": "0.9 0.71 0.55"}, {"completion": "0.1 ?"}, {"completion": None}]
    page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
    found = verify(answers, verifier=Scored(), guarantee=0.9, guarantee_labels=LABELS, html=page, out=out)
    promise = found.summary["guarantee"]
    # By hand: 36 right ones pass (.9^36 = .023); with a wrong one behind them .9^37 + 37 * .1 * .9^36 = .104 does not.
    assert promise["labels_kept"] == 36 and promise["labels_wrong"] == 0 and promise["threshold"] == 0.692
    assert (promise["level"], promise["confidence"], promise["labels"]) == (0.9, 0.9, 60)
    assert (promise["kept"], promise["not_kept"]) == (2, 3)
    assert [row.kept for row in found.rows] == [(True, True, False), (False, False), None]
    assert found.to_pandas()["kept"].tolist() == [True, True, False, False, False]
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row.get("kept") for row in written] == [[True, True, False], [False, False], None]
    html = page.read_text(encoding="utf-8")
    assert "not kept by the guarantee" in html and html.count(' dropped" title') == 3
    assert [row["score"] for row in found.table() if row["measure"] == "kept"] == ["0.400"]
    assert any(
        "90% confidence at most 0.1 of them are wrong" in note and "drawn like these" in note for note in found.notes
    )
    # Without a guarantee nothing is marked.
    plain = verify(answers, verifier=Scored(), html=page, out=out)
    assert "guarantee" not in plain.summary and "kept" not in plain.to_pandas() and plain.rows[0].kept is None
    assert "guarantee" not in page.read_text(encoding="utf-8") and "kept" not in out.read_text(encoding="utf-8")


def test_the_command(tmp_path, capsys):
    labels = str(write_rows(tmp_path / "labels.jsonl", LABELS))
    file = str(write_rows(tmp_path / "answers.jsonl", [{"completion": "0.9 0.55"}]))
    flags = ["--verifier", VERIFIER, "--guarantee", "0.9", "--guarantee_labels", labels]
    assert main(["verify", file, *flags]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["guarantee"]["not_kept"] == 1 and "guarantee 0.9: kept are claims" in printed.err
    assert (
        main(["verify", file, *flags[:4], "--guarantee_labels", str(write_rows(tmp_path / "few.jsonl", LABELS[:21]))])
        == 2
    )
    assert "at least 22 different answers" in capsys.readouterr().err


def test_a_judge_that_cannot_be_trusted_keeps_nothing():
    labels = [{**row, "label": n % 2} for n, row in enumerate(LABELS)]
    found = verify(["0.99 0.9"], verifier=Scored(), guarantee=0.9, guarantee_labels=labels)
    assert found.summary["guarantee"]["kept"] == 0 and found.summary["guarantee"]["threshold"] is None
    assert "nothing is kept" in found.notes[-1]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ({"guarantee": 1.0, "guarantee_labels": LABELS}, ValueError, "between 0 and 1, such as 0.9, got 1"),
        ({"guarantee": 0.9}, ValueError, "needs `guarantee_labels`"),
        ({"guarantee_labels": LABELS}, ValueError, "there is no `guarantee`"),
        ({"guarantee": 0.95, "guarantee_labels": LABELS[:44]}, DataError, "at least 45 different answers.*44 claims in 44 groups"),
        ({"guarantee": 0.9, "guarantee_labels": [{**row, "group": 1} for row in LABELS]}, DataError, "60 claims in 1 groups"),
        ({"guarantee": 0.9, "guarantee_labels": [{"claim": "0.9", "label": "so so"}]}, DataError, "row 1.*got 'so so'"),
        ({"guarantee": 0.9, "guarantee_labels": [{"claim": "0.9"}]}, DataError, "rename the column of `guarantee_labels`"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_judged(flags, error, message):
    verifier = Scored()
    with pytest.raises(error, match=message):
        verify(["0.9"], verifier=verifier, **flags)
    assert not verifier.asked


def answers_of(generator, n):
    """Labelled claims of `n` answers of ten claims each, all right or all wrong and all about as sure: 89 % of the answers are right."""
    rows = []
    for answer in range(n):
        right, sure = generator.random() < 0.89, 0.5 + 0.4 * generator.random()
        scores = [sure + generator.random() / 100 for _ in range(10)]
        rows += [{"claim": f"{score:.6f}", "label": right, "group": answer} for score in scores]
    return rows


@searched(30, 100)
def test_claims_of_one_answer_are_no_independent_labels(count):
    """11 % of the claims are wrong at any threshold, so that keeping any breaks the guarantee. One claim of each answer keeps it;
    all claims as if they were independent would not."""
    generator, bad, careless = random.Random(0), 0, 0
    guard = GuardedVerifier(Scored(), timeout=None)
    for draw in range(count):
        rows = answers_of(generator, 40)
        bad += fit_guarantee(guard, read_guarantee_labels(rows, 0.9, seed=draw), 0.9).threshold is not None
        every = read_labels(rows, LabelColumns())
        scores = [verdict.score for verdict in judge_claims(guard, every)]
        careless += controlled_threshold(scores, [claim.supported for claim in every], 0.9) is not None
    assert bad <= 0.1 * count + 3 * math.sqrt(0.09 * count) < careless


def test_the_page_strikes_out_what_is_not_kept(tmp_path):
    page = tmp_path / "page.html"
    verify(["0.9 0.55"], verifier=Scored(), guarantee=0.9, guarantee_labels=LABELS, html=page)
    marks = {text: (kind, title) for kind, title, text in Marks(page.read_text(encoding="utf-8")).marks}
    assert marks["0.9"] == ("supported", "supported by the evidence")
    assert marks["0.55"] == ("supported dropped", "supported by the evidence; not kept by the guarantee")
