"""Items and files of the evaluation tests."""

import json
from pathlib import Path

import pytest

from hf_factuality.cli import main
from tests.evaluation.judges import Judge


def write_rows(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def nothing_judged_yet(monkeypatch):
    monkeypatch.setattr(Judge, "calls", [])


@pytest.fixture
def command(capsys, monkeypatch, tmp_path_factory):
    """Runs `hf-factuality evaluate`; returns the status, what it printed as JSON, and its error stream."""
    # Answers of judges are cached for the user; those of a test must not be.
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path_factory.mktemp("cache") / "answers.sqlite"))

    def run(*arguments):
        status = main(["evaluate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out else None, err

    return run


@pytest.fixture
def gsm8k(tmp_path) -> Path:
    """Four questions; the gold answers are 1 to 4."""
    rows = [{"question": f"What is {n} + 0?", "answer": f"It is {n}. #### {n}"} for n in range(1, 5)]
    return write_rows(tmp_path / "gsm8k.jsonl", rows)


@pytest.fixture
def truthfulqa(tmp_path) -> Path:
    rows = [
        {
            "question": f"Where was {name} born?",
            "mc1_targets": {"choices": ["In Warsaw.", "In Paris, perhaps."], "labels": [1, 0]},
            "mc2_targets": {"choices": ["In Warsaw.", "In Poland.", "In Paris, perhaps."], "labels": [1, 1, 0]},
        }
        for name in ("Marie", "the old lady who won two prizes")
    ]
    return write_rows(tmp_path / "truthfulqa.jsonl", rows)


@pytest.fixture(scope="session")
def large_model(tmp_path_factory, tiny_model) -> str:
    """[`tiny_model`] with room for the published prompts of TruthfulQA."""
    import shutil

    folder = tmp_path_factory.mktemp("large") / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return str(folder)


@pytest.fixture
def own(tmp_path):
    """A file of one's own: two questions with gold answers and evidence, one with neither."""
    rows = [
        {"id": "x", "question": "Where?", "answer": "Warsaw", "evidence": ["Marie Curie was born in Warsaw."]},
        {"id": "y", "question": "When?", "answer": ["1867", "in 1867"], "evidence": "Marie Curie was born in 1867."},
        {"id": "z", "prompt": [{"role": "user", "content": "Who?"}], "answer": "Marie"},
    ]
    return write_rows(tmp_path / "own.jsonl", rows)


@pytest.fixture
def own_answers(tmp_path):
    rows = [
        {"id": "z", "completion": "<think>Marie or Ada?</think>Marie!"},
        {
            "id": "x",
            "completion": "<think>Hm.</think>\nMarie Curie was born in Warsaw. Marie Curie was born in Paris.",
        },
        {"id": "y", "completion": "In 1867."},
    ]
    return write_rows(tmp_path / "answers.jsonl", rows)
