"""The benchmark of the judges: its arithmetic, its training data, and a run on made-up files."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _judge_figures as figures  # noqa: E402
import _nli_small as small  # noqa: E402
import verifier_quality as quality  # noqa: E402

from hf_factuality.spans import Label  # noqa: E402
from hf_factuality.verifiers import JudgeInput, Judgement  # noqa: E402


CITIES = ("Leeds", "York", "Bath", "Ripon", "Derby", "Truro", "Wells", "Ely", "Whitby", "Bury")
PEOPLE = tuple(
    "Ada Hale,Tom Reed,Ann Cole,Ben Frost,Eve Stone,Max Lowe,Ida Nash,Joe Pike,Amy Lane,Kit Moor".split(",")
)


def knowledge(i, place=""):
    return (
        f"{PEOPLE[i]} was a painter born in {CITIES[i]}{place} in {1870 + i}. The first of the works was shown in 19{i}0 and sold. "
        f"Nobody knew the town of {CITIES[i]}, which lies near a river, before the painter came."
    )


@pytest.fixture
def data(tmp_path):
    """Files of the published form; the question of one HotpotQA row and the knowledge of another are in HaluEval."""
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "fspo").mkdir()
    (tmp_path / "wice").mkdir()
    hotpot = [
        {"question": f"Where was {PEOPLE[i]} born?", "answer": CITIES[i], "knowledge": knowledge(i)} for i in range(10)
    ]
    halueval = [
        {"question": question, "knowledge": text, "right_answer": "Leeds", "hallucinated_answer": f"It is {far} away."}
        for question, text, far in (
            ("where was ADA HALE born", "Other text.", "far"),
            ("Who?", "Nobody knew the town of York, which lies near a lake.", "very far"),
        )
    ]
    parquet.write_table(pa.Table.from_pylist(hotpot), tmp_path / "fspo/hotpot-2k-train.parquet")
    parquet.write_table(pa.Table.from_pylist(halueval), tmp_path / "fspo/halueval-train.parquet")
    claims, tokens = [], []
    for i in range(8):
        evidence = ["Some page.", knowledge(i)]
        label = ("supported", "partially_supported", "not_supported")[i % 3]
        claims.append({"claim": f"{PEOPLE[i]} was born in {CITIES[i]}.", "evidence": evidence, "label": label})
        words = [*f"{PEOPLE[i]} , a rich painter , was born in {CITIES[i]} in summer".split(), "."]
        claim = " ".join(words).replace(" ,", ",").replace(" .", ".")
        false = [word in ("rich", "summer") for word in words]
        tokens.append(
            {"claim": claim, "claim_tokens": words, "non_supported_spans": false, "evidence": evidence,
             "supporting_sentences": [[1]]}
        )  # fmt: skip
    files = {"claim-dev": claims, "non_supported_tokens-train": tokens, "non_supported_tokens-dev": tokens}
    for name, rows in files.items():
        (tmp_path / f"wice/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


class Fixed:
    """Says what a table says; `None` for claims that are not in it."""

    def __init__(self, table):
        self.table = table
        self.asked = []

    def judge(self, inputs):
        self.asked += [item.claim for item in inputs]
        return [self.table.get(item.claim, Judgement(None)) for item in inputs]


def test_evaluate_leaves_unknown_out():
    table = {
        "a": Judgement(Label.SUPPORTED, 0.9),
        "b": Judgement(Label.UNVERIFIABLE, 0.8),
        "c": Judgement(Label.SUPPORTED, 0.7),
        "d": Judgement(Label.CONTRADICTED),  # no score: counts as 0
    }
    truth = {"a": True, "b": True, "c": False, "d": False, "e": True}
    cases = [figures.Case(JudgeInput(name, ("x",)), value, i, "kind") for i, (name, value) in enumerate(truth.items())]
    fitting = [case for case in cases if case.item.claim in "acd"]
    judge = Fixed(table)
    found = figures.evaluate(figures.Remembering(judge), cases, fitting)
    assert (found["n"], found["judged"]) == (5, 4)
    assert found["auroc"]["value"] == 1.0  # .9 and .8 above .7 and 0
    assert found["default"]["value"] == 0.5  # one of two supported, one of two others
    # On a, c and d the best threshold is between .7 and .9, which calls b supported only at .8: half way.
    assert found["threshold"] == pytest.approx(0.8) and found["fitted"]["value"] == 1.0
    assert found["labels"] == {"kind": {"supported": 2, "unverifiable": 1, "contradicted": 1, "unknown": 1}}
    assert judge.asked == list("abcde")  # each once, the fitting too
    nothing = figures.evaluate(figures.Remembering(Fixed({})), cases, None)
    assert nothing["judged"] == 0 and nothing["auroc"] is None


def test_interval_draws_groups_whole():
    """Two rows of a group are always drawn together: their difference never varies."""
    values, groups = np.array([1.0, 3.0] * 20), np.repeat(np.arange(20), 2)
    assert figures.interval(lambda i: values[i].mean(), groups, lambda i: True) == [2.0, 2.0]
    low, high = figures.interval(lambda i: values[i].mean(), np.arange(40), lambda i: True)
    # The standard error of the mean of 40 values of +-1 is .158.
    assert low == pytest.approx(2 - 1.96 * 0.158, abs=0.06) and high == pytest.approx(2 + 1.96 * 0.158, abs=0.06)


def test_span_figures():
    item = JudgeInput("ab c def", ("x",))
    row = figures.Tokens(item, ((0, 2), (3, 4), (5, 8)), np.array([True, False, True]))
    found = figures.span_figures([np.array([True, True, False]), None], [row, row])
    assert (found["n"], found["judged"], found["precision"], found["recall"]) == (2, 1, 0.5, 0.5)
    assert found["f1"] == 0.5
    assert found["characters"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 3))  # "ab" hit, "c" false, "def" missed


def test_a_word_left_out(data):
    """A judge that minds one word is found to mind it."""

    class Minds:
        def judge(self, inputs):
            return [Judgement(Label.SUPPORTED, 0.2 if "rich" in item.claim else 0.9) for item in inputs]

    rows = figures.wice_tokens(data, "dev")
    found = figures.left_out(Minds(), rows[:2], rows[2:], narrow=True)
    assert [[row.item.claim[a:b] for (a, b), said in zip(row.offsets, flags, strict=True) if said]
            for row, flags in zip(rows, found, strict=False)] == [["rich"], ["rich"]]  # fmt: skip
    words = figures.lexical_words(rows[:1])[0]
    assert [rows[0].item.claim[a:b] for (a, b), said in zip(rows[0].offsets, words, strict=True) if said] == [
        "a", "rich", "in", "summer"]  # fmt: skip


def test_overlaps_with_the_test_are_left_out(data):
    rows = small.hotpot_rows(data)
    # 0 shares its question (but for case and marks), 1 eight words in a row ("nobody ... near a").
    assert [row["answer"] for row in rows] == list(CITIES[2:])
    parts = small.split(data)
    trained = {row["answer"] for row in parts["hotpot_train"]}
    assert trained.isdisjoint(row["answer"] for row in parts["hotpot_held_out"])
    assert len(parts["wice_train"]) == 6 and len(parts["wice_held_out"]) == 2


def test_training_pairs_are_what_they_say(data):
    parts = small.split(data)
    maker = small.PairMaker(parts["hotpot_train"], parts["wice_train"], random.Random(0))
    pairs = [maker.answer_pair() for _ in range(50)]
    answers = {row["question"].rstrip("?"): row["answer"] for row in parts["hotpot_train"]}
    for _, claim, label in pairs:
        question = next(question for question in answers if claim.startswith(question))
        assert (claim == f"{question} {answers[question]}") == (label == small.ENTAILMENT)
    assert {label for *_, label in pairs} == {small.ENTAILMENT, small.CONTRADICTION}
    for _ in range(50):
        pair = maker.wice_pair()
        assert pair is not None and ("rich" in pair[1]) == (pair[2] == small.NEUTRAL)
    again = small.PairMaker(parts["hotpot_train"], parts["wice_train"], random.Random(0))
    assert [again.answer_pair() for _ in range(50)] == pairs


@pytest.mark.slow
def test_run(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "DRAWS", 20)
    arguments = ["--data", str(data), "--train", "--steps", "2", "--random", "--work", str(tmp_path / "work")]
    result = quality.run(quality.arguments_of(arguments))
    quality.show(result)
    judges = {"lexical", "NLI, trained here", "HHEM, random weights", "MiniCheck, random weights"}
    assert judges < set(result["tables"]["WiCE"])
    assert "lexical + NLI, calibrated" in result["tables"]["HaluEval"]
    assert result["tables"]["WiCE"]["floor: always supported"]["auroc"]["value"] == 0.5
    assert all(row["n"] == 8 for row in result["tables"]["WiCE"].values())
    assert result["spans"]["floor: every word"]["recall"] == 1.0
    assert "| floor: no word | 8 of 8 | – | 0.000 |" in capsys.readouterr().out
    json.dumps(result)
    # The folders made are such as the flags take.
    work = tmp_path / "work"
    flags = ["--nli", str(work / "nli"), "--hhem", str(work / "random/hhem")]
    flags += ["--foundation", str(work / "random/foundation"), "--minicheck", str(work / "random/minicheck")]
    named, _ = quality.single_judges(quality.arguments_of(["--data", str(data), *flags]))
    for first, second in (
        ("NLI, trained here", f"NLI, {work / 'nli'}"),
        ("HHEM, random weights", f"HHEM, {work / 'random/hhem'}"),
        ("MiniCheck, random weights", f"MiniCheck, {work / 'random/minicheck'}"),
    ):
        again = figures.evaluate(named[second].judge, quality.halueval(data, 5000), None)
        assert again["auroc"] == result["tables"]["HaluEval"][first]["auroc"]


def test_bad_arguments(data, capsys):
    for arguments, message in (
        (["--data", str(data), "--llm", "m"], "need --base_url"),
        (["--data", str(data / "wice")], "has no wice/claim-dev.jsonl"),
        (["--data", str(data), "--questions", "0"], "--questions must be at least 1, got 0"),
    ):
        with pytest.raises(SystemExit):
            quality.arguments_of(arguments)
        assert message in capsys.readouterr().err
