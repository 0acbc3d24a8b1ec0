"""Spaces of the metrics: their files, what `evaluate.load` makes of them, and the upload to a Hub on this machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.metrics import METRIC_NAMES, push_metrics, write_spaces
from hf_factuality.metrics import push as push_module
from hf_factuality.metrics.install import _default_cache, describe_metrics
from hf_factuality.metrics.push import checked_requirement, default_requirement, space_files
from tests.hub.loopback import TOKEN, hub  # noqa: F401 - a fixture


REPOSITORY = Path(__file__).resolve().parent.parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = f"hf_factuality @ git+https://github.com/someone/hf_factuality@{COMMIT}"


# ---- files


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_files_of_a_space(name):
    files = space_files(name, "someone", GIT)
    assert set(files) == {f"{name}.py", "app.py", "requirements.txt", "README.md"}
    _, front, text = files["README.md"].split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["sdk"] == "gradio" and card["app_file"] == "app.py" and {"evaluate", "metric"} <= set(card["tags"])
    assert card["title"] == name and card["description"] == describe_metrics()[name]
    assert card["python_version"] == "3.11"  # the Hub's default is older than this package allows
    assert f'evaluate.load("someone/{name}")' in text
    # With these the widget was served and computed; see GRADIO in the module.
    assert files["requirements.txt"] == f"{GIT}\nevaluate>=0.4.6\nfastapi<0.113\npyarrow<22\n"
    assert card["sdk_version"] == "3.50.2"
    assert "launch_gradio_widget(" in files["app.py"] and f'"{name}.py"' in files["app.py"]
    for file in ("app.py", f"{name}.py"):
        compile(files[file], file, "exec")
    assert not any(word in "".join(files.values()) for word in (str(REPOSITORY), "file://"))


def test_evaluate_names_what_to_install(tmp_path):
    """Whoever lacks the package is told the very version."""
    from evaluate.loading import get_imports

    path = write_spaces(tmp_path, ["safe"], namespace="someone", requirement=GIT)["safe"] / "safe.py"
    imports = get_imports(str(path))
    assert imports and {kind for kind, *_ in imports} == {"library"}
    assert {(name, place) for _, name, place, _ in imports} == {("hf_factuality", GIT.partition("@ ")[2])}
    path = (
        write_spaces(tmp_path, ["safe"], namespace="someone", requirement="hf_factuality == 1.2")["safe"] / "safe.py"
    )
    assert {place for _, _, place, _ in get_imports(str(path))} == {"hf_factuality==1.2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf_factuality", "must name one version"),
        ("hf_factuality>=1", "must name one version"),
        ("hf_factuality==1.*", "must name one version"),
        ("hf_factuality @ git+https://github.com/a/b", "must name one version"),
        ("hf_factuality @ git+https://github.com/a/b@main", "must name one version"),
        ("hf_factuality @ file:///home/me/hf_factuality", "must name one version"),
        (f"hf_factuality @ git+https://me:{TOKEN}@github.com/a/b@{COMMIT}", "holds a login"),
        (f"hf_factuality @ git+https://{TOKEN}@github.com/a/b@{COMMIT}", "holds a login"),
        ("torch==2", "of hf_factuality alone"),
        ("hf_factuality==1\ntorch", "is no requirement"),
        ("", "is no requirement"),
    ],
)
def test_requirements_that_are_refused(text, message, tmp_path):
    with pytest.raises(HubError, match=message) as error:
        write_spaces(tmp_path / "x", namespace="someone", requirement=text)
    assert TOKEN not in str(error.value) and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "text", [f"{GIT}#subdirectory=a", GIT[:-33], GIT.replace(COMMIT, "v1.2.0"), "hf-factuality[dense]==1.2"]
)
def test_requirements_of_one_version(text):
    assert checked_requirement(f" {text}") == text


def test_the_default_requirement(monkeypatch):
    import importlib.metadata

    class Installed:
        origin: dict = {}

        def read_text(self, name):
            return json.dumps(self.origin) if self.origin else None

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(push_module, "__version__", "1.2.0")
    assert default_requirement() == "hf_factuality==1.2.0"
    vcs = {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}
    monkeypatch.setattr(Installed, "origin", {"url": "https://github.com/someone/hf_factuality", "vcs_info": vcs})
    assert default_requirement() == GIT == checked_requirement(GIT)
    monkeypatch.setattr(Installed, "origin", {"url": "file:///home/me/x", "dir_info": {"editable": True}})
    with pytest.raises(HubError, match="nobody else can install this"):
        default_requirement()
    monkeypatch.setattr(Installed, "origin", {})
    monkeypatch.setattr(push_module, "__version__", "1.2.0.dev0")
    with pytest.raises(HubError, match="`requirement`"):
        default_requirement()


@pytest.mark.parametrize("namespace", ["", "a/b", "-a", "a b", "../x"])
def test_bad_namespaces_and_names(namespace, tmp_path):
    with pytest.raises(HubError, match="namespace"):
        write_spaces(tmp_path, namespace=namespace, requirement=GIT)
    with pytest.raises(ValueError, match="'bleu'"):
        write_spaces(tmp_path, ["bleu"], namespace="a", requirement=GIT)


# ---- the Hub


def test_push(hub):  # noqa: F811
    """What `evaluate` makes of these: test_install.py."""
    done = push_metrics(["factscore", "safe"], namespace="someone", requirement=GIT, private=True, token=TOKEN)
    safe = hub.repos["space", "someone/safe"]
    assert done["safe"] == f"{hub.url}/spaces/someone/safe/commit/{safe.refs['main']}"
    assert {name: (repo.private, repo.sdk) for name, repo in hub.repos.items()} == {
        ("space", "someone/factscore"): (True, "gradio"),
        ("space", "someone/safe"): (True, "gradio"),
    }
    for name in ("factscore", "safe"):
        found = hub.repos["space", f"someone/{name}"].files()
        assert {name: text.decode() for name, text in found.items()} == space_files(name, "someone", GIT)
    assert len(safe.log) == 2  # of the Hub, and ours


def test_push_again_keeps_what_is_not_ours(hub):  # noqa: F811
    repo = hub.add("someone/safe", {"safe.py": b"old", "notes.txt": b"mine", "README.md": b"old"}, repo_type="space")
    push_metrics(["safe"], namespace="someone", requirement=GIT, token=TOKEN)
    found = repo.files()
    assert found.pop("notes.txt") == b"mine"
    assert {name: text.decode() for name, text in found.items()} == space_files("safe", "someone", GIT)


def test_a_space_of_another_kind_or_openness_is_left_alone(hub):  # noqa: F811
    hub.add("someone/safe", {"app.py": b"a safe", "README.md": b""}, repo_type="space")
    with pytest.raises(HubError, match="someone/safe exists and has no safe.py"):
        push_metrics(["anah", "safe"], namespace="someone", requirement=GIT, token=TOKEN)
    hub.add("someone/safe", {"safe.py": b"", "README.md": b""}, repo_type="space")
    with pytest.raises(HubError, match="exists and is public"):
        push_metrics(["anah", "safe"], namespace="someone", requirement=GIT, private=True, token=TOKEN)
    assert ("space", "someone/anah") not in hub.repos and not hub.count("POST", "")


def test_errors_name_what_was_done_and_no_token(hub, caplog, capsys, monkeypatch):  # noqa: F811
    refusal = {"status": 403, "body": f"no write access with Bearer {TOKEN}", "X-Error-Message": f"no access: {TOKEN}"}
    hub.fail("POST", "someone/safe/commit", **refusal)
    caplog.set_level("INFO")
    with pytest.raises(HubError, match=r"someone/safe.*before: anah") as error:
        push_metrics(["anah", "safe"], namespace="someone", requirement=GIT, token=TOKEN)
    assert error.value.__cause__ is None
    printed = capsys.readouterr()
    assert TOKEN not in str(error.value) + caplog.text + printed.out + printed.err
    monkeypatch.setattr("hf_factuality.io.upload.PATIENCE_AT_START", 0.0)
    hub.close()
    with pytest.raises(HubError, match="could not be published"):
        push_metrics(["anah"], namespace="someone", requirement=GIT, token=TOKEN)


def test_command_line(hub, tmp_path, capsys, monkeypatch):  # noqa: F811
    arguments = ["metrics", "push", "--namespace", "someone", "--requirement", GIT]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(METRIC_NAMES) and not hub.calls
    assert len(capsys.readouterr().out.splitlines()) == len(METRIC_NAMES)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main([*arguments, "safe", "--private"]) == 0
    repo = hub.repos["space", "someone/safe"]
    assert repo.private and f"/commit/{repo.refs['main']}" in capsys.readouterr().out
    assert main(["metrics", "push", "bleu", "--namespace", "someone", "--requirement", GIT]) == 2
    assert "unknown metric 'bleu'" in capsys.readouterr().err


# ---- the offer of the first import


def python(code, home, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
    kept |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY)}
    kept |= environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=home, env=kept)
    assert done.returncode == 0, done.stderr
    return done


def test_importing_the_metrics_says_and_writes_nothing(tmp_path):
    code = (
        "import hf_factuality.metrics, sys; import hf_factuality.metrics.install; assert 'evaluate' not in sys.modules"
    )
    done = python(code, tmp_path)
    assert done.stdout == done.stderr == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "environment",
    [{}, {"HF_HOME": "~/a"}, {"XDG_CACHE_HOME": "/b"}, {"HF_MODULES_CACHE": "/c/d", "HF_HOME": "/e"}],
)
def test_the_cache_is_that_of_evaluate(environment, monkeypatch, tmp_path):
    """The rule of `evaluate.config`, read by that module itself."""
    from evaluate import config

    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_MODULES_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fresh = {"__name__": "fresh", "__file__": config.__file__}
    lines = Path(config.__file__).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if re.match(r"\w*(?:XDG_CACHE|HF_CACHE|HF_MODULES_CACHE)\w* =", line)]
    exec("import os\nfrom pathlib import Path\n" + "\n".join(kept), fresh)  # noqa: S102
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "evaluate")
        assert _default_cache() == fresh["HF_MODULES_CACHE"]
    assert config.MODULE_NAME_FOR_DYNAMIC_MODULES == "evaluate_modules"
