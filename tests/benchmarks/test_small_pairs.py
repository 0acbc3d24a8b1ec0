"""What the network of `small` is trained on."""

import math
import random
import sys
from pathlib import Path

import pytest
import torch


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import small_verifier  # noqa: E402
from _small_pairs import NOT_SAID, as_read, written_pairs  # noqa: E402
from _small_training import mean_of, ranking_loss, sample  # noqa: E402
from small_verifier import NATURAL, RUNS, TWINNED, bar, plain_cases  # noqa: E402


@pytest.fixture(scope="module")
def pairs():
    return [pair for pair in written_pairs()[0] if pair[3] == "natural_people"][:60]


def test_pairs_stay_as_they_are_without_a_share(pairs):
    assert [*as_read(pairs, 0.0, 0.0, 1)] == pairs


def test_evidence_among_others_keeps_claim_and_label(pairs):
    read = [*as_read(pairs, 0.0, 1.0, 1)]
    assert [pair[1] for pair in read] == [pair[1] for pair in pairs]
    changed = [(old, new) for old, new in zip(pairs, read, strict=True) if old[2] != new[2]]
    assert all(new[2] == NOT_SAID and old[0] not in new[0] for old, new in changed)
    assert all(old[0] != new[0] for old, new in zip(pairs, read, strict=True))


def test_no_evidence_is_longer_than_the_judge_reads(pairs):
    words = [len(pair[0].split()) for pair in as_read(pairs, 0.0, 1.0, 1)]
    three_longest = 3 * max(len(sentence.split()) for pair in pairs for sentence in pair[0].split(". "))
    assert max(words) <= max(110, three_longest)


def test_scenes_stay_alone():
    """A caption beside another would speak of another man."""
    pairs = [(f"A man of {number} is asleep.", "A man is awake.", 1, "snli") for number in range(30)]
    assert [*as_read(pairs, 0.0, 1.0, 1)] == pairs


def test_whole_evidence_is_sampled_for_ranking(pairs):
    chosen = sample(pairs, 20, True, random.Random(1))
    assert 20 <= len(chosen) < len(pairs)
    for evidence in {pair[0] for pair in chosen}:
        assert [pair for pair in chosen if pair[0] == evidence] == [pair for pair in pairs if pair[0] == evidence]
    assert len(sample(pairs, 20, False, random.Random(1))) == 20


def test_ranking_is_of_true_and_false_claims_about_one_evidence():
    logits = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.5, 0.0], [0.0, 3.0, 0.0], [4.0, 0.0, 0.0]])
    labels, blocks = torch.tensor([0, 1, 3, 2]), torch.tensor([7, 7, 7, 8])
    odds = [yes - math.log(math.exp(no) + math.exp(other)) for yes, no, other in logits.tolist()]
    expected = sum(math.log1p(math.exp(odds[false] - odds[0])) for false in (1, 2)) / 2
    assert ranking_loss(logits, labels, blocks).item() == pytest.approx(expected, rel=1e-5)
    assert ranking_loss(logits[:1], labels[:1], blocks[:1]).item() == 0


def test_mean_of_states():
    states = [{"weight": torch.tensor([1.0, 2.0])}, {"weight": torch.tensor([3.0, 6.0])}]
    assert mean_of([(0.25, states[0]), (0.75, states[1])])["weight"].tolist() == [2.5, 5.0]


def test_runs_name_files_that_there_are():
    written = {pair[3] for pair in written_pairs()[0]}
    assert {*NATURAL, *TWINNED} <= written <= {name for run in RUNS for name in run["taken"]}
    for number, run in enumerate(RUNS, 1):
        assert all(earlier < number for earlier in run.get("averaged", {}))
        assert sum(run.get("averaged", {}).values()) < 1


@pytest.mark.parametrize(("plain_from", "expected"), [(9.0, "0.60"), (0.3, "0.25")])
def test_the_bar_is_the_highest_that_the_rule_allows(plain_from, expected, monkeypatch, capsys):
    """The shares that pass rise with the intercept; the mean of both is .12 at .6, and a plain case passes from `plain_from` on."""
    found = {436: lambda at: 0.0999 * at, 400: lambda at: 0.3 * at, 116: lambda at: float(at > plain_from - 0.01)}

    def figures(judge, pairs, interval):
        return {"false called supported": max(0.0, found[len(pairs)](small_verifier.small_judge.JOINED_INTERCEPT))}

    before = small_verifier.small_judge.JOINED_INTERCEPT
    monkeypatch.setattr(small_verifier, "figures", figures)
    bar()
    assert capsys.readouterr().out.splitlines()[-1] == f"JOINED_INTERCEPT = {expected}"
    assert small_verifier.small_judge.JOINED_INTERCEPT == before
    assert len(plain_cases()) == 116 and {target for *_, target in plain_cases()} == {True, False}
