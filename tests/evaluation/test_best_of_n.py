"""Best-of-N: the estimator against enumeration, and `--best_of` from the flag to the file of results."""

import json
from itertools import combinations
from statistics import fmean

import pytest

from hf_factuality.data.benchmarks import get_benchmark
from hf_factuality.evaluation import load_results
from hf_factuality.evaluation.best_of import best_of_curve, best_of_n, majority_of_n, parse_best_of
from hf_factuality.evaluation.plan import Task, check_samples
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.verifiers.judges.lexical.judge import LexicalVerifier
from tests.evaluation.conftest import write_rows
from tests.generation.fake_server import FakeServer


SAMPLES = [
    [0.3],
    [0.0, 0.25, 1.0, 0.25, 0.5],
    [0.5, None, 0.1, None, 0.9, 0.2],
    [None, 0.4, None, None],
    [1.0, 1.0, 0.0],
]


def enumerated(scores, n):
    """Mean of the best score over all draws that hold a score."""
    draws = [[scores[place] for place in chosen] for chosen in combinations(range(len(scores)), n)]
    best = [max(score for score in draw if score is not None) for draw in draws if draw != [None] * n]
    return sum(best) / len(best)


@pytest.mark.parametrize(
    ("scores", "n"), [(scores, n) for scores in SAMPLES for n in range(1, len(scores) + 1)], ids=str
)
def test_equals_the_mean_over_all_draws(scores, n):
    assert best_of_n(scores, n) == pytest.approx(enumerated(scores, n), rel=1e-12)


def chosen(scores, n, by):
    """Mean over all draws, and of equal numbers in `by` over these."""
    best = []
    for draw in combinations(range(len(scores)), n):
        known = [by[place] for place in draw if by[place] is not None]
        if known:
            best.append(fmean(scores[place] for place in draw if by[place] == max(known)))
    return fmean(best)


@pytest.mark.parametrize(
    "by", [[0.2, 0.9, 0.9, None, 0.1], [0.5] * 5, [5, 4, 3, 2, 1], [None, None, None, 0.0, None]], ids=str
)
def test_chosen_by_other_numbers(by):
    scores = [1.0, 0.0, 1.0, 1.0, 0.0]
    for n in range(1, 6):
        assert best_of_n(scores, n, by) == pytest.approx(chosen(scores, n, by), rel=1e-12)


def voted(scores, n, answers):
    found = []
    for draw in combinations(range(len(scores)), n):
        said = [answers[place] for place in draw if answers[place]]
        winners = [a for a in set(said) if said.count(a) == max(map(said.count, said))]
        found.append(fmean(scores[answers.index(a)] for a in winners) if winners else 0.0)
    return fmean(found)


def test_majority():
    answers = ["7", "8", "7", None, "9", "8", "8"]
    scores = [float(a == "7") for a in answers]
    for n in (1, 7):
        assert majority_of_n(scores, n, answers) == pytest.approx(voted(scores, n, answers)), "every draw is counted"
    for n in (2, 3, 5):
        assert majority_of_n(scores, n, answers) == pytest.approx(voted(scores, n, answers), abs=0.1)
        assert majority_of_n(scores, n, answers) == majority_of_n(scores, n, answers)
    assert majority_of_n([1.0, 0.0], 2, ["a", "b"]) == 0.5 and majority_of_n([0.0, 0.0], 2, [None, None]) == 0.0
    assert majority_of_n([1.0, None], 1, ["a", "b"]) is None


def test_by_hand():
    assert best_of_n([0.0, 0.5, 1.0], 2) == pytest.approx(2.5 / 3)  # pairs: 0.5, 1, 1
    # 256 samples, 2 of them right: 1 - C(254, n) / C(256, n), as pass@k.
    scores = [1.0] * 2 + [0.0] * 254
    assert best_of_n(scores, 1) == pytest.approx(2 / 256)
    assert best_of_n(scores, 128) == pytest.approx(1 - (128 * 127) / (256 * 255))
    assert best_of_n(scores, 256) == 1.0
    assert best_of_n([None, None], 1) is None
    with pytest.raises(ValueError, match="best of 3 needs from 1 to 2"):
        best_of_n([0.0, 1.0], 3)


