"""Adaptive model averaging in the closed world, from the base to the average."""

import pytest
from transformers import AutoModelForCausalLM

from hf_factuality.hub.results import load_results
from hf_factuality.methods.averaging.average import Ratios
from tests.examples.conftest import FAST, checked_card


@pytest.mark.slow
def test_the_closed_world_measures_before_and_after(run, small_questions, tmp_path, capsys):
    out = tmp_path / "ama"
    short = (
        "--selector",
        "tests.methods.process_reward.test_reward:Steps",
        "--max_steps",
        "2",
        "--blocks",
        "1",
        "--alpha",
        "0.3",
    )
    run("--output_dir", out, *short, *FAST)
    assert "answer accuracy" in capsys.readouterr().out and load_results(out / "results-after.json")["results"]
    card = checked_card(out)
    assert "papers/2309.06256" in card and "| answer accuracy | not measured | 0." in card
    assert Ratios.load(out).ratios == {"0": pytest.approx(0.3)}
    assert (out / "aligned" / "model.safetensors").exists() and AutoModelForCausalLM.from_pretrained(out)


@pytest.mark.parametrize(
    "given",
    [
        ["--questions", "rows.jsonl"],
        ["--before", "one"],
        ["--before", "one", "--questions", "a", "--dataset_name", "b"],
    ],
)
def test_what_is_missing_is_said_at_once(run, given):
    with pytest.raises(ValueError, match="give --before, and either --questions or --dataset_name"):
        run("--model_name_or_path", "other", *given, "--output_dir", "nowhere", *FAST)
