"""Loading by path and, once installed, by name; what the command prints; what the page shows."""

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_factuality.cli.metrics import add_parser
from hf_factuality.metrics import METRIC_NAMES, installed, metric_path, write_spaces
from hf_factuality.metrics.install import describe_metrics, install
from hf_factuality.metrics.push import space_files
from tests.hub.loopback import LoopbackHub


REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE = REPOSITORY / "docs" / "metrics.md"


def version(cache, name="factscore"):
    """The folders that `evaluate` takes for versions of a metric."""
    folder = Path(cache) / "evaluate_modules" / "metrics" / f"evaluate-metric--{name}"
    return sorted(path for path in folder.iterdir() if len(path.name) == 64)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """What a program sees with a cache of its own and no network, then a Hub: several loads, in one interpreter."""
    home = tmp_path_factory.mktemp("home")
    hub, files = LoopbackHub(), space_files("factscore", "someone", "hf_factuality==1.2")
    hub.add("someone/factscore", {name: text.encode() for name, text in files.items()}, "space", private=True)
    write_spaces(home / "spaces", namespace="someone", requirement="hf_factuality==1.2")
    code = """
        import contextlib, io, json, re, sys
        import evaluate
        from hf_factuality.metrics import METRIC_NAMES, installed, metric_path
        from hf_factuality.metrics.install import install

        found = {}
        try:
            evaluate.load("factscore")
        except FileNotFoundError as error:
            found["before"] = str(error)
        found["by_path"] = {name: evaluate.load(str(metric_path(name))).name for name in METRIC_NAMES}
        found["spaces"] = {name: evaluate.load(f"spaces/{name}").name for name in METRIC_NAMES}
        found["by_folder"] = evaluate.load(str(metric_path("safe").parent)).name
        found["paths"] = {name: str(path) for name, path in install().items()}
        found["installed"] = sorted(installed())
        found["by_name"] = {name: evaluate.load(name).name for name in METRIC_NAMES}
        found["score"] = evaluate.load("factscore").compute(predictions=[["S", "NS"]], gamma=0)["factscore"]
        found["text"] = evaluate.load("factscore").compute(
            predictions=["Ada was born in London."], references=["Ada was born in London in 1815."], gamma=0
        )["factscore"]
        found["class"] = type(evaluate.load("refusal_ap")).__name__
        both = evaluate.combine(["factscore", "safe"])
        found["combined"] = [key for key in both.compute(predictions=[["supported"]]) if key in METRIC_NAMES]
        found["examples"] = []
        for block in re.findall(r"```python\\n(.*?)```", open(sys.argv[1], encoding="utf-8").read(), re.DOTALL):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(block, {})
            found["examples"].append(printed.getvalue().splitlines())

        import datasets, huggingface_hub
        for settings, name in (
            (evaluate.config, "HF_EVALUATE_OFFLINE"),
            (datasets.config, "HF_HUB_OFFLINE"),
            (huggingface_hub.constants, "HF_HUB_OFFLINE"),
        ):
            assert getattr(settings, name) is True
            setattr(settings, name, False)
        token = datasets.DownloadConfig(token=True)
        metric = evaluate.load("someone/factscore", download_config=token)
        score = metric.compute(predictions=[["S", "NS"], ["S", "S"]], gamma=0)["factscore"]
        found["by_hub"] = [metric.name, type(metric).__name__, score]
        print(json.dumps(found))
    """
    environment = hub.environment(home, HF_EVALUATE_OFFLINE="1", HF_HUB_OFFLINE="1")
    command = [sys.executable, "-c", textwrap.dedent(code), str(PAGE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env=environment)
    hub.close()
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout.splitlines()[-1]), hub


@pytest.mark.slow
def test_names_load_offline_after_installation(fresh):
    home, found, _ = fresh
    assert "factscore" in found["before"]
    assert found["by_name"] == {name: name for name in METRIC_NAMES}
    assert found["score"] == 0.5 and found["text"] == 1.0
    assert found["class"] == "RefusalAp"  # the metric's class, and not the one that it is derived from
    assert found["installed"] == sorted(METRIC_NAMES) and found["combined"] == ["factscore", "safe"]
    for path in found["paths"].values():
        assert Path(path).is_relative_to(home / "modules" / "evaluate_modules" / "metrics")


@pytest.mark.slow
def test_paths_load_without_installation(fresh):
    _, found, _ = fresh
    assert found["by_path"] == found["spaces"] == {name: name for name in METRIC_NAMES}
    assert found["by_folder"] == "safe"