def test_curve():
    found = best_of_curve([[0.0, 1.0], [None, 0.5], [None, None]], (1, 2))
    assert found == {"1": {"value": 0.5, "n": 2}, "2": {"value": 0.75, "n": 2}}
    assert best_of_curve([[None]], (1,)) == {"1": {"value": None, "n": 0}}


def test_numbers_of_the_flag():
    assert parse_best_of("16,1, 4,1") == (1, 4, 16)
    for text in ("", "0,1", "1;2", "a"):
        with pytest.raises(ValueError, match="`best_of` takes positive integers"):
            parse_best_of(text)


@pytest.fixture
def own(tmp_path):
    rows = [
        {"id": "x", "question": "Where?", "evidence": "Marie Curie was born in Warsaw. Marie Curie won two prizes."},
        {"id": "y", "question": "When?", "evidence": "Marie Curie was born in 1867."},
    ]
    return write_rows(tmp_path / "own.jsonl", rows)


TRUE, FALSE, MORE = "Marie Curie was born in Warsaw.", "Marie Curie was born in Paris.", "Marie Curie won two prizes."
COMPLETIONS = [
    # Shares .5, 1, 0; an empty answer has no score.
    {"id": "x", "completions": [f"{TRUE} {FALSE}", f"{TRUE} {MORE}", FALSE, ""]},
    {"id": "y", "completions": ["Marie Curie was born in 1900.", *["Marie Curie was born in 1867."] * 3]},
]


def test_several_answers_per_item_from_a_file(own, tmp_path, command, monkeypatch):
    answers = write_rows(tmp_path / "answers.jsonl", COMPLETIONS)
    flags = ("--dataset", own, "--answers", answers, "--verifier", "lexical", "--out", tmp_path / "r.json")
    metrics = ("--metrics", "anah,factscore", "--metric_args", "factscore.gamma=0")
    seen = []
    verify = LexicalVerifier.verify
    monkeypatch.setattr(LexicalVerifier, "verify", lambda self, inputs: seen.extend(inputs) or verify(self, inputs))
    status, printed, err = command(*flags, *metrics, "--best-of", "1,2,4")
    assert status == 0, err
    assert len(seen) == 7, "each answer that says something once, for both metrics"
    # The value is that of the first completions: one of three sentences, (.5 + 0) / 2 per response.
    anah, factscore = printed["results"]
    assert anah["value"] == pytest.approx(1 / 3) and anah["n"] == 2
    assert anah["parts"]["mean_response_score"] == 0.25
    assert (anah["parts"]["correct_facts"], anah["parts"]["incorrect_facts"]) == (0.5, 1.0)
    shares = [[0.5, 1.0, 0.0, None], [0.0, 1.0, 1.0, 1.0]]
    for entry in (anah, factscore):
        assert entry["parts"]["best_of"] == {
            str(n): {"value": pytest.approx(sum(enumerated(row, n) for row in shares) / 2), "n": 2} for n in (1, 2, 4)
        }
    assert "best of 4 1.000" in err
    assert [entry["parts"] for entry in load_results(tmp_path / "r.json")["results"]] == [
        anah["parts"],
        factscore["parts"],
    ]
    # What was verified is kept; other numbers ask nothing and replace the result.
    status, printed, _ = command(*flags, "--metrics", "anah", "--best_of", "3")
    assert status == 0 and len(seen) == 7 and list(printed["results"][0]["parts"]["best_of"]) == ["3"]
    assert len(load_results(tmp_path / "r.json")["results"]) == 2
    status, _, err = command(*flags, "--metrics", "anah", "--best_of", "8")
    assert status == 2 and "--best_of 8 needs that many completions per item, and answers.jsonl gives 4 " in err
    status, _, err = command(*flags, "--metrics", "anah")
    assert status == 2 and "4 completions per item: anah takes one completion per item" in err and "--best_of" in err


