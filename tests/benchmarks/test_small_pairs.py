"""What the network of `small` is trained on."""

import sys
from pathlib import Path

import pytest


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _small_pairs import NOT_SAID, as_read, written_pairs  # noqa: E402


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
