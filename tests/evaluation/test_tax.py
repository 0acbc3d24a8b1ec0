"""`hf-factuality evaluate --suite tax`, with a stand-in for lm-evaluation-harness, and slowly with the real one."""

import importlib
import inspect
import json
import math
import shutil
import sys

import pytest
import torch

from hf_factuality.evaluation import load_results, tax
from hf_factuality.evaluation.plan import ABILITIES
from tests.evaluation import harness
from tests.evaluation.conftest import write_rows


NO_DATE = {"day": "", "month": "", "year": ""}


def rows_of(name, n):
    """Rows in the columns that each dataset has on the Hub."""
    if name.startswith("arc"):
        choices = {"text": ["a stone", f"{n}", f"{n + 1}"], "label": ["A", "B", "C"]}
        return {"id": str(n), "question": f"Which is number {n}?", "choices": choices, "answerKey": "ABC"[n % 3]}
    if name == "race":
        problems = [
            {"question": "Who has cats?", "answer": "A", "options": ["Ada", "Bea", "Cid", "Dov"]},
            {"question": "How many?", "answer": "ABCD"[n], "options": ["one", "two", "three", "four"]},
        ]
        return {"article": f"Ada has {n} cats.", "problems": str(problems)}
    if name == "piqa":
        return {"goal": f"Open jar {n}", "sol1": "twist the lid", "sol2": "eat it", "label": n % 2}
    if name == "squadv2":
        answers = {"text": ["Warsaw"] if n else [], "answer_start": [24] if n else []}
        context = "Marie Curie was born in Warsaw."
        return {"id": str(n), "title": "Curie", "context": context, "question": "Where?", "answers": answers}
    answer = {"number": "3", "date": NO_DATE, "spans": [], "worker_id": "", "hit_id": ""}
    others = {"number": [""], "date": [NO_DATE], "spans": [["three games"]], "worker_id": [""], "hit_id": [""]}
    row = {"section_id": "x", "query_id": str(n), "passage": "They won 3 games.", "question": "How many?"}
    return {**row, "answer": answer, "validated_answers": others}