def test_a_served_model_is_sampled_and_every_sample_judged(own, tmp_path, command):
    said = iter([TRUE, FALSE, FALSE, "Marie Curie was born in 1867."] * 2)
    with FakeServer(reply=lambda prompt, body: next(said)) as server:
        flags = ("--dataset", own, "--model", "fake", "--base_url", server.url, "--concurrency", 1, "--temperature", 1)
        status, printed, err = command(
            *flags, "--num_samples", 2, "--best_of", "1,2", "--metrics", "anah", "--verifier", "lexical",
            "--out", tmp_path / "r.json",
        )  # fmt: skip
    assert status == 0, err
    (anah,) = printed["results"]
    # x: true and false; y: false and true. The first of each make the value.
    assert anah["generation"]["n_samples"] == 2 and anah["value"] == 0.5
    assert anah["parts"]["best_of"] == {"1": {"value": 0.5, "n": 2}, "2": {"value": 1.0, "n": 2}}


def test_halluqa_takes_one_completion():
    """A judge votes on the first one only."""
    task = Task(
        get_benchmark("halluqa"),
        "chat",
        ("halluqa",),
        SamplingConfig(max_new_tokens=8, num_samples=2, seed=0),
        best_of=(1, 2),
    )
    with pytest.raises(ValueError, match="--num_samples.* 2 .*halluqa"):
        check_samples(task, "--num_samples")


SOLUTIONS = [
    # The last character of a step is its score: tests/methods/process_reward/test_reward.py.
    {"id": "0", "completions": ["a9\n\\boxed{72}b8", "c1\n\\boxed{72.0}d9", "e7\n\\boxed{24}f7", "g?\n\\boxed{5}"]},
    {"id": "1", "completions": ["\\boxed{10}9", "\\boxed{1}8", "\\boxed{1}7", "no box 9"]},
]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), [0.5, 1.0, 0.25, 1.0]),
        # Right, right, wrong, wrong by .8, .1, .7 and nothing; right, wrong, wrong, wrong by .9, .8, .7 and .9.
        (("--best_of_by", "tests.methods.process_reward.test_reward:Steps"), [2 / 3, 1.0, 0.25, 0.5]),
        (
            ("--best_of_by", "tests.methods.process_reward.test_reward:Steps", "--aggregate", "last"),
            [2 / 3, 1.0, 0.25, 0.5],
        ),
        # 72 and 72.0 are one answer; what is in no box has no vote.
        (("--best_of_by", "majority"), [0.5, 1.0, 0.25, 0.0]),
    ],
    ids=["the best", "steps", "last step", "majority"],
)
def test_accuracy_of_what_is_chosen(tmp_path, command, monkeypatch, flags, wanted):
    pytest.importorskip("math_verify")
    gsm8k = [{"question": "How many?", "answer": f"So.\n#### {gold}"} for gold in (72, 10)]
    data = write_rows(tmp_path / "gsm8k.jsonl", gsm8k)
    answers, out = write_rows(tmp_path / "answers.jsonl", SOLUTIONS), tmp_path / "r.json"
    argv = ("--benchmark", "gsm8k", "--dataset", data, "--answers", answers, "--best_of", "1,4", "--out", out, *flags)
    status, printed, err = command(*argv)
    assert status == 0, err
    (accuracy,) = printed["results"]
    assert accuracy["value"] == pytest.approx((wanted[0] if not flags else 0.5) / 2 + 0.125)
    assert accuracy["parts"]["best_of"] == {
        "1": {"value": pytest.approx((wanted[0] + wanted[2]) / 2), "n": 2},
        "4": {"value": pytest.approx((wanted[1] + wanted[3]) / 2), "n": 2},
    }
    if "tests.rewards" in " ".join(flags):
        assert accuracy["parts"]["not_chosen"] == 1 and accuracy["judge"] and accuracy["settings"]["aggregate"]
        journal = (tmp_path / "r.gsm8k.answers.jsonl").read_text()
        assert json.loads(journal.splitlines()[1])["samples"][0]["selection"]["spans"][0]["score"] == 0.9
        monkeypatch.setattr(
            "tests.methods.process_reward.test_reward.Steps.verify", lambda *_: 1 / 0
        )  # what was judged is kept
        assert command(*argv)[1]["results"][0]["parts"] == accuracy["parts"]
