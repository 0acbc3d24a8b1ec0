"""Benchmarks of judges: what is measured is the verifier, on given claims."""

import json

import pytest

from hf_factuality import evaluate
from hf_factuality.data.benchmarks import load_items
from hf_factuality.errors import DataError
from tests.evaluation.conftest import write_rows
from tests.evaluation.judges import Judge, seen


JUDGE = "tests.evaluation.judges:Strict"


@pytest.fixture
def aggrefact(tmp_path):
    """Dataset a: 1 of 2 supported claims is called so, and 1 of 1 other is not. Dataset b: right on both."""
    rows = [("a", "Fine.", 1), ("a", "Odd[u].", 1), ("a", "No[c].", 0), ("b", "Good.", 1), ("b", "Bad[c].", 0)]
    given = [
        {"dataset": name, "doc": f"Text of {name}.", "claim": claim, "label": label} for name, claim, label in rows
    ]
    return write_rows(tmp_path / "test.jsonl", given)


def test_a_verifier_is_measured_on_given_claims(aggrefact, tmp_path):
    out = tmp_path / "results.json"
    found = evaluate(benchmark="llm-aggrefact", dataset=aggrefact, verifier=JUDGE, out=out)
    (entry,) = found.results
    # By hand: ((1/2 + 1)/2 + 1)/2, where one balanced accuracy of all five would be (2/3 + 1)/2.
    assert entry["metric"] == "balanced_accuracy" and entry["value"] == pytest.approx(0.875)
    assert entry["parts"]["domains"]["a"] == {"balanced_accuracy": 0.75, "n": 3}
    assert entry["confidence_interval"]["low"] <= 0.875 <= entry["confidence_interval"]["high"]
    results = json.loads(out.read_text(encoding="utf-8"))
    assert results["model"]["name"] == JUDGE and entry["verifier"]["name"] == JUDGE
    assert entry["generation"] == {"claims": "given", "n_samples": 1}
    # Killed and started again, nothing is judged twice; another verifier is another judge.
    before = len(seen())
    assert before == 5
    assert (
        evaluate(benchmark="llm-aggrefact", dataset=aggrefact, verifier=JUDGE, out=out).results[0]["value"]
        == entry["value"]
    )
    assert len(seen()) == before
    with pytest.raises(DataError, match="lexical"):
        evaluate(benchmark="llm-aggrefact", dataset=aggrefact, verifier="lexical", out=out)


def test_the_command(aggrefact, tmp_path, command):
    flags = ("--benchmark", "llm-aggrefact", "--dataset", aggrefact, "--verifier", JUDGE, "--out", tmp_path / "r.json")
    status, found, err = command(*flags, "--fail_under", "balanced_accuracy=0.9")
    assert status == 1 and found["results"][0]["value"] == pytest.approx(0.875) and "0.875 is below 0.9" in err


def test_spans_of_the_published_two_files(tmp_path):
    responses = [
        # The judge calls characters 6 to 13 wrong; 9 to 13 are.
        {
            "id": "1",
            "source_id": "s",
            "labels": [{"start": 9, "end": 13}],
            "split": "test",
            "response": "Fine. Bad[c].",
        },
        {"id": "2", "source_id": "t", "labels": [], "split": "test", "response": "Good. Odd[u]."},
        {"id": "3", "source_id": "s", "labels": [], "split": "test", "response": "Fine."},
        {"id": "4", "source_id": "s", "labels": [], "split": "train", "response": "Fine."},
    ]
    sources = [
        {"source_id": "s", "task_type": "QA", "source_info": {"question": "Who?", "passages": "p"}, "prompt": "x"},
        {"source_id": "t", "task_type": "Summary", "source_info": "Long text.", "prompt": "y"},
    ]
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_rows(folder / "response.jsonl", responses)
    write_rows(folder / "source_info.jsonl", sources)
    (entry,) = evaluate(benchmark="ragtruth", dataset=folder, verifier=JUDGE, out=tmp_path / "r.json").results
    # One hit, one false alarm: F1 2/(2 + 1). Characters: 4 common, 14 found, 4 true.
    assert entry["metric"] == "hallucination_f1" and entry["value"] == pytest.approx(2 / 3)
    assert entry["parts"]["span_f1"] == pytest.approx(2 * 4 / 18) and entry["n"] == 3
    assert entry["parts"]["domains"]["QA"] == {"f1": 1.0, "span_f1": pytest.approx(2 * 4 / 11), "n": 2}
    assert entry["dataset"]["dropped"] == {"split is not test": 1}
    # The digest is of both files, and a file alone finds the one beside it.
    one, provenance = load_items("ragtruth", path=folder / "response.jsonl")
    assert [item.question for item in one] == ["Who?", None, "Who?"]
    write_rows(folder / "source_info.jsonl", [*sources, {"source_id": "u", "task_type": "QA", "source_info": "z"}])
    assert load_items("ragtruth", path=folder)[1]["revision"] != entry["dataset"]["revision"] != provenance["split"]
    write_rows(folder / "source_info.jsonl", sources[:1])
    with pytest.raises(DataError, match="row 1: source_info.jsonl has no source_id 't'"):
        load_items("ragtruth", path=folder)