@pytest.mark.slow
def test_a_space_loads_by_name(fresh):
    """`evaluate` first asks for its own version, then for main; before there was a network, it had asked nothing."""
    _, found, hub = fresh
    assert found["by_hub"] == ["factscore", "Factscore", 0.75]
    assert hub.count("GET", "^/spaces/someone/factscore/resolve/main/factscore.py$")
    assert not [path for _, path in hub.calls if "someone" not in path]


def test_evaluate_reads_the_imports_of_a_module_right():
    """It parses import lines itself: each names one library, and that can be imported."""
    from evaluate.loading import get_imports

    for name in METRIC_NAMES:
        assert {kind for kind, *_ in get_imports(str(metric_path(name)))} == {"library"}
        assert {library for _, library, *_ in get_imports(str(metric_path(name)))} == {"hf_factuality"}


def test_installing_again_changes_nothing(tmp_path):
    first = install(tmp_path)
    before = {name: path.read_bytes() for name, path in first.items()}
    assert install(tmp_path) == first == installed(tmp_path)
    assert {name: path.read_bytes() for name, path in first.items()} == before
    for name, path in first.items():
        assert version(tmp_path, name) == [path.parent] and path.read_bytes() == metric_path(name).read_bytes()
        assert not list(path.parent.parent.glob(".*"))
        assert json.loads(path.with_suffix(".json").read_text())["original file path"] == str(metric_path(name))


def test_it_is_newer_than_other_versions(tmp_path):
    """`evaluate` takes the newest script, even if an older one is dated in the future."""
    ours = install(tmp_path)["factscore"]
    other = ours.parent.parent / ("0" * 64)
    other.mkdir()
    (other / "factscore.py").write_text("raise ImportError\n")
    os.utime(other / "factscore.py", (4e9, 4e9))
    assert "factscore" not in installed(tmp_path)
    assert install(tmp_path)["factscore"] == ours and installed(tmp_path)["factscore"] == ours
    assert other.is_dir() and ours.stat().st_mtime > 4e9


def test_it_mends_what_is_broken(tmp_path):
    ours = install(tmp_path)["safe"]
    lost = ours.parent.parent / ("f" * 64)
    lost.mkdir()  # evaluate finds no version at all while such a folder is there
    (ours.parent.parent / ".installing").mkdir()
    ours.write_text("broken")
    assert "safe" not in installed(tmp_path)
    assert install(tmp_path)["safe"] == ours == installed(tmp_path)["safe"]
    assert not lost.exists() and version(tmp_path, "safe") == [ours.parent]
    assert not list(ours.parent.parent.glob(".*"))


def test_several_may_install_at_once(tmp_path):
    """Each opens the lock's file for itself, as processes do."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(install, [tmp_path] * 8))
    assert found == [installed(tmp_path)] * 8 and sorted(found[0]) == sorted(METRIC_NAMES)


def test_the_default_cache_is_that_of_evaluate(tmp_path, monkeypatch):
    from evaluate import config

    monkeypatch.setattr(config, "HF_MODULES_CACHE", tmp_path)
    assert installed() == {} and not list(tmp_path.iterdir())
    assert all(path.is_relative_to(tmp_path) for path in install().values())
    assert sorted(installed()) == sorted(METRIC_NAMES)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="'bleu'.*factscore"):
        metric_path("bleu")


def test_command_line(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())

    def run(*arguments):
        args = parser.parse_args(["metrics", *arguments, "--modules_cache", str(tmp_path)])
        assert args.run(args) == 0
        return capsys.readouterr().out

    assert "hf-factuality metrics install" in run("list")
    assert len(re.findall(r"factscore.*factscore\.py", run("install"))) == 1
    listing = run("list")
    assert listing.count("installed") == len(METRIC_NAMES) == len(listing.splitlines())
    assert all(text in listing for text in describe_metrics().values())


def test_listing_imports_no_metric_and_no_evaluate():
    code = (
        "import sys; from hf_factuality.metrics import metric_path; "
        "from hf_factuality.metrics.install import describe_metrics; "
        "import hf_factuality.cli.metrics; describe_metrics(); "
        "print(sorted({'evaluate', 'torch', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_imports_log_nothing():
    """Not even at the level of debugging, whatever is used; `evaluate` itself is not imported."""
    code = (
        "import logging; logging.basicConfig(level=0); import hf_factuality.metrics as metrics; "
        "[getattr(metrics, name) for name in metrics.__all__]; "
        "[metrics.compute(name, []) for name in metrics.METRIC_NAMES]"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_page_lists_every_metric():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in METRIC_NAMES)


@pytest.mark.slow
def test_the_examples_of_the_page_run(fresh):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    shown = [[line[2:] for line in block.splitlines() if re.match(r"# [\d.]+ ", line)] for block in blocks]
    assert fresh[1]["examples"] == shown
