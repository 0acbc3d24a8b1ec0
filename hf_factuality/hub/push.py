"""A folder to the Hub in one commit: the model, its card and results, and nothing else that lies there.

Unlike `upload_folder`, which sends whatever it finds, a file is published if its kind is known to be a part of a model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.hub.files import check_model, find_files, stale_files
from hf_factuality.hub.leaderboards import FOLDER, check_leaderboard_file
from hf_factuality.hub.published import check_allowed, published_text
from hf_factuality.io.manifest import MANIFEST, published_manifest
from hf_factuality.io.upload import Published, prepare_repo, publish, refuse_secrets


logger = logging.getLogger(__name__)
REPO_TYPES = ("model", "dataset", "space")
_TEMPLATE = b"[More Information Needed]"  # of a card with places that nobody filled in
_WRITES = (
    "`trainer.create_model_card()` of our trainers writes one, and of TRL's own "
    "`hf_factuality.hub.cards.card.write_method_card(trainer, method)`; a card that is in the repository stays (docs/push.md)"
)
_UNFILLED = "a template that was not filled in; does not replace a card that is there"


@dataclass(frozen=True)
class PushedFile:
    """A file of a push: where it lies, what is published instead of it, and how that differs."""

    path: Path
    content: bytes | None = None
    notes: Sequence[str] = ()

    def read(self) -> bytes:
        """What is published."""
        return self.path.read_bytes() if self.content is None else self.content

    @property
    def size(self) -> int:
        """Bytes that are published."""
        return self.path.stat().st_size if self.content is None else len(self.content)


@dataclass
class PushPlan:
    """What a push of a folder would publish, by path in the repository, and why not the rest; `str()` of it is the list.

    `resumable`: the state of a run is among the files, so that the repository has to be private. `warnings`: what a reader of
    the repository would miss, in sentences; the push goes on. `allow_secrets`: places in the repository that look like a secret
    and are none.
    """

    folder: Path
    repo_type: str
    files: dict[str, PushedFile]
    left_out: dict[str, str] = field(default_factory=dict)
    resumable: bool = False
    warnings: Sequence[str] = ()
    allow_secrets: Sequence[str] = ()

    def __str__(self) -> str:
        width = max(map(len, [*self.files, *self.left_out]), default=0)
        total = sum(file.size for file in self.files.values())
        lines = [f"{len(self.files)} files, {_size(total)}, in one commit:"]
        for name, file in self.files.items():
            lines.append(f"  {name:{width}}  {_size(file.size):>9}  {'; '.join(file.notes)}".rstrip())
        if self.left_out:
            lines.append("left out:")
            lines += [f"  {name:{width}}  {reason}" for name, reason in self.left_out.items()]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def plan_push(
    folder: str | Path,
    *,
    repo_type: str = "model",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    path_in_repo: str = "",
    resumable: bool = False,
    allow_paths: Sequence[str] = (),
    allow_secrets: Sequence[str] = (),
) -> PushPlan:
    """Decide what of a folder is published: of a model, an adapter, a saved verifier, a dataset or a Space; nothing is sent.

    `include` and `exclude` are patterns of further files and of those that are left out, by path or name; pickles, logs and
    states of runs cannot be included. `path_in_repo` is a folder of the repository. With `resumable` also the states of
    optimizer, schedule, random numbers and rollouts, for private repositories; never the arguments of the run. `allow_paths` are
    places, as `README.md:12` or `config.json:KEY`, where a path is published although it looks like one of this machine;
    `allow_secrets` are places (`FILE:LINE`, as errors name them) that look like a secret, or could not be searched, and are
    published all the same. [`~hf_factuality.errors.HubError`]: the folder holds no whole model, a file holds a secret or a path
    of this machine that cannot be replaced, a place of these is none, or a link leaves the folder.
    """
    folder = Path(folder)
    if repo_type not in REPO_TYPES:
        raise HubError(f"repo_type {repo_type!r} is unknown; choose one of {', '.join(REPO_TYPES)}")
    if not folder.is_dir():
        raise HubError(f"{folder} is no folder; pass the folder of the model")
    found, left_out = find_files(folder, repo_type, include, exclude, resumable)
    if repo_type == "model":
        check_model(folder, found, left_out, allow_paths)
    start = f"{path_in_repo.strip('/')}/" if path_in_repo.strip("/") else ""
    check_allowed(allow_paths, found)
    files, allowed = {}, set(allow_secrets)
    for name, path in sorted(found.items()):
        allowed.difference_update(refuse_secrets(name, path, allow_secrets))
        file = files[start + name] = PushedFile(path, *published_text(name, path, allow_paths))
        if name == "README.md":
            if _TEMPLATE in file.read():
                files[start + name] = replace(file, notes=[*file.notes, _UNFILLED])
            if repo_type == "model":
                _check_card(file.read().decode("utf-8"), path, allow_paths)
        if name.startswith(f"{FOLDER}/") and repo_type == "model":
            check_leaderboard_file(name, file.read())
        if path.name == "value_head.pt":
            _check_value_head(path)
    if resumable and MANIFEST in found:
        content = published_manifest(found[MANIFEST], {name: files[start + name].content for name in found})
        files[start + MANIFEST] = PushedFile(found[MANIFEST], content)
    if not files:
        raise HubError(f"{folder} holds nothing that is published as a {repo_type}; see `dry_run`, or add `include`")
    if allowed:
        what = f"there is nothing to let through at {', '.join(sorted(allowed))}"
        raise HubError(f"{what}; leave out `allow_secrets`, or name the place as the error does: FILE:LINE")
    alone = repo_type == "model" and not start and not resumable
    warnings = _card_warnings(files.get("README.md"), left_out) if alone else []
    places = tuple(start + place for place in allow_secrets)
    return PushPlan(folder, repo_type, files, dict(sorted(left_out.items())), resumable, warnings, places)


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    repo_type: str = "model",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow_paths: Sequence[str] = (),
    allow_secrets: Sequence[str] = (),
    private: bool | None = None,
    pull_request: bool = False,
    branch: str | None = None,
    commit_message: str | None = None,
    dry_run: bool = False,
    token: str | bool | None = None,
    patience: float | None = None,
    on_plan: Callable[[PushPlan], None] | None = None,
) -> Published | PushPlan:
    """Publish a folder in one commit: the files that are a part of a model, and nothing else that lies there.

    Killed, it goes on when it is called again. A card that a trainer of this package wrote is first brought up to date in the
    folder, with the results that lie there and the name of the repository, once folder and account have been checked.

    Args:
        folder (`str` or `PathLike`):
            Of the model, dataset or Space.
        repo_id (`str`):
            `"namespace/name"`; without a namespace, in that of the token's owner. Made if it does not exist.
        repo_type (`str`, *optional*, defaults to `"model"`):
            `"model"`, `"dataset"` or `"space"`.
        include, exclude (`Sequence[str]`, *optional*):
            Patterns of files to add and to leave out, by path or name; see [`plan_push`].
        allow_paths (`Sequence[str]`, *optional*):
            Places, as `"README.md:12"` or `"config.json:KEY"`, where a path of this machine is published.
        allow_secrets (`Sequence[str]`, *optional*):
            Places, as errors name them, that look like a secret and are none.
        private (`bool`, *optional*):
            What the repository has to be; by default a new one is private, and one that exists stays as it is.
        pull_request (`bool`, *optional*, defaults to `False`):
            Open a pull request instead of committing.
        branch (`str`, *optional*):
            Branch to write to; made if it does not exist.
        commit_message (`str`, *optional*):
            Of the commit; title of the pull request. By default it names the folder.
        dry_run (`bool`, *optional*, defaults to `False`):
            Send nothing, change nothing, and need no account.
        token (`str` or `bool`, *optional*):
            Of the account; by default that of `hf auth login` or `HF_TOKEN`.
        patience (`float`, *optional*):
            Seconds to wait in all while the Hub cannot be reached; five minutes by default.
        on_plan (`Callable[[PushPlan], None]`, *optional*):
            Is given the plan before anything is sent, to show it; its warnings are then not logged.

    Returns:
        [`~hf_factuality.io.upload.Published`]: the commit, its address, and what it removed; with `dry_run` the [`PushPlan`].

    Raises:
        [`~hf_factuality.errors.HubError`]: the folder holds no whole model, a file holds a secret or a path of this machine,
            or the Hub refuses or cannot be reached. Nothing of the push is visible then.
    """
    from hf_factuality.hub.cards.card import is_our_card, update_card

    planned = partial(
        plan_push,
        folder,
        repo_type=repo_type,
        include=include,
        exclude=exclude,
        allow_paths=allow_paths,
        allow_secrets=allow_secrets,
    )
    plan = planned()
    if dry_run:
        return plan
    where = {"private": private, "pull_request": pull_request, "revision": branch, "token": token}
    # Whatever is refused is refused before the card is changed.
    repo_id = prepare_repo(repo_id, repo_type=repo_type, new_private=True, **where)
    card = plan.files.get("README.md")
    if card is not None and repo_type == "model" and is_our_card(card.path.read_text(encoding="utf-8")):
        # The model may have been evaluated since the card was written.
        update_card(folder, repo_id=repo_id)
        plan = planned()
    if on_plan is not None:
        on_plan(plan)
        plan = replace(plan, warnings=())
    return push_plans([plan], repo_id, commit_message=commit_message, patience=patience, **where)


def push_plans(
    plans: Sequence[PushPlan],
    repo_id: str,
    *,
    private: bool | None = None,
    commit_message: str | None = None,
    **kwargs: Any,
) -> Published:
    """Publish several folders in one commit: a model, and beside it the checkpoint that it is resumed from.

    Weights of an earlier push that are no part of this one are removed by the same commit; other files of the repository stay.
    Killed, it goes on when it is called again: files that have arrived are not sent again.

    A file of a later plan replaces one of the same name. The repository is made if it does not exist, private unless
    `private` is `False`; one that exists stays as it is, and is refused if `private` is given and it is otherwise. `kwargs`
    (`pull_request`, `revision`, `token`, `patience`) are as for [`~hf_factuality.io.upload.publish`].

    Raises:
        [`~hf_factuality.errors.HubError`]: the state of a run would go to a public repository; or the Hub refuses or cannot
            be reached. Nothing of the push is visible then.
    """
    files = {name: file for plan in plans for name, file in plan.files.items()}
    card = files.get("README.md")
    unfilled = card is not None and _TEMPLATE in card.read()  # as it is now, not as it was planned
    resumable = any(plan.resumable for plan in plans)
    for warning in (text for plan in plans for text in plan.warnings):
        logger.warning("%s", warning)
    if resumable and private is False:
        raise HubError("the state of a run goes to private repositories only; leave out `private=False`")
    repo_type = plans[0].repo_type
    return publish(
        {name: file.path if file.content is None else file.content for name, file in files.items()},
        repo_id,
        repo_type=repo_type,
        private=private,
        new_private=True,
        keeps=("README.md",) if unfilled else (),
        replaces=(lambda names: stale_files(names, files)) if repo_type == "model" else None,
        only_private=resumable,
        allow_secrets=[place for plan in plans for place in plan.allow_secrets],
        commit_message=commit_message or f"Upload {plans[0].folder.resolve().name}",
        **kwargs,
    )


def _check_card(text: str, path: Path, allowed: Sequence[str]) -> None:
    """Refuse a card of ours that the Hub would refuse, or that tells what is nobody's business."""
    from hf_factuality.hub.cards.card import is_our_card
    from hf_factuality.hub.cards.check import card_problems

    lines = {
        int(line)
        for name, _, line in (place.rpartition(":") for place in allowed)
        if name == path.name and line.isdecimal()
    }
    if is_our_card(text) and (problems := card_problems(text, lines)):
        raise HubError(
            f"the model card {path} cannot be published: {'; '.join(problems)} (a path that is nobody's is let through with "
            f"`allow_paths` {path.name}:LINE)"
        )


def _card_warnings(card: PushedFile | None, left_out: Mapping[str, str]) -> list[str]:
    """What a model without a card, or with one that says nothing to the Hub, is published without."""
    if card is None:
        # Who excludes the card wants the one that is there to stay.
        return [] if "README.md" in left_out else [f"the folder has no model card (README.md); {_WRITES}"]
    content = card.read()
    if _TEMPLATE in content:
        return [f"the model card is a template that nobody filled in; {_WRITES}"]
    if not content.startswith(b"---"):
        return [
            "the model card has no header between lines of ---, so that the Hub knows neither base model, library nor "
            "licence; begin README.md with one (docs/cards.md)"
        ]
    return []


def _check_value_head(path: Path) -> None:
    """Refuse a file that is more than tensors: whoever loads it would run it."""
    import torch

    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise HubError(f"{path} is not the layer that a critic saves ({line}); leave it out with `exclude`") from None


def _size(number: int) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.2f} GB"
