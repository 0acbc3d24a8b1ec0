"""Datasets of folders, as the builders write them."""

import datasets
import pytest

from hf_factuality.data.benchmarks.registry import get_benchmark
from hf_factuality.data.benchmarks.sources import _load_dataset
from hf_factuality.data.reading import open_dataset


CARD = "---\nconfigs:\n- config_name: default\n  data_files: rows.parquet\n---\n\n# Rows\n"


def fill(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list([{"text": text}]).to_parquet(folder / "rows.parquet")
    (folder / "README.md").write_text(CARD)
    return str(folder)


@pytest.mark.parametrize(
    "texts_of",
    [
        lambda name: open_dataset(name)["text"][:],
        lambda name: [row["text"] for row in _load_dataset(get_benchmark("gsm8k"), name, None, None)[1]],
    ],
    ids=["builders", "benchmarks"],
)
def test_folders_of_one_name_and_folders_that_change(tmp_path, texts_of):
    first, second = fill(tmp_path / "a" / "refusals", "one"), fill(tmp_path / "b" / "refusals", "two")
    assert texts_of(first) == ["one"] and texts_of(second) == ["two"]
    fill(tmp_path / "a" / "refusals", "three")
    assert texts_of(first) == ["three"] and texts_of(second) == ["two"]
