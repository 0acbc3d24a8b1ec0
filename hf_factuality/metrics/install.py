"""Puts the metric modules where `evaluate.load("factscore")` looks, so that it works by name without a network."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from hf_factuality import __version__
from hf_factuality.io.files import whole_folder
from hf_factuality.metrics._registry import METRIC_NAMES


def metric_path(name: str) -> Path:
    """The module of a metric, which `evaluate.load(str(path))` loads; `ValueError` if no metric has this name."""
    if name not in METRIC_NAMES:
        raise ValueError(f"unknown metric {name!r}; choose one of {', '.join(METRIC_NAMES)}")
    return Path(__file__).parent / name / f"{name}.py"


def describe_metrics() -> dict[str, str]:
    """Metric -> what it measures: the first line of its module, read without importing it."""
    sources = {name: metric_path(name).read_text(encoding="utf-8") for name in METRIC_NAMES}
    return {name: ast.get_docstring(ast.parse(text)).splitlines()[0] for name, text in sources.items()}


def install(modules_cache: str | os.PathLike | None = None) -> dict[str, Path]:
    """Copy the metric modules into the modules cache of `evaluate`.

    `evaluate.load(name)` asks the Hub for `evaluate-metric/name`, and where that fails takes the newest script under
    `evaluate_modules/metrics/evaluate-metric--name/<64 characters>/`. Such a folder is written here, by `evaluate`'s
    own lock, under a name made of the script's content: whole or not at all, and again without harm. A folder of that
    kind that has lost its script, which makes `evaluate` find no metric at all, is removed. Other versions stay, and
    are older than ours.

    Args:
        modules_cache (`str` or `os.PathLike`, *optional*):
            Instead of the cache that `evaluate` uses: `HF_MODULES_CACHE`, or `modules` under `HF_HOME`, as they were
            set when it was imported.

    Returns:
        `dict[str, Path]`: metric -> script that `evaluate.load` now finds.

    Raises:
        `OSError`: the cache cannot be written.
    """
    from datasets.utils.filelock import FileLock  # the class that evaluate locks with

    root = _root(modules_cache)
    root.mkdir(parents=True, exist_ok=True)
    for package in (root, root.parent, root.parent.parent):
        (package / "__init__.py").touch()
    found = {}
    for name in METRIC_NAMES:
        folder = root / f"evaluate-metric--{name}"
        with FileLock(f"{folder}.lock"):
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
            found[name] = _place(name, folder)
    return found


def installed(modules_cache: str | os.PathLike | None = None) -> dict[str, Path]:
    """The metrics, with their scripts, that [`install`] has put into this cache and that `evaluate.load` takes; reads only.

    Those of another version do not count: after an upgrade that changed all scripts there are none.
    """
    root = _root(modules_cache)
    found = {}
    for name in METRIC_NAMES:
        scripts = [path / f"{name}.py" for path in _versions(root / f"evaluate-metric--{name}")]
        if not scripts or not all(script.is_file() for script in scripts):
            continue  # evaluate gives up on the metric if one version lacks its script
        newest = max(scripts, key=lambda script: script.stat().st_mtime)
        if newest.read_bytes() == metric_path(name).read_bytes():
            found[name] = newest
    return found


def _default_cache() -> Path:
    """`evaluate.config.HF_MODULES_CACHE`, without the second that importing `evaluate` takes."""
    config = getattr(sys.modules.get("evaluate"), "config", None)
    if config is not None:
        return Path(config.HF_MODULES_CACHE)
    shared = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(shared, "huggingface"))
    return Path(os.environ.get("HF_MODULES_CACHE", os.path.join(home, "modules"))).expanduser()


def _root(modules_cache: str | os.PathLike | None) -> Path:
    cache = _default_cache() if modules_cache is None else Path(modules_cache)
    return cache.expanduser() / "evaluate_modules" / "metrics"


def _versions(folder: Path) -> list[Path]:
    """What `evaluate` takes for versions: whatever has a name of 64 characters."""
    return sorted(path for path in folder.iterdir() if len(path.name) == 64) if folder.is_dir() else []


def _place(name: str, folder: Path) -> Path:
    source = metric_path(name).read_bytes()
    version = folder / hashlib.sha256(source).hexdigest()
    script = version / f"{name}.py"
    for path in folder.iterdir():
        lost = len(path.name) == 64 and not (path / script.name).is_file()
        if path.is_dir() and (lost or path.name.startswith(".")):  # a dot: of an installation that was killed
            shutil.rmtree(path)
    if not script.is_file() or script.read_bytes() != source:
        meta = {"original file path": str(metric_path(name)), "local file path": str(script), "version": __version__}
        # Until it is whole it has a longer name, which evaluate passes over.
        with whole_folder(version, overwrite=True) as building:
            (building / "__init__.py").touch()
            (building / script.name).write_bytes(source)
            (building / f"{name}.json").write_text(json.dumps(meta), encoding="utf-8")
    # evaluate takes the newest. A clock that went backwards must not make that an older version.
    others = [(path / script.name).stat().st_mtime for path in _versions(folder) if path != version]
    now = max([time.time(), *(other + 1 for other in others)])
    os.utime(script, (now, now))
    return script
