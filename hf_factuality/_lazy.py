"""Names of a package that load on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the `__init__` of a package.

    Args:
        package (`str`):
            Its `__name__`.
        exports (`Mapping[str, str]`):
            Public name to the module of the package that holds it.

    Returns:
        `tuple`: the two functions and the sorted names.
    """

    def getattribute(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{exports[name]}"), name)

    names = sorted(exports)
    return getattribute, lambda: names, names
