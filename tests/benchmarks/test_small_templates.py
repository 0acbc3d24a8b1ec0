"""The templates that the network of `small` learns from: their form, and what is made of them."""

import random
import re
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from _small_facts import CONTRADICTED, NOT_SAID, SUPPORTED  # noqa: E402
from _small_templates import (  # noqa: E402
    FREQUENT,
    LEAST_TWINS,
    MANY_OPEN,
    SOURCE,
    TWINS,
    Template,
    _values,
    read_templates,
    template_pairs,
    twin_pairs,
)
from small_verifier import RUNS  # noqa: E402


LEARNT, KEPT_APART = read_templates()
TEMPLATE = {
    "=": ["{P1} is [older|senior] and {P2} is a {J1}."],
    "+": ["a {J1} is {P2}."],
    "-": ["{P1} is a {J1}."],
    "?": ["{P2} has {s1} cats."],
}
SLOT = re.compile(r"\{(\w+)\}")


def test_a_run_takes_them():
    assert {SOURCE, TWINS} <= RUNS[-1]["taken"].keys()


def test_a_tenth_of_the_templates_is_kept_apart():
    assert len(LEARNT) > 8 * len(KEPT_APART) > 0
    lines = {line for template in LEARNT for lines in template.lines.values() for line in lines if len(line) > 60}
    apart = {line for template in KEPT_APART for lines in template.lines.values() for line in lines}
    assert len(lines & apart) < 0.01 * len(apart)


def test_templates_have_the_form():
    for template in LEARNT + KEPT_APART:
        first = template.lines["="][0]
        least = 8 if len(template.lines["?"]) < MANY_OPEN else 6
        assert len(template.lines["="]) >= 4 and min(len(template.lines[mark]) for mark in "+-") >= least, first
        known = _values(template.lists, random.Random(0))
        for line in (line for lines in template.lines.values() for line in lines):
            assert set(SLOT.findall(line)) <= known.keys(), line
            assert not re.search(r"[{}]", SLOT.sub("", line)), line
            assert line.count("[") == line.count("]") == len(re.findall(r"\[[^\[\]]*\|[^\[\]]*\]", line)), line


def test_some_files_are_drawn_more_often():
    names = {path.stem.partition("_")[0] for path in (BENCHMARKS / "small_templates").glob("*.txt")}
    assert FREQUENT.keys() <= names
    rare, frequent = (
        Template({**TEMPLATE, "=": [text]}, {}, weight) for text, weight in (("Rare.", 1.0), ("Often.", 3.0))
    )
    evidence = [evidence for evidence, *_ in template_pairs([rare, frequent], 3000, seed=1)]
    assert 0.7 < evidence.count("Often.") / len(evidence) < 0.8


def test_what_a_true_claim_names_is_in_every_wording_of_the_facts():
    for template in LEARNT + KEPT_APART:
        named = set.intersection(*(set(SLOT.findall(line)) for line in template.lines["="]))
        for line in template.lines["+"]:
            assert set(SLOT.findall(line)) <= named, line


def test_no_claim_has_two_labels():
    for template in LEARNT + KEPT_APART:
        for one, other in ("+-", "+?", "-?"):
            assert not set(template.lines[one]) & set(template.lines[other])


def test_values_differ_and_grow():
    rng = random.Random(3)
    for _ in range(200):
        values = _values({"X": ["a", "b", "c", "d", "e"]}, rng)
        assert len({values[f"P{number}"].split()[1] for number in range(1, 5)}) == 4
        for letter, count in (("y", 4), ("n", 4), ("s", 3)):
            numbers = [int(values[f"{letter}{number}"].replace(",", "")) for number in range(1, count + 1)]
            assert all(low < high for low, high in pairwise(numbers))
            assert letter != "n" or not {low + high for low in numbers for high in numbers} & set(numbers)


def test_pairs_of_a_template():
    template = Template(TEMPLATE, {})
    pairs = template_pairs([template], 300, seed=1)
    assert {source for *_, source in pairs} == {SOURCE}
    assert {label for _, _, label, _ in pairs} == {SUPPORTED, CONTRADICTED, NOT_SAID}
    for evidence, claim, label, _ in pairs:
        assert re.fullmatch(r"\w+ \w+ is (older|senior) and \w+ \w+ is (a|an) \w+\.", evidence)
        assert claim[0].isupper() and not re.search(r"[{}\[\]]|\ba [aeio]|\bA [aeio]", claim)
        assert label != SUPPORTED or claim.split()[-1].rstrip(".") in evidence
    assert template_pairs([template], 30, seed=1) == template_pairs([template], 30, seed=1)


@pytest.mark.parametrize("seed", [0, 1])
def test_about_as_many_claims_are_true_as_false(seed):
    labels = defaultdict(int)
    for _, _, label, _ in template_pairs(LEARNT, 3000, seed):
        labels[label] += 1
    assert 0.4 < labels[SUPPORTED] / 3000 < 0.6


def test_twins_are_the_same_but_for_the_facts_they_take():
    template = Template(
        {
            "=": ["{P1} beat {P2} in {y1}."],
            "+": ["{P1} won against {P2}.", "{P2} lost.", "A match was in {y1}."],
            "-": ["{P2} won against {P1}.", "{P3} [lost|was beaten].", "{P1} lost."],
            "?": ["{P1} was glad.", "A match was in {y2}."],
        }
    )
    assert template.twins == [
        {"+": ["{P1} won against {P2}."], "-": ["{P2} won against {P1}."]},
        {"+": ["{P2} lost."], "-": ["{P1} lost."]},
        {"+": ["A match was in {y1}."], "?": ["A match was in {y2}."]},
    ]
    labels, wordings = defaultdict(int), defaultdict(set)
    for evidence, claim, label, source in twin_pairs([template], 600, seed=2):
        assert source == TWINS
        labels[label] += 1
        winner, loser, year = re.fullmatch(r"\w+ (\w+) beat \w+ (\w+) in (\d+)\.", evidence).groups()
        if "won" in claim:
            said = claim.rstrip(".").split(" won against ")
            assert [name.split()[-1] for name in said] == ([winner, loser] if label == SUPPORTED else [loser, winner])
        elif "lost" in claim:
            assert (f"{loser} lost." in claim) == (label == SUPPORTED)
        else:
            assert (year in claim) == (label == SUPPORTED)
        wordings[re.sub(r"[A-Z]\w+ [A-Z]\w+|[A-Z]\w+(?= (?:won|lost))|(?<=against )\w+|\d+", "_", claim)].add(label)
    assert labels[SUPPORTED] == labels[CONTRADICTED] + labels[NOT_SAID] and labels[NOT_SAID] > 60
    assert all(len(found) == 2 for found in wordings.values())


def test_most_templates_have_twins():
    known = [len(template.twins) for template in LEARNT]
    assert sum(count >= LEAST_TWINS for count in known) > 0.75 * len(known)
