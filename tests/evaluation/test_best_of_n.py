"""Best-of-N: the estimator against enumeration, and `--best_of` from the flag to the file of results."""

from itertools import combinations

import pytest

from hf_factuality.data.benchmarks import get_benchmark
from hf_factuality.evaluation import load_results
from hf_factuality.evaluation.best_of import best_of_curve, best_of_n, parse_best_of
from hf_factuality.evaluation.engines import Generation
from hf_factuality.evaluation.plan import Task, check_samples
from hf_factuality.verifiers.judges.lexical import LexicalVerifier
from tests.chat.fake_server import FakeServer
from tests.evaluation.conftest import write_rows


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
        with pytest.raises(ValueError, match="--best_of takes positive integers"):
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
            *flags, "--n_samples", 2, "--best_of", "1,2", "--metrics", "anah", "--verifier", "lexical",
            "--out", tmp_path / "r.json",
        )  # fmt: skip
    assert status == 0, err
    (anah,) = printed["results"]
    # x: true and false; y: false and true. The first of each make the value.
    assert anah["generation"]["n_samples"] == 2 and anah["value"] == 0.5
    assert anah["parts"]["best_of"] == {"1": {"value": 0.5, "n": 2}, "2": {"value": 1.0, "n": 2}}


def test_halluqa_takes_one_completion():
    """A judge votes on the first one only."""
    task = Task(get_benchmark("halluqa"), "chat", ("halluqa",), Generation(8, 1.0, 1.0, 2, 0), best_of=(1, 2))
    with pytest.raises(ValueError, match="--n_samples gives 2 completions per item: halluqa takes one .* several$"):
        check_samples(task, "--n_samples")
