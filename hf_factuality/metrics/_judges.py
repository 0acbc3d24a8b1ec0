"""What the metrics of judges share: references with a group and a domain, and figures per domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class JudgedItem(NamedTuple):
    """What a judge said of an item and what is true; items of one group are not independent."""

    said: Any
    truth: Any
    domain: str | None = None
    group: Any = None


def reference_parts(reference: Any, name: str) -> tuple[Any, str | None, Any]:
    """Truth, domain and group of a reference: a dictionary that has the truth under `name`, or the truth alone."""
    if isinstance(reference, Mapping) and name in reference:
        return reference[name], reference.get("domain"), reference.get("group")
    return reference, None, None


def grouped(items: Sequence[JudgedItem]) -> list[list[JudgedItem]]:
    """The items by their groups; one without a group is alone."""
    found: dict[Any, list[JudgedItem]] = {}
    for number, item in enumerate(items):
        key = ("alone", number) if item.group is None else ("group", str(item.group))
        found.setdefault(key, []).append(item)
    return list(found.values())


def flattened(groups: Sequence[Sequence[JudgedItem]]) -> list[JudgedItem]:
    return [item for own in groups for item in own]


def by_domain(
    items: Sequence[JudgedItem], figures: Callable[[list[JudgedItem]], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Figures of each domain; empty if no item has one."""
    names = sorted({item.domain for item in items if item.domain is not None})
    return {name: figures([item for item in items if item.domain == name]) for name in names}
