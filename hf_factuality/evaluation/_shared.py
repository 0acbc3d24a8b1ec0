"""What `verify` and `evaluate` share: arguments that are read alike, thresholds, and how numbers are shown."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.hub.results import format_value as shown


def split_names(given: Any) -> list[Any]:
    """Names that were given one by one or with commas, each once; objects in their place stay what they are."""
    given = () if given is None else given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    names = [name for it in given for name in (map(str.strip, it.split(",")) if isinstance(it, str) else [it])]
    return list(dict.fromkeys(name for name in names if name != ""))


def limits_of(verifier: Any) -> list[str]:
    """What a verifier says that it cannot do, to be told after a run."""
    limits = getattr(getattr(verifier, "judge", verifier), "limits", None)
    return [limits] if isinstance(limits, str) else []


def check_at_least_one(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")


def check_port(port: int) -> None:
    if not 0 <= port < 1 << 16:
        raise ValueError(f"`port` must be between 0 and 65535, got {port}")


def check_choices(known: Mapping[str, Collection[str]], given: Mapping[str, Any]) -> None:
    """Refuse a value, unless it is `None`, that is none of those which its argument can have."""
    for name, choices in known.items():
        if given[name] is not None and given[name] not in choices:
            raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {given[name]!r}")


def make_way(path: Path, taken: Sequence[Path], name: str) -> None:
    """Make the folder of a file; raises now what writing it would raise in the end, or if it would replace what is read."""
    if path.is_file() and any(other.exists() and path.samefile(other) for other in taken):
        raise ValueError(f"{path} would be overwritten while it is in use; name another `{name}`")
    there = next(it for it in (path, *path.absolute().parents) if it.exists())
    if path.is_dir() or not os.access(there, os.W_OK) or there != path and not there.is_dir():
        raise OSError(
            f"`{name}` {path} cannot be written: it is a folder, or {there} is no folder or gives no permission"
        )
    path.parent.mkdir(parents=True, exist_ok=True)


def allowed_missing(max_not_judged: float | None, fail_under: Any) -> float | None:
    """Share that may be left unjudged; `None` for any."""
    if max_not_judged is not None and not 0 <= max_not_judged <= 1:
        raise ValueError(f"`max_not_judged` is a share in [0, 1], got {max_not_judged:g}")
    return 0.1 if max_not_judged is None and fail_under not in (None, {}) else max_not_judged


def check_thresholds(
    given: float | Mapping[str, float] | None, computed: Collection[str], default: Sequence[str] = ()
) -> dict[str, float]:
    """Least share per name; a number, or the name `""`, is of all names of `default`, where there are any."""
    if not isinstance(given, Mapping):
        given = {} if given is None else {"": given}
    thresholds: dict[str, float] = {}
    form = "a share or NAME=SHARE" if default else "NAME=SHARE"
    for name, share in given.items():
        if not (name or default) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            said = f"{name}={share}" if name else share
            raise ValueError(f"`fail_under` takes {form}, a share in [0, 1], got {said}")
        if name and name not in computed:
            fix = f"{'add `metrics`, or ' if default else ''}choose of {', '.join(sorted(computed))}"
            raise ValueError(f"`fail_under` {name}={share:g}: {name!r} is not computed; {fix}")
        thresholds |= dict.fromkeys([name] if name else default, share)
    return thresholds


def shown_interval(interval: Mapping[str, Any] | None) -> str:
    return f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else ""


def numbers(parts: Mapping[str, Any]) -> str:
    """Those of the parts of a metric that are numbers."""
    found = [(name, part) for name, part in parts.items() if part is None or isinstance(part, (int, float))]
    return ", ".join(f"{name} {shown(part)}" for name, part in found)


def counts(found: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {n}" for name, n in found.items() if n)


def _shown_below(score: float | None, least: float) -> str:
    """A score, rounded as far as it stays below its threshold: 0.79999 is not 0.8."""
    if score is None:
        return "None"
    texts = (f"{score:.{digits}g}" for digits in (3, 6))
    return next((text for text in texts if float(text) < least), str(score))


def failures(
    scores: Iterable[tuple[str, float | None, float]],
    unjudged: Iterable[tuple[str, int, int, str]],
    allowed: float | None,
) -> list[str]:
    """What of `scores` (name, score, threshold) is too low, and of which of `unjudged` (prefix, how many of how many, what went
    wrong) more than the allowed share is missing."""
    low = [
        f"{name} {_shown_below(score, least)} is below {least:g}"
        for name, score, least in scores
        if score is None or score < least
    ]
    return low + [
        f"{prefix}{failed} of {n} {what}"
        for prefix, failed, n, what in unjudged
        if allowed is not None and n and failed / n > allowed
    ]
