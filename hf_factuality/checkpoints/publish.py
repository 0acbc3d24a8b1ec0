"""Models that are written and then published: the account is tried before the work, and the model stays if the push fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import HubError


if TYPE_CHECKING:
    from hf_factuality.checkpoints.merge import MergeReport


def write_and_push(
    write: Callable[[], list[MergeReport]],
    out: Path,
    push_to_hub: str | None,
    *,
    private: bool | None,
    pull_request: bool,
    revision: str | None,
    dry_run: bool,
    on_written: Callable[[Sequence[MergeReport], str | None], None] | None,
) -> list[MergeReport]:
    """What `write` reports, with `published` in each report if `push_to_hub` names a repository; see [`merge`] for the others."""
    where: dict[str, Any] = {"private": private, "pull_request": pull_request, "revision": revision}
    if push_to_hub is None:
        given = ["`pull_request`"] * pull_request + ["`revision`"] * bool(revision)
        given += [] if private is None else ["`private`" if private else "`private=False`"]
        if given:
            raise ValueError(f"{given[0]} is for `push_to_hub` REPO")
    elif not dry_run:
        from hf_factuality.io.upload import prepare_repo

        # The work can take hours: whether the account may write to the repository is found out before it.
        push_to_hub = prepare_repo(push_to_hub, new_private=True, **where)
    reports = write()
    if on_written is not None:
        on_written(reports, None if dry_run else push_to_hub)
    if push_to_hub is None or dry_run:
        return reports
    from hf_factuality.hub.push import push

    try:
        published = push(out, push_to_hub, **where)
    except HubError as error:
        raise HubError(f"{error}; the model is in {out}") from None
    return [replace(report, published=published) for report in reports]
