"""`hf-factuality evaluate --suite`: runs of several models, the table of axes, plot and hacks; refusals are in tests/cases."""

import json
import shutil
import sys
from dataclasses import replace

import pytest

from hf_factuality.evaluation import load_results
from hf_factuality.evaluation.local import LocalEngine
from hf_factuality.evaluation.suite import lexical_relevance
from hf_factuality.methods.long_form.axes import LongFormAnswer, detect_hacks, long_form_axes
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.spans import Label
from hf_factuality.verifiers.judges.lexical.judge import LexicalJudge
from tests.evaluation.conftest import write_rows
from tests.evaluation.judges import seen


NAMES = "Ada Bea Cid Dov Eva Fay Gus Hal Ida Jon Kim Lea Moe".split()
JUDGE = "--verifier tests.evaluation.judges:Judge"
SUITE = "--suite long-form --dataset own.jsonl"


def facts(name):
    holt = f"{name} Holt"
    return [f"{holt} was born in Warsaw.", f"{holt} studied physics in Paris.", f"{holt} died in Passy in 1934."]


@pytest.fixture
def evaluate(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda flags: command(*flags.split(), *([] if "--out" in flags else ["--out", "all.json"]))


@pytest.fixture
def own(tmp_path):
    """Thirteen questions, their evidence, and a checklist of the first two facts."""
    rows = [
        {"id": name, "question": f"Tell me a bio of {name} Holt.", "topic": f"{name} Holt", "evidence": facts(name)}
        for name in NAMES
    ]
    return write_rows(tmp_path / "own.jsonl", [row | {"checklist": facts(row["id"])[:2]} for row in rows])


def answers(tmp_path, file, answer):
    """A file of answers: `answer` is called with the number and name of each question."""
    rows = [{"id": name, "completion": answer(number, name)} for number, name in enumerate(NAMES)]
    return write_rows(tmp_path / file, rows)


@pytest.mark.slow
def test_answers_side_by_side(own, tmp_path, evaluate, monkeypatch):
    answers(tmp_path, "base.jsonl", lambda _, name: " ".join([*facts(name), f"{name} Holt was born in Madrid."]))
    answers(tmp_path, "short.jsonl", lambda n, name: facts(name)[0] if n < 10 else " ")
    flags = f"{SUITE} --answers base.jsonl --answers short.jsonl --verifier lexical"
    status, printed, err = evaluate(flags)
    assert status == 0, err
    assert json.loads((tmp_path / "all.json").read_text()) == printed
    base, short = printed["rows"]
    assert (base["model"], base["benchmark"], base["n"], base["front"]) == ("base", "file", 13, True)
    wanted = {"precision": 3 / 4, "correct": 3, "recall": 1, "relevance": 1, "empty": 0, "unknown": 0, "abstention": 0}
    # 6 + 6 + 7 + 6 words, the fourth sentence begins like the first: 2 of 22 4-grams stood before.
    wanted |= {"words": 25, "sentences": 4, "repetition": 2 / 22}
    assert {name: base[name] for name in wanted} == pytest.approx(wanted)
    wanted = {"precision": 1, "correct": 10 / 13, "recall": 10 / 13 / 2, "words": 6, "empty": 3 / 13, "repetition": 0}
    assert {name: short[name] for name in wanted} == pytest.approx(wanted) and short["front"]
    assert [(it["model"], it["before"], it["name"]) for it in printed["hacks"]] == [
        ("short", "base", "shorter"),
        ("short", "base", "more abstention"),
    ]
    shorter = "short on file: shorter: words 25 -> 6, correct 3 -> 0.769; won: precision 0.75 -> 1"
    page = (tmp_path / "all.md").read_text()
    assert shorter in err and shorter in page and "| file | short | 1.000 | 0.769 | 0.385 | 1.000 | 6.000 |" in page
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    # Each has its own results, and a second run judges nothing anew, checklists included.
    assert load_results("all.short.json")["results"][0]["metric"] == "factscore"
    monkeypatch.setattr(LexicalJudge, "judge", lambda *_: pytest.fail("it is known"))
    status, again, _ = evaluate(flags)
    assert status == 0 and again["rows"] == printed["rows"]
    # A verifier without a judge compares no checklist, and says nothing by another's.
    _, printed, _ = evaluate(flags.replace("lexical", "tests.evaluation.judges:Judge"))
    assert [row["recall"] for row in printed["rows"]] == [None, 0.0], "an empty answer has none of it"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # What is known of the whole answer is not taken for an empty part of it.
    _, printed, _ = evaluate(f"{flags} --scope think")
    assert [(row["recall"], row["empty"]) for row in printed["rows"]] == [(0.0, 1.0)] * 2


@pytest.mark.slow
def test_two_models_and_a_run_that_dies(large_model, tmp_path, evaluate, monkeypatch):
    shutil.copytree(large_model, tmp_path / "other")
    (tmp_path / "people.txt").write_text("Marie Curie\nAda Lovelace\nNobody\n")
    pages = [("Marie Curie", "Marie Curie was born in 1867."), ("Ada Lovelace", "Ada Lovelace was born in 1815.")]
    KnowledgeBase.build(tmp_path / "kb.sqlite", pages)
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"prompt": "How was Vesta found?", "title": "Marie Curie"}])
    flags = (
        f"--suite long-form --dataset biographies=people.txt --dataset longwiki={prompts} --model {large_model} --model other "
        "--max_new_tokens 8 --device cpu --verifier lexical --knowledge kb.sqlite"
    )
    asked, generate = [], LocalEngine.generate

    def dies(self, requests, generation):
        for request, found in generate(self, requests, generation):
            asked.append(request.item.id)
            yield request, replace(found, text=f"{request.item.topic} was born in 1867.")
            if len(asked) == 6:  # four of the first model, two of the second
                raise RuntimeError("power cut")

    monkeypatch.setattr(LocalEngine, "generate", dies)
    with pytest.raises(RuntimeError, match="power cut"):
        evaluate(flags)
    assert (tmp_path / "all.model.json").exists() and not (tmp_path / "all.json").exists()
    status, printed, err = evaluate(flags)
    assert status == 0, err
    assert len(asked) == 8, "what was answered is not asked again"
    assert "fewer than 10 answers tell nothing of hacks" in err
    order = [(row["benchmark"], row["model"], row["n"]) for row in printed["rows"]]
    assert order == [(b, m, n) for b, n in (("biographies", 3), ("longwiki", 1)) for m in ("model", "other")]
    first, second, *_ = printed["rows"]
    assert {**first, "model": ""} == {**second, "model": ""}, "the same weights say the same"
    assert (first["precision"], first["correct"]) == (1 / 2, 1 / 2), "true, false, and nobody has no page"
    assert first["unknown"] == pytest.approx(1 / 3) and first["recall"] is None
    metrics = [entry["metric"] for entry in load_results("all.other.json")["results"]]
    assert metrics == ["factscore", "longwiki"]


