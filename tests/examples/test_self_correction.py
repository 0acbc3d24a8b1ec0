"""The example, as a user runs it: its stages in the closed world, and on the folder of `build-corrections`."""

import pytest
from datasets import Dataset

from hf_factuality.demos import closed_world
from hf_factuality.hub.results import load_results
from hf_factuality.worlds import WorldConfig, WorldModelConfig
from tests.examples.conftest import FAST, checked_card


FEW = ["--max_steps", "2", *FAST]


@pytest.mark.slow
def test_the_stages_in_the_closed_world(run, tmp_path, capsys, monkeypatch):
    build = closed_world.build_world_model

    def small(**_):  # one that answers in the form, and by chance right: there are six countries
        model = WorldModelConfig(
            hidden_size=64, intermediate_size=128, num_layers=1, batch_size=32, questions=0.9, short_answers=0.0
        )
        world = WorldConfig(num_people=24, num_attributes=0)
        return build(world, tmp_path / "closed-world", model, steps=150, progress=False)

    monkeypatch.setattr(closed_world, "build_world_model", small)
    monkeypatch.chdir(tmp_path)
    for stage in ("sft", "dpo", "rl"):
        batch = ["--per_device_train_batch_size", "16"]
        run("--stage", stage, "--output_dir", tmp_path / f"self-correction-closed-world-{stage}", *FEW, *batch)
        printed = capsys.readouterr().out
        assert "first answers that are right" in printed and "interval of the change" in printed
        out = tmp_path / f"self-correction-closed-world-{stage}"
        card, results = checked_card(out), load_results(out / "results-after.json")["results"]
        assert "papers/2502.19613" in card and "- self-rewarding-correction" in card and "fspo" not in card
        for it in results:
            (line,) = [row for row in printed.splitlines() if row.startswith(it["title"])]
            assert f"{it['value']:.3f}" in line
        assert "| last answers that are right | 0." in card
    folders = {path.name for path in tmp_path.glob("self-correction-closed-world-dpo/corrections-*")}
    assert folders == {
        "corrections-self-correction-closed-world-sft-pairs-seed42"
    }  # from what the stage before has saved


@pytest.mark.slow
def test_the_folder_of_a_run(run, tmp_path, tiny_model):
    (tmp_path / "data").mkdir()
    said = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "abcd", strict=True)]
    rows = Dataset.from_list(
        [{"prompt": said[:3], "chosen": said[3:], "rejected": [{"role": "assistant", "content": "e"}]}] * 4
    )
    rows.to_parquet(tmp_path / "data" / "corrections.parquet")
    given = ["--model_name_or_path", tiny_model, "--dataset_name", tmp_path / "data", "--output_dir", tmp_path / "out"]
    run("--stage", "dpo", *given, *FEW)
    assert (tmp_path / "out" / "model.safetensors").exists() and "2502.19613" in checked_card(tmp_path / "out")
    with pytest.raises(SystemExit):
        run("--stage", "ppo", *given)
