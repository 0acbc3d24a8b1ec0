"""Every training that refuses its input says why in one line, before any weights are loaded."""

import sys

import pytest
from datasets import Dataset

from hf_factuality.cli.train import METHODS, run_training
from hf_factuality.data.reading import open_dataset
from hf_factuality.errors import DataError
from hf_factuality.io.refusals import run_script
from tests.conftest import fast_few
from tests.test_recipes import load_example


CPU = "--use_cpu true --bf16 false --report_to none --per_device_train_batch_size 8 --output_dir out".split()
DATA = {
    "rtuning": "--refusals", "raft": "--questions", "averaging": "--questions", "truthfulness": "--dataset_name",
}  # fmt: skip
MORE = {"averaging": ["--before", "model"], "token_reward_model": ["--reward_model", "model"]}


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """The line with which a training, or another script, ends."""
    monkeypatch.chdir(tmp_path)

    def refused(name, *arguments):
        words = list(map(str, arguments))
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        with pytest.raises(SystemExit) as end:
            run_training(name, words) if name in METHODS else run_script(load_example(name).main)
        line = capsys.readouterr().err.splitlines()[-1]
        program = f"hf-factuality train {name}" if name in METHODS else f"{name}.py"
        assert end.value.code == 2 and line.startswith(f"{program}: ")
        return line

    return refused


@pytest.mark.parametrize("name", fast_few(METHODS, *range(0, 99, 4)))
def test_input_that_no_training_can_use(name, refused, tiny_model, tmp_path):
    model, flag = ["--model_name_or_path", tiny_model], DATA.get(name, "--dataset_name")
    more = [*MORE.get(name, []), *CPU]
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n b: }")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "train.jsonl").write_text("")
    (tmp_path / "numbers").mkdir()
    row = '{"prompt": 1, "completion": 2, "question": 3, "answer": 4, "chosen": 5, "rejected": 6}\n'
    (tmp_path / "numbers" / "train.jsonl").write_text(row)
    assert "--config" in refused(name, "--config")
    assert "no.yaml" in refused(name, "--config", "no.yaml")
    assert "list.yaml" in refused(name, "--config", "list.yaml")
    assert "broken.yaml" in refused(name, "--config", "broken.yaml")
    assert "--bogus" in refused(name, *model, "--bogus", "3", *more)
    data = flag if name != "process_reward" else "--dataset_name"
    refused(name, *model, *more)
    assert "nowhere" in refused(name, *model, data, "nowhere", *more)
    file = "empty" if flag != "--questions" else "empty/train.jsonl"
    assert "no" in refused(name, *model, data, file, *more)
    refused(name, *model, data, file.replace("empty", "numbers"), *more)
    refused(name, data, file, *more)


def test_a_dataset_without_the_columns_is_refused_by_their_names(refused, tiny_model, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"foo": 1}\n')
    line = refused("rtuning", "--model_name_or_path", tiny_model, "--refusals", "data", *CPU)
    assert "'completion'" in line and "foo" in line


def test_a_split_without_rows_is_refused(tmp_path):
    Dataset.from_list([{"text": "x"}]).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train\[1:\].* cannot be loaded.*no data"):
        open_dataset(str(tmp_path), split="train[1:]")


def test_the_reward_model_script(refused, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "scalar.jsonl").write_text("3\n")
    assert "empty.jsonl" in refused("evaluate_reward_model", "--verifier", "lexical", "--data", "empty.jsonl")
    assert "got 3" in refused("evaluate_reward_model", "--verifier", "lexical", "--data", "scalar.jsonl")
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    assert "'bogus'" in refused("evaluate_reward_model", "--verifier", "bogus", "--data", "pairs.jsonl")
