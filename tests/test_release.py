"""Wheel and sdist, installed into fresh environments that reach no network."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import hf_factuality


REPOSITORY = Path(__file__).resolve().parents[1]
VERSION = hf_factuality.__version__
# What a process of the fresh environment may not do.
NO_NETWORK = """
import socket
_connect = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
        raise OSError(f"no network: {address}")
    return _connect(self, address)
socket.socket.connect = connect
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*command, cwd, **environment):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**env, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(kind, out, source):
    program = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", program, out, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist of what git would give to a clone."""
    clone, out = tmp_path_factory.mktemp("clone") / "clone", tmp_path_factory.mktemp("dist")
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY).split("\0")
    for name in filter(None, names):
        if os.path.lexists(REPOSITORY / name):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, clone / name, follow_symlinks=False)
    build("sdist", out, clone)
    build("wheel", out, clone)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def environment(folder):
    """Python of a new environment, with our requirements from this one and nothing of ours."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "sitecustomize.py").write_text(NO_NETWORK)
    # A path that a .pth file names is searched, but .pth files in it are not read: an editable install is not seen.
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request, built, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    python = environment(folder / "env")
    package = built[request.param == "sdist"]
    run(
        python, "-m", "pip", "uninstall", "-q", "-y", "setuptools", cwd=folder
    )  # Python 3.11 brings one that is too old
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed",
        package, cwd=folder)  # fmt: skip
    return python, folder


def test_the_wheel_holds_what_is_used_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert built[0].name == f"hf_factuality-{VERSION}-py3-none-any.whl"
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"hf_factuality", f"hf_factuality-{VERSION}.dist-info"}
    tracked = set(run("git", "ls-files", "hf_factuality", cwd=REPOSITORY).splitlines())
    # Recipes are a link in the repository, and a folder in the wheel.
    missing = {name for name in tracked - names if not (REPOSITORY / name).is_symlink()}
    assert not missing
    assert {
        "hf_factuality/py.typed", "hf_factuality/__init__.pyi", "hf_factuality/recipes/fspo/closed-world.yaml",
        "hf_factuality/MODEL_CARD_TEMPLATE.md", "hf_factuality/demos/real_facts.jsonl",
    } <= names  # fmt: skip
    assert built[0].stat().st_size < 60e6


def test_the_links_of_the_description_work_elsewhere(built):
    with zipfile.ZipFile(built[0]) as wheel:
        text = wheel.read(f"hf_factuality-{VERSION}.dist-info/METADATA").decode()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20 and all(link.startswith(("https://", "#")) for link in links)
    own = [link for link in links if "hf_factuality/blob/main/" in link or "hf_factuality/raw/main/" in link]
    paths = [re.split(r"/(?:blob|raw)/main/", link)[1].partition("#")[0] for link in own]
    assert paths and all((REPOSITORY / path).exists() for path in paths)
    assert f"Version: {VERSION}" in text and "Project-URL: Source, https://" in text


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built[1]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    build("wheel", tmp_path, tmp_path / f"hf_factuality-{VERSION}")
    again = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    first = zipfile.ZipFile(built[0])
    content = [
        {entry.filename: entry.CRC for entry in wheel.infolist() if not entry.filename.endswith("RECORD")}
        for wheel in (first, again)
    ]
    assert content[0] == content[1]


def test_it_is_the_installed_one_that_runs(installed):
    python, folder = installed
    told = "import hf_factuality, sys; print(hf_factuality.__file__, hf_factuality.__version__)"
    place, version = run(python, "-c", told, cwd=folder).split()
    assert Path(place).is_relative_to(folder) and version == VERSION
    command = python.parent / "hf-factuality"
    assert "--credit" in run(command, "train", "fspo", "--help", cwd=folder)


def test_the_first_commands_and_the_first_tutorial(installed):
    python, folder = installed
    place = folder / "pages"
    for name in ("docs", "tests", "pyproject.toml", "setup.py"):  # without the package beside them
        source = REPOSITORY / name
        shutil.copytree(source, place / name) if source.is_dir() else shutil.copy(source, place / name)
    run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/test_tutorials.py",
        "tests/test_pytest_plugin.py", cwd=place, CI="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