def test_halueval_draws_one_candidate_of_each_row(tmp_path):
    rows = [
        {"knowledge": "K", "question": f"Q{n}?", "right_answer": "Right.", "hallucinated_answer": "Wrong[c]."}
        for n in range(30)
    ]
    dataset = write_rows(tmp_path / "qa.jsonl", rows)
    (entry,) = evaluate(
        benchmark="halueval-qa-judge", dataset=dataset, verifier=JUDGE, out=tmp_path / "r.json"
    ).results
    assert entry["value"] == 1.0 and 5 < entry["parts"]["supported"] < 25 and entry["seeds"]["dataset"] == 0
    assert {item.claim for item in load_items("halueval-qa-judge", path=dataset)[0]} == {"Right.", "Wrong[c]."}


def test_claims_that_were_not_judged_are_left_out(tmp_path):
    rows = [("Fine.", 1), ("Bad[c].", 0), ("Open[?].", 1), ("Broken!!", 0)]
    dataset = write_rows(tmp_path / "x.jsonl", [{"doc": "D", "claim": claim, "label": label} for claim, label in rows])
    found = evaluate(
        benchmark="llm-aggrefact", dataset=dataset, verifier=Judge(), out=tmp_path / "r.json", max_not_judged=0.4
    )
    (entry,) = found.results
    assert entry["value"] == 1.0 and entry["n_scored"] == 2
    assert entry["left_out"]["responses"]["unjudged"] == 1 and entry["left_out"]["responses"]["verifier_failed"] == 1
    assert any("could not be judged" in text for text in found.failures)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"verifier": None}, "measures a judge: give `verifier`"),
        ({"model": "m"}, "`model` is not used: `benchmark` llm-aggrefact measures `verifier`"),
        ({"answers": "x.jsonl"}, "`answers` is not used"),
        ({"temperature": 1.0}, "`temperature` is not used"),
        ({"scope": "think"}, "`scope` is not used"),
        ({"benchmark": ["llm-aggrefact", "gsm8k"]}, "llm-aggrefact is of judges; run it without"),
        ({"metrics": "factscore"}, "none of factscore is defined for llm-aggrefact, which has balanced_accuracy"),
    ],
)
def test_what_makes_no_sense_is_refused(aggrefact, tmp_path, more, message):
    given = {"benchmark": "llm-aggrefact", "dataset": {"llm-aggrefact": aggrefact}, "verifier": JUDGE, **more}
    with pytest.raises(ValueError, match=message):
        evaluate(**given, out=tmp_path / "r.json")


def test_answers_to_facts_grounding_are_judged_by_the_document(tmp_path):
    rows = [
        {"system_instruction": "S", "user_request": f"Q{n}?", "context_document": "D", "full_prompt": f"P{n}"}
        for n in range(2)
    ]
    dataset = write_rows(tmp_path / "facts.jsonl", rows)
    answers = write_rows(tmp_path / "a.jsonl", [{"answer": "All true."}, {"answer": "True. Wrong[u]."}])
    given = {"benchmark": "facts-grounding", "dataset": dataset, "answers": answers, "out": tmp_path / "r.json"}
    assert evaluate(**given, verifier=JUDGE).results[0]["value"] == 0.5
    with pytest.raises(DataError, match="facts-grounding has none; give `verifier`"):
        evaluate(**given, judge="m", judge_base_url="http://localhost:1/v1", overwrite=True)
