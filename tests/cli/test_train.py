"""`hf-factuality train METHOD` and the script in `examples/` are the same training, and every method shows its flags."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from hf_factuality.cli import main
from hf_factuality.cli.train import METHODS
from hf_factuality.cli.train.shared import TrainingParser, introduced_by
from hf_factuality.io.recipes import RECIPES, find_recipe
from hf_factuality.spans import Label
from tests.examples.conftest import FAST
from tests.examples.test_fspo import ROWS
from tests.test_recipes import load_training
from tests.trainers.recording import WholeCompletion


REPOSITORY = Path(__file__).resolve().parents[2]


def test_every_method_has_a_module_and_a_script_and_recipes_of_its_name():
    modules = {path.stem for path in (REPOSITORY / "hf_factuality/cli/train").glob("*.py")} - {"__init__", "shared"}
    scripts = {path.stem.removeprefix("train_") for path in (REPOSITORY / "examples").glob("train_*.py")}
    assert set(METHODS) == modules == scripts
    assert all(any((RECIPES / method).glob("*.yaml")) for method in METHODS)
    assert all(
        (REPOSITORY / f"tests/examples/test_{method}.py").exists() for method in set(METHODS) - {"klcf", "fdpo"}
    )


@pytest.mark.parametrize("method", METHODS)
def test_help_shows_own_flags_before_inherited_ones(method, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", method, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and shown.startswith(f"usage: hf-factuality train {method} ")
    own, *inherited = re.split(r"\n(?:trl|transformers)'s \w+:\n", shown.split(f"\nflags of {method}:\n")[1])
    flags = set(re.findall(r"^  --(\w+)", own, re.MULTILINE))
    types = load_training(method).TYPES
    for kind in types["sft"] if isinstance(types, dict) else types:
        for name in kind.__dataclass_fields__:
            assert (name in flags) == introduced_by(kind, name).__module__.startswith("hf_factuality."), name
    assert "--learning_rate" in "".join(inherited) and "--model_name_or_path" in "".join(inherited)


def test_without_a_method_they_are_listed(capsys):
    assert main(["train"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^    {method}\b", shown, re.MULTILINE) for method in METHODS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train fsop --x 1", "hf-factuality train: no command 'fsop'; did you mean fspo?"),
        ("train fspo --verifer x", "hf-factuality train fspo: no flag --verifer; did you mean --verifier?"),
        ("train fspo --verifie x", "hf-factuality train fspo: no flag --verifie; did you mean --verifier?"),
        ("train fspo --num_generations 1 --learning_rat 1", "no flag --learning_rat; did you mean --learning_rate?"),
        ("train fspo fast", "hf-factuality train fspo: 'fast' is of no flag"),
        ("train fspo --config", "hf-factuality train fspo: --config needs the name of a file"),
        ("train fspo --config=recipes/fspo/no.yaml", "recipes/fspo/no.yaml"),
        ("train rlfh --config recipes/fspo/closed-world.yaml", "hf-factuality train rlfh does not know: --"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words, said):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(words):
        return int("no number")

    monkeypatch.setattr(load_training("fspo"), "main", broken)
    with pytest.raises(ValueError, match="invalid literal"):
        main(["train", "fspo"])


def test_recipes_of_the_package_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = RECIPES / "fspo" / "closed-world.yaml"
    assert yaml.safe_load(packaged.read_text(encoding="utf-8"))["learning_rate"] > 0
    assert find_recipe("recipes/fspo/closed-world.yaml") == find_recipe("fspo/closed-world.yaml") == packaged
    (tmp_path / "fspo").mkdir()
    (tmp_path / "fspo" / "closed-world.yaml").write_text("a: 1")
    assert find_recipe("fspo/closed-world.yaml") == Path("fspo/closed-world.yaml")
    assert find_recipe("fspo/none.yaml") == Path("fspo/none.yaml")


class EveryOther(WholeCompletion):
    """Finds every second completion true and the others false, so that there is something to learn."""

    def __init__(self):
        super().__init__(lambda number, _: (Label.SUPPORTED, Label.CONTRADICTED)[number % 2])


@pytest.mark.slow
def test_the_command_and_the_script_train_the_same_model(tiny_model, tmp_path):
    import pandas as pd

    pd.DataFrame(ROWS).to_parquet(tmp_path / "train.parquet")
    flags = ["--model_name_or_path", tiny_model, "--train-files", tmp_path / "train.parquet", "--max_steps", "2"]
    flags += ["--num_generations", "2", "--max_completion_length", "8", "--learning_rate", "0.01", *FAST]
    flags += ["--verifier", f"{__name__}:EveryOther", "--verify_scope", "completion"]
    assert main(["train", "fspo", *map(str, [*flags, "--output_dir", tmp_path / "command"])]) == 0
    script = map(str, [REPOSITORY / "examples" / "train_fspo.py", *flags, "--output_dir", tmp_path / "script"])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, *script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    weights = {name: load_file(tmp_path / name / "model.safetensors") for name in ("command", "script")}
    before = load_file(f"{tiny_model}/model.safetensors")
    assert all((weights["script"][name] == weights["command"][name]).all() for name in before)
    assert any((weights["script"][name] != before[name]).any() for name in before)


@pytest.mark.parametrize(
    ("installed", "words", "recipe", "tracker"),
    [
        (True, [], "", ["trackio"]),
        (False, [], "", []),
        (True, ["--report_to", "none"], "", []),
        (True, ["--report_to=wandb"], "", ["wandb"]),
        (True, [], "report_to: none\n", []),
    ],
)
def test_trackio_is_the_tracker_where_it_is_installed_and_none_is_named(
    installed, words, recipe, tracker, tmp_path, monkeypatch
):
    monkeypatch.setattr("transformers.integrations.is_trackio_available", lambda: installed)
    path = tmp_path / "recipe.yaml"
    path.write_text(f"output_dir: out\nuse_cpu: true\nbf16: false\n{recipe}")
    parser = TrainingParser("fspo", load_training("fspo").TYPES)
    args = next(it for it in parser.read(["--config", str(path), *words]) if hasattr(it, "report_to"))
    assert args.report_to == tracker
    # A Space, which would be public, is made for nobody who did not ask for it.
    assert args.trackio_static_space_id is (False if tracker == ["trackio"] else None)


def test_every_method_logs_in_one_form():
    """Whoever trains takes the log of the commands, and not the dictionaries of transformers."""
    folder = REPOSITORY / "hf_factuality/cli/train"
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert text.count(".train(") <= text.count("use_training_log(trainer)"), path.name
