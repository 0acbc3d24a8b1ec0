"""Models that are written and then published: the account is tried before the work, and the model stays if the push fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import HubError


if TYPE_CHECKING:
    from hf_factuality.hub.push import Published


@dataclass
class MergeReport:
    """What was merged, or would be.

    `shards` has the bytes of each file of weights, `dtypes` the number of tensors of each; `tied` are names that are not written,
    because the configuration ties them to another. `published` is the commit, if the model was pushed.
    """

    out: Path
    format: str
    architecture: str
    shards: dict[str, int]
    dtypes: dict[str, int]
    tied: list[str]
    files: list[str]
    notes: list[str] = field(default_factory=list)
    published: Published | None = None

    def __str__(self) -> str:
        size = sum(self.shards.values())
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in self.dtypes.items())
        lines = [
            f"{self.format}: {self.architecture}, {sum(self.dtypes.values())} tensors ({dtypes}), {size / 1e9:.3f} GB",
            *(f"  {name}  {bytes_ / 1e9:.3f} GB" for name, bytes_ in self.shards.items()),
            f"  {', '.join(self.files)}",
        ]
        if self.tied:
            lines.append(f"tied, so not written twice: {', '.join(self.tied)}")
        return "\n".join([*lines, *self.notes])


def write_and_push(
    write: Callable[[], list[MergeReport]],
    out: Path,
    push_to_hub: str | None,
    *,
    private: bool | None,
    pull_request: bool,
    branch: str | None,
    dry_run: bool,
    on_written: Callable[[Sequence[MergeReport], str | None], None] | None,
) -> list[MergeReport]:
    """What `write` reports, with `published` in each report if `push_to_hub` names a repository; see [`merge`] for the others."""
    where: dict[str, Any] = {"private": private, "pull_request": pull_request, "branch": branch}
    if push_to_hub is None:
        given = ["`pull_request`"] * pull_request + ["`branch`"] * bool(branch)
        given += [] if private is None else ["`private`" if private else "`private=False`"]
        if given:
            raise ValueError(f"{given[0]} is for `push_to_hub` REPO")
    elif not dry_run:
        from hf_factuality.io.upload import prepare_repo

        # The work can take hours: whether the account may write to the repository is found out before it.
        push_to_hub = prepare_repo(
            push_to_hub, new_private=True, private=private, pull_request=pull_request, revision=branch
        )
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