@pytest.mark.slow
def test_hostile_answers(own, tmp_path, evaluate):
    answers(tmp_path, "a|*$x_1$ [b](c) 名.jsonl", lambda *_: "good. bad[c].")
    answers(tmp_path, "empty.jsonl", lambda *_: "")
    answers(tmp_path, "false.jsonl", lambda *_: "bad[c].")
    answers(tmp_path, "unknown.jsonl", lambda *_: "hm[?].")
    answers(tmp_path, "sorry.jsonl", lambda *_: "I'm sorry.")
    files = ["a|*$x_1$ [b](c) 名.jsonl", *(f"{name}.jsonl" for name in "empty false unknown sorry empty".split())]
    flags = [word for file in files for word in ("--answers", file)]
    from hf_factuality.cli import main

    assert main(["evaluate", *SUITE.split(), *JUDGE.split(), *flags, "--out", "x/all.json", "--json"]) == 0
    found = json.loads((tmp_path / "x" / "all.json").read_text())
    rows = {row["model"]: row for row in found["rows"]}
    assert list(rows) == ["a-x-1-b-c-名", "empty", "false", "unknown", "sorry"], "each once"
    axes = {name: (row["precision"], row["correct"], row["recall"], row["front"]) for name, row in rows.items()}
    # This verifier has no judge that could compare a checklist; an empty answer has nothing of it.
    assert axes.pop("a-x-1-b-c-名") == (0.5, 1.0, None, True)
    assert axes == {
        "empty": (None, 0.0, 0.0, False),
        "false": (0.0, 0.0, None, False),
        "unknown": (None, None, None, False),
        "sorry": (None, 0.0, None, False),
    }
    assert [(hack["model"], hack["name"]) for hack in found["hacks"]] == [
        ("empty", "more abstention"),
        ("sorry", "more abstention"),
    ]
    assert "| file | a-x-1-b-c-名 | 0.500 |" in (tmp_path / "x" / "all.md").read_text("utf-8")


def test_one_model_without_matplotlib(own, tmp_path, evaluate, monkeypatch):
    answers(tmp_path, "one.jsonl", lambda *_: "good.")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, printed, err = evaluate(f"{SUITE} {JUDGE} --answers one.jsonl --model_name me --fail_under factscore=0.5")
    assert status == 1 and "file: factscore" in err, "ten facts are wanted"
    assert "no plot: matplotlib is not installed" in err and "no hack was detected\n" in err
    assert [row["front"] for row in printed["rows"]] == [True] and not (tmp_path / "all.png").exists()
    assert load_results("all.one.json")["model"]["name"] == "me"
    assert len(seen()) == 13


