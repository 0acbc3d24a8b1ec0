"""`hf-factuality compare` and `hf_factuality.compare` do the same."""

import json
from pathlib import Path

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.hub.results import write_results
from tests.evaluation.test_results import MACHINE, MODEL, entry


def test_command_and_function_give_the_same_result(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("before.json", "after.json")]
    write_results(Path(paths[0]), MODEL, [entry(), entry("x", higher_is_better=False), entry("y")], MACHINE)
    changed = entry("y", generation={"max_new_tokens": 9})
    write_results(
        Path(paths[1]), MODEL, [entry(value=0.75), entry("x", value=0.25, higher_is_better=False), changed], MACHINE
    )
    comparison = hf_factuality.compare(*paths)
    assert main(["compare", *paths]) == 0
    said = capsys.readouterr()
    assert said.err == f"{comparison}\n" and json.loads(said.out) == json.loads(json.dumps(comparison.to_dict()))
    assert [(it["benchmark"], it["verdict"]) for it in comparison.to_dict()["compared"]] == [
        ("gsm8k", "within noise"),
        ("x", "within noise"),
    ]
    assert comparison.to_pandas()["change"].tolist() == [0.25, -0.25]
    assert comparison.different == {("y", "accuracy"): ("generation.max_new_tokens",)}
    loaded = [json.loads((tmp_path / name).read_text()) for name in ("before.json", "after.json")]
    assert hf_factuality.compare(*loaded) == comparison


def test_what_is_refused(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "none.json"), str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
