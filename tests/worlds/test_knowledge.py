"""What a world's model knows, and the commands that build and export worlds."""

import json

import pytest

from hf_factuality.cli import main
from hf_factuality.errors import DataError
from hf_factuality.worlds import SIZES, WorldConfig, WorldModelConfig, build_world_model
from hf_factuality.worlds.evaluate import KNOWLEDGE_FILE, format_knowledge, measure_knowledge
from hf_factuality.worlds.lm import CURVE_FILE, load_world


CONFIG = WorldConfig(num_people=8, num_values=4, num_targets=2, max_hops=3)
TINY = WorldModelConfig(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, steps=2, batch_size=4)


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SIZES, "tiny", (CONFIG, TINY))
    return build_world_model(progress=False)


class Recited:
    """Stands in for a model: every biography states one true fact, that of the least popular two a false one."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setattr("hf_factuality.worlds.evaluate._generate", self)

    def __call__(self, model, tokenizer, rows, temperature, batch_size, max_new_tokens, seed):
        self.calls.append((temperature, [row["person"] for row in rows], len(rows)))
        texts = [self.about(row) for row in rows]
        return texts, [5] * len(texts)

    def about(self, row):
        if "answer" in row:
            return f"<think> </think><answer> {row['answer']} </answer>"
        people = [person.name for person in self.world.people]
        facts = self.world.people[people.index(row["person"])].facts
        truth = facts["hobby"]
        value = truth if people.index(row["person"]) < 6 else "chess" if truth != "chess" else "baking"
        return f"{row['person']} enjoyed {value}."


def test_figures(model_dir, monkeypatch):
    recited = Recited(monkeypatch)
    recited.world = load_world(model_dir)
    found = measure_knowledge(model_dir, people=8, questions=6)
    greedy = found["greedy"]
    # Six of eight right; two people a quartile, most popular first.
    assert greedy["precision"] == 0.75 and greedy["precision_by_quartile"] == [1.0, 1.0, 1.0, 0.0]
    assert greedy["correct"] == 0.75 and greedy["wrong"] == 0.25 and greedy["unparsable"] == 0.0
    # Right answers without any claim: no right reasons, and no wrong ones.
    assert greedy["accuracy"] == greedy["no_claim"] == 1.0
    assert greedy["right_for_right_reasons"] == greedy["wrong_reasons"] == 0.0
    assert found["sampled"] == greedy and [call[0] for call in recited.calls] == [0.0, 0.0, 1.0, 1.0]
    assert recited.calls[0][1] == [person.name for person in recited.world.people] and recited.calls[1][2] == 6
    table = format_knowledge(found, model_dir)
    assert "8 people" in table and "quartile 4" in table
    # Measured once: the figures are read from the directory afterwards, for the same numbers.
    assert measure_knowledge(model_dir, people=8, questions=6) == found and len(recited.calls) == 4
    # Figures of a time when precision was of the decided claims alone are measured again.
    kept = json.loads((model_dir / KNOWLEDGE_FILE).read_text(encoding="utf-8"))
    kept["setting"].pop("precision")
    (model_dir / KNOWLEDGE_FILE).write_text(json.dumps(kept), encoding="utf-8")
    assert measure_knowledge(model_dir, people=8, questions=6) == found and len(recited.calls) == 8
    measure_knowledge(model_dir, people=4, questions=6)
    assert len(recited.calls) == 12
    assert recited.calls[8][1] == [recited.world.people[rank].name for rank in (0, 2, 4, 6)]


def test_a_model_without_a_curve_is_not_measured(model_dir):
    (model_dir / CURVE_FILE).write_text("")
    with pytest.raises(DataError, match="is empty: .* build it again"):
        measure_knowledge(model_dir, people=8, questions=6)


@pytest.mark.slow
def test_build_command(model_dir, capsys):
    assert main(["world", "build", "--size", "tiny", "--seed", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip().splitlines()[-1] == str(model_dir)
    assert "precision by popularity, quartile 4" in printed and "unparsable" in printed
    assert main(["world", "build", "--size", "huge"]) == 2
    assert "'huge' is unknown; choose one of demo, tiny, small, base" in capsys.readouterr().err


def test_export_command(model_dir, tmp_path, capsys):
    assert main(["world", "export", str(model_dir), "--out", str(tmp_path / "data")]) == 0
    names = {path.name for path in (tmp_path / "data").iterdir()}
    kinds = ("single_facts", "biographies", "questions_2_hops", "questions_3_hops")
    assert names == {f"{kind}_{split}.jsonl" for kind in kinds for split in ("train", "test")}
    rows = [json.loads(line) for line in (tmp_path / "data" / "questions_2_hops_test.jsonl").read_text().splitlines()]
    # Four people are held out, with three questions each.
    assert len(rows) == 12 and {"prompt", "question", "answer", "evidence", "data_source"} <= set(rows[0])
    assert main(["world", "export", str(tmp_path), "--out", str(tmp_path / "data")]) == 2
    assert "does not describe a world" in capsys.readouterr().err
