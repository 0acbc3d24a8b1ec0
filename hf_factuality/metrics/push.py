"""Publishes metrics as Spaces, where `evaluate.load("namespace/factscore")` finds them, and a widget runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_factuality import __version__
from hf_factuality.errors import HubError
from hf_factuality.io.secrets import redact
from hf_factuality.io.upload import hub_errors, publish
from hf_factuality.metrics.install import METRIC_NAMES, describe_metrics, metric_path


if TYPE_CHECKING:
    from huggingface_hub import HfApi

# `launch_gradio_widget` of evaluate 0.4 uses `gradio.inputs`, which gradio 4 dropped. The last gradio before needs numpy 1,
# for which newer pyarrow is not built, and its pages fail with newer fastapi and starlette.
GRADIO = "3.50.2"
_WIDGET_NEEDS = ("evaluate>=0.4.6", "fastapi<0.113", "pyarrow<22")
_APP = '''"""The widget of the metric `{name}`."""

from pathlib import Path

import evaluate
from evaluate.utils import launch_gradio_widget


launch_gradio_widget(evaluate.load(str(Path(__file__).with_name("{name}.py"))))
'''
_EXAMPLE = "'hf_factuality==1.0' or 'hf_factuality @ git+https://github.com/OWNER/REPO@COMMIT'"
_NAMESPACE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_IMPORT = re.compile(r"^(import hf_factuality\.\S+ as \w+)$", re.MULTILINE)
# A commit, or a tag that is a version; a branch moves.
_GIT = re.compile(r"git\+https://[^@\s]+@(?:[0-9a-f]{7,40}|v?\d+(?:\.\w+)+)(?:#\S+)?")
_ARCHIVE = re.compile(r"https://[^@\s]+\.(?:whl|zip|tar\.gz)(?:#\S+)?")


def default_requirement() -> str:
    """What a Space installs to have this very version: the commit that was installed from git, or the release."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("hf_factuality").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {"dir_info": {}}
    git = origin.get("vcs_info", {})
    if git.get("vcs") == "git" and git.get("commit_id"):
        return checked_requirement(f"hf_factuality @ git+{origin['url']}@{git['commit_id']}")
    if origin or re.search(r"dev|\+", __version__):
        raise HubError(
            f"nobody else can install this hf_factuality ({__version__}, from a folder or not released); name what a "
            f"Space installs: `requirement` {_EXAMPLE}"
        )
    return f"hf_factuality=={__version__}"


def checked_requirement(text: str) -> str:
    """`text` if it is a requirement of this package that names one version and holds no login."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    shown = redact(text)
    if re.search(r"://[^/\s]*@", text):
        raise HubError(f"the requirement {shown!r} holds a login, which would be published; leave it out: {_EXAMPLE}")
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise HubError(f"{shown!r} is no requirement; write {_EXAMPLE}") from None
    if canonicalize_name(requirement.name) != "hf-factuality" or requirement.marker is not None:
        raise HubError(f"the requirement must be of hf_factuality alone, got {shown!r}; write {_EXAMPLE}")
    exact = [item for item in requirement.specifier if item.operator == "==" and not item.version.endswith("*")]
    address = requirement.url
    if not (exact if address is None else _GIT.fullmatch(address) or _ARCHIVE.fullmatch(address)):
        raise HubError(f"the requirement must name one version, got {shown!r}; write {_EXAMPLE}")
    return text.strip()


def _spaces(names: Sequence[str] | None, namespace: str, requirement: str | None) -> dict[str, dict[str, str]]:
    """Metric -> the files of its Space."""
    if not _NAMESPACE.fullmatch(namespace):
        raise HubError(f"the namespace must be the name of a user or an organisation on the Hub, got {namespace!r}")
    for name in names or ():
        metric_path(name)  # refuses unknown ones
    requirement = requirement if requirement is not None else default_requirement()
    return {name: space_files(name, namespace, requirement) for name in (METRIC_NAMES if names is None else names)}


def space_files(name: str, namespace: str, requirement: str) -> dict[str, str]:
    """The files of a metric's Space, name -> text; `requirement` is what it installs of this package."""
    requirement = checked_requirement(requirement)
    place = requirement.partition("@")[2].strip() or requirement.replace(" ", "")
    # evaluate shows what follows "From:" to whoever lacks the library.
    module = _IMPORT.sub(rf"\1  # From: {place}", metric_path(name).read_text(encoding="utf-8"))
    return {
        f"{name}.py": module,
        "app.py": _APP.format(name=name),
        "requirements.txt": "\n".join((requirement, *_WIDGET_NEEDS, "")),
        "README.md": _card(name, namespace, place),
    }