@pytest.fixture
def evaluate(command, tmp_path, monkeypatch, tiny_model):
    """Three models, a file of four rows for each ability, and two questions of one's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("before", "after", "avg/alpha-0.2"):
        shutil.copytree(tiny_model, tmp_path / name)
    for name in ABILITIES:
        write_rows(tmp_path / f"{name}.jsonl", [rows_of(name, n) for n in range(4)])
    write_rows(
        tmp_path / "own.jsonl", [{"question": "Where?", "answer": "Warsaw"}, {"question": "Who?", "answer": "Ada"}]
    )
    common = "--suite tax --dataset file=own.jsonl --max_new_tokens 4 --device cpu --out tax.json"
    return lambda flags: command(*common.split(), *flags.split())


def files(*names):
    return " ".join(f"--dataset {name}={name}.jsonl" for name in names or ABILITIES)


MODELS = "--model before --model after --model avg/alpha-0.2"


@pytest.mark.slow
def test_tax_of_three_models(evaluate, tmp_path, monkeypatch):
    harness.install(monkeypatch)
    named = files("arc_easy", "squadv2").replace("=arc", f"={tmp_path}/arc")
    status, printed, err = evaluate(f"{MODELS} {named} --fail_under arc_easy.accuracy=0.6")
    assert status == 1 and "arc_easy: accuracy 0.5 is below 0.6" in err
    assert json.loads((tmp_path / "tax.json").read_text()) == printed
    before, after, other = printed["rows"]
    assert [row["model"] for row in printed["rows"]] == ["before", "after", "alpha-0.2"]
    assert before["benchmark"] == "file.accuracy" and before["value"] == 0 and before["front"] and not after["front"]
    # Two of four right: the deviation of 1, 0, 1, 0 is sqrt(1/3), its standard error half of that.
    error = math.sqrt(1 / 3) / 2
    half = {"value": 0.5, "standard_error": error, "tax": 0.5, "tax_error": error}
    mean = {"value": 0.5, "standard_error": error / math.sqrt(2), "tax": 0.5, "tax_error": error / math.sqrt(2)}
    assert {name: pytest.approx(it) for name, it in after["abilities"].items()} == {
        "arc_easy": half, "squadv2": half, "mean": mean
    }  # fmt: skip
    assert before["abilities"]["mean"] == {"value": 1.0, "standard_error": 0.0, "tax": 0.0, "tax_error": 0.0}
    line = "| file.accuracy | after | 0.000 | False | 0.500 ± 0.289 (0.500 ± 0.289) | 0.500 ± 0.289 (0.500 ± 0.289) | 0.500 ± 0.204 (0.500 ± 0.204) |"
    assert line in (tmp_path / "tax.md").read_text()
    assert (tmp_path / "tax.png").read_bytes().startswith(b"\x89PNG")
    found = load_results("tax.after.json")
    assert [(it["benchmark"], it["metric"], it["value"]) for it in found["results"]] == [
        ("file", "accuracy", 0.0), ("arc_easy", "accuracy", 0.5), ("squadv2", "f1", 0.5)
    ]  # fmt: skip
    assert found["results"][1]["parts"] == {"standard_error": pytest.approx(error), "acc_norm": 0.25}
    assert found["results"][1]["dataset"]["used"] == 4 and "--suite tax" in found["command"]
    assert "--dataset file=own.jsonl --dataset arc_easy=arc_easy.jsonl" in found["command"], "names no folder"
    # All of it is known to a second run; a sample is another measurement.
    assert [name for name, _ in harness.asked] == ["arc_easy", "squadv2"] * 3
    harness.asked.clear()
    assert evaluate(f"{MODELS} {files('arc_easy', 'squadv2')}")[1]["rows"] == printed["rows"] and not harness.asked
    assert (
        evaluate(f"--model after {files('arc_easy')} --limit 1")[1]["rows"][0]["abilities"]["arc_easy"][
            "standard_error"
        ]
        is None
    )
    evaluate(f"--model after {files('arc_easy')} --limit 3 --seed 1 --overwrite")
    evaluate(f"--model after {files('arc_easy')} --overwrite")
    assert [len(rows) for _, rows in harness.asked] == [1, 3, 4] and len(set(harness.asked[1][1])) == 3


@pytest.mark.slow
def test_a_killed_run_goes_on(evaluate, tmp_path, monkeypatch):
    harness.install(monkeypatch)
    real = harness.evaluate

    def dies(*args, **kwargs):
        if len(harness.asked) == 3:
            raise RuntimeError("power cut")
        return real(*args, **kwargs)

    monkeypatch.setattr("lm_eval.evaluate", dies)
    with pytest.raises(RuntimeError, match="power cut"):
        evaluate(f"{MODELS} {files('race', 'drop')}")
    assert not (tmp_path / "tax.json").exists()
    monkeypatch.setattr("lm_eval.evaluate", real)
    status, printed, err = evaluate(f"{MODELS} {files('race', 'drop')}")
    assert status == 0, err
    assert [name for name, _ in harness.asked] == ["race", "drop"] * 3, (
        "two of the first model and one of the second were known"
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--model before --dataset piqa=none.jsonl", "none.jsonl"),
        ("--model before --dataset piqa=own.jsonl", "piqa: row 0 of own.jsonl cannot be read (KeyError"),
        ("--model before --dataset piqa=own.txt", "must be a .jsonl, .ndjson, .json, .csv, .tsv or .parquet file"),
        ("--model before --dataset arc_easy=wrong.jsonl", "arc_easy: row 1 of wrong.jsonl cannot be read (ValueError"),
        (
            "--model before --dataset piqa=label.jsonl",
            "piqa: row 0 of label.jsonl cannot be read (ValueError: there is no choice 2",
        ),
        (
            "--model before --dataset squadv2=squad.jsonl",
            "row 0 of squad.jsonl cannot be read (ValueError: answers.text",
        ),
        (
            "--model before --dataset arc_esay=own.jsonl",
            "give --dataset NAME=PATH for each, with a NAME of aa-omniscience",
        ),
        ("--model before --dataset piqa=empty.jsonl", "piqa: the rows of empty.jsonl cannot be read"),
    ],
)
def test_files_are_checked_before_a_model_is_loaded(evaluate, tmp_path, monkeypatch, flags, says):
    harness.install(monkeypatch)
    monkeypatch.setattr("hf_factuality.evaluation.local.LocalEngine", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "own.txt").write_text("?")
    (tmp_path / "empty.jsonl").write_text("")
    write_rows(tmp_path / "wrong.jsonl", [rows_of("arc_easy", 0), {**rows_of("arc_easy", 1), "answerKey": "E"}])
    write_rows(tmp_path / "squad.jsonl", [{**rows_of("squadv2", 0), "answers": {"text": "Warsaw"}}])
    write_rows(tmp_path / "label.jsonl", [{**rows_of("piqa", 0), "label": 2}])
    status, _, err = evaluate(flags)
    assert status == 2 and says in err


def test_without_the_harness(evaluate, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    status, _, err = evaluate("--model none")
    assert status == 2 and "pip install hf_factuality[tax]" in err


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name not in ("args", "kwargs")]


@pytest.mark.slow
def test_real_harness(evaluate, tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    for place, content in harness.MODULES.items():
        module = importlib.import_module(place)
        for name, stand_in in content.items():
            real = getattr(module, name)
            if inspect.isclass(stand_in):
                for method, own in vars(stand_in).items():
                    if inspect.isfunction(own):
                        assert set(parameters(own)) <= set(parameters(getattr(real, method))), (name, method)
            elif callable(stand_in):
                assert set(parameters(stand_in)) <= set(parameters(real)), name
    status, printed, err = evaluate(f"{MODELS} {files()}")
    assert status == 0, err
    row = printed["rows"][0]
    assert list(row["abilities"]) == [*ABILITIES, "mean"]
    results = load_results("tax.before.json")["results"]
    assert results[1]["generation"]["harness"] == f"lm_eval {lm_eval.__version__}"
    # PIQA, by log-likelihoods of our own.
    from hf_factuality.evaluation.local import LocalEngine

    engine = LocalEngine("before", device="cpu")
    right = 0
    for n in range(4):
        doc = rows_of("piqa", n)
        prompt = engine.tokenizer(f"Question: {doc['goal']}\nAnswer:")["input_ids"]
        sums = []
        for text in (doc["sol1"], doc["sol2"]):
            ids = engine.tokenizer(f"Question: {doc['goal']}\nAnswer: {text}")["input_ids"]
            with torch.no_grad():
                logs = engine.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            sums.append(sum(logs[place - 1, ids[place]].item() for place in range(len(prompt), len(ids))))
        right += sums.index(max(sums)) == doc["label"]
    assert row["abilities"]["piqa"]["value"] == right / 4
    docs = [{"answers": {"text": golds}} for golds in (["in Warsaw", "Warsaw"], ["Warsaw"], [], [])]
    said = ("The Warsaw!", "Warsaw, Poland", " \n", "Warsaw")
    scores = [tax._squad_f1(doc, [text])["f1"] for doc, text in zip(docs, said, strict=True)]
    assert scores == pytest.approx([1, 2 / 3, 1, 0])
    for wrong in ("piqa", "race", "drop", "squadv2"):
        status, _, err = evaluate(f"--model before --dataset {wrong}=own.jsonl")
        assert status == 2 and f"{wrong}: " in err and "cannot be read" in err