@pytest.mark.parametrize(
    ("files", "begin"),
    [
        (["a/x.jsonl", "b/X.jsonl"], "x-"),  # one file where the case of letters is not seen
        ([f"{folder}/{'名' * 80}.jsonl" for folder in "ab"], "名" * 40 + "-"),
    ],
)
def test_two_files_of_one_name(own, tmp_path, evaluate, files, begin):
    for file in files:
        (tmp_path / file).parent.mkdir()
        answers(tmp_path, file, lambda *_: "good.")
    status, printed, err = evaluate(f"{SUITE} {JUDGE} --answers {' --answers '.join(files)}")
    names = [row["model"] for row in printed["rows"]]
    assert status == 0 and len({name.lower() for name in names}) == 2, err
    assert all(name.lower().startswith(begin) for name in names)


@pytest.mark.parametrize("file", ["all.md", "all.png"])
def test_files_of_others_are_not_overwritten(own, tmp_path, evaluate, file):
    answers(tmp_path, "one.jsonl", lambda *_: "good.")
    (tmp_path / file).write_text("mine")
    status, _, err = evaluate(f"{SUITE} {JUDGE} --answers one.jsonl")
    assert status == 2 and f"{file} is no comparison of a suite, and is not overwritten" in err
    assert (tmp_path / file).read_text() == "mine" and not (tmp_path / "all.one.json").exists()


@pytest.mark.parametrize(
    ("subject", "sentences", "share"),
    [
        ("Marie Curie", ["Marie Curie was born in Warsaw.", "She studied.", "Her work won."], 1.0),
        ("Marie Curie", ["Ada wrote.", "She studied.", "Curie's work won.", "It shone.", "Paris is big."], 2 / 5),
        ("居里夫人", ["居里夫人生于华沙。", "她获奖。", "巴黎很大。"], 2 / 3),
        ("Marie Curie", [], None),
        ("Who was he?", ["He sang."], None),
    ],
)
def test_lexical_relevance(subject, sentences, share):
    assert lexical_relevance(subject, sentences) == (None if share is None else pytest.approx(share))


def test_hacks_on_real_answers_with_the_labels_of_annotators(data_dir):
    """ChatGPT's biographies of FActScore: each change trips its own detector alone, and honest ones trip none."""
    lines = (data_dir / "factscore" / "ChatGPT.jsonl").read_text(encoding="utf-8").splitlines()
    names = {"S": Label.SUPPORTED, "NS": Label.CONTRADICTED, "IR": Label.UNVERIFIABLE}
    rows = []
    for row in map(json.loads, lines):
        told = [(it["text"].strip(), it["human-atomic-facts"] or []) for it in row["annotations"] or []]
        told = [(text, [names[fact["label"]] for fact in facts]) for text, facts in told] or [(row["output"], [])]
        rows.append((row["topic"], told))

    def axes(change):
        answers = []
        for number, (topic, told) in enumerate(rows):
            found = change(number, told)
            sentences = [text for text, _ in found]
            labels = [label for _, labels in found for label in labels]
            relevance = lexical_relevance(topic, sentences)
            answers.append(LongFormAnswer(" ".join(sentences), sentences, labels, relevance=relevance))
        return long_form_axes(answers)

    def supported(labels):
        return [label for label in labels if label is Label.SUPPORTED]

    base = axes(lambda _, told: told)
    # 26 of the 183 have no annotation: they abstain. The rule says so of as many.
    assert base["abstention"] == 26 / 183 and base["relevance"] > 0.95 and base["repetition"] < 0.02
    others = [[(text, [Label.SUPPORTED]) for text, _ in told[:3]] for _, told in rows]
    changes = {
        "shorter": lambda _, told: told[:2],
        "vaguer": lambda _, told: [(text, [Label.HEDGED_SUPPORTED for _ in supported(it)]) for text, it in told],
        "more repetition": lambda _, told: told + told[-(len(told) // 3 or 1) :],
        "off the subject": lambda number, told: told + others[number - 1],
        "more abstention": lambda number, told: told if number % 5 else [("I'm sorry.", [])],
    }
    found = {name: [hack.name for hack in detect_hacks(base, axes(change))] for name, change in changes.items()}
    assert found == {name: [name] for name in changes}
    corrected = axes(lambda _, told: [(text, supported(it)) for text, it in told])
    dropped = axes(lambda _, told: [(text, it) for text, it in told if 2 * len(supported(it)) >= len(it)])
    assert corrected["precision"] == 1 and dropped["precision"] > base["precision"] + 0.05
    assert detect_hacks(base, corrected) == detect_hacks(base, dropped) == []