def write_spaces(
    folder: str | Path, names: Sequence[str] | None = None, *, namespace: str, requirement: str | None = None
) -> dict[str, Path]:
    """Write the Spaces as folders, to look at before [`push_metrics`]; `evaluate.load(str(path))` loads one.

    Args:
        folder (`str` or `Path`):
            Gets a folder per metric; files of the same name are replaced.
        names (`Sequence[str]`, *optional*):
            Metrics; `None`: all.
        namespace (`str`), requirement (`str`, *optional*):
            See [`push_metrics`].

    Returns:
        `dict[str, Path]`: metric -> its folder.

    Raises:
        `ValueError`, [`~hf_factuality.errors.HubError`]: see [`space_files`].
        `OSError`: the folder cannot be written.
    """
    found = {}
    for name, texts in _spaces(names, namespace, requirement).items():
        path = found[name] = Path(folder) / name
        path.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (path / file).write_text(text, encoding="utf-8", newline="\n")
    return found


def push_metrics(
    names: Sequence[str] | None = None,
    *,
    namespace: str,
    requirement: str | None = None,
    private: bool | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
) -> dict[str, str]:
    """Publish metrics as Spaces `namespace/name`; `evaluate.load("namespace/name")` then loads them.

    A Space that exists is updated if it holds a metric of that name or nothing; files that we do not write stay.

    Args:
        names (`Sequence[str]`, *optional*):
            Metrics; `None`: all.
        namespace (`str`):
            User or organisation.
        requirement (`str`, *optional*):
            What the Space installs, of one version, as in a requirements file. `None`: [`default_requirement`].
        private (`bool`, *optional*):
            Of a new Space; `None`: as the organisation has it.
        commit_message (`str`, *optional*):
            Of the commits.
        token (`str` or `bool`, *optional*):
            As in `huggingface_hub`.

    Returns:
        `dict[str, str]`: metric -> address of the commit.

    Raises:
        `ValueError`: there is no such metric.
        [`~hf_factuality.errors.HubError`]: the Hub refuses; a Space of that name is of another kind; the namespace or
            the requirement cannot be used. The message says which Spaces were published before.
    """
    from huggingface_hub import HfApi

    files = _spaces(names, namespace, requirement)
    api = HfApi(token=token)
    done: dict[str, str] = {}
    for name in files:  # all of them before the first is written
        with hub_errors(f"{namespace}/{name} could not be published", token):
            _refuse_others(api, f"{namespace}/{name}", name, private)
    for name, texts in files.items():
        try:
            published = publish(
                {file: text.encode() for file, text in texts.items()},
                f"{namespace}/{name}",
                repo_type="space",
                private=private,
                commit_message=commit_message or f"Upload the metric {name} of hf_factuality {__version__}",
                token=token,
            )
        except HubError as error:
            before = f" (published before: {', '.join(done)})" if done else ""
            raise HubError(f"{namespace}/{name} could not be published{before}: {error}") from None
        done[name] = published.commit_url
    return done


def _refuse_others(api: HfApi, repo_id: str, name: str, private: bool | None) -> None:
    """Refuse a Space that exists and is none of this metric, or is public where a private one is asked for."""
    if not api.repo_exists(repo_id, repo_type="space"):
        return
    info = api.space_info(repo_id)
    files = {file.rfilename for file in info.siblings or ()}
    if f"{name}.py" not in files and files - {"README.md", ".gitattributes"}:
        raise HubError(f"the Space {repo_id} exists and has no {name}.py: it is something else; use another namespace")
    if private is not None and bool(info.private) != private:
        now = "private" if info.private else "public"
        raise HubError(f"the Space {repo_id} exists and is {now}; change that in its settings, or leave out private")


def _card(name: str, namespace: str, place: str) -> str:
    what = describe_metrics()[name]
    return f"""---
title: {json.dumps(name)}
emoji: 📏
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: {GRADIO}
python_version: "3.11"
app_file: app.py
pinned: false
license: apache-2.0
tags:
- evaluate
- metric
- hf_factuality
description: {json.dumps(what, ensure_ascii=False)}
---

# {name}

{what}

```bash
pip install {json.dumps(place)}
```

```python
import evaluate

metric = evaluate.load("{namespace}/{name}")
print(metric.inputs_description)
```

The module is a few lines on top of `hf_factuality`, whose verifiers and formulas it calls; inputs, result and what
differs from the released code stand in `inputs_description` and in `docs/metrics.md` of the package.
"""
