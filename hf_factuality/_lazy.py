"""Names that load on first use: those of a package, and those in a file or on a command line."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def read_stub(init_file: str) -> dict[str, str]:
    """Public names of a package, each with its module, from the stub beside its `__init__`, which editors read too.

    The stub has lines `from package.module import name as name`.
    """
    tree = ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.name: str(node.module) for node in imports for name in node.names}


def attach(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for an `__init__` with a stub, from its `__name__` and `__file__`."""
    exports = read_stub(init_file)

    def getattribute(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(exports[name]), name)

    names = sorted(exports)
    return getattribute, lambda: names, names


def load_name(path: str) -> Any:
    """What `"package.module:Name"` stands for. The code of that module runs."""
    module, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a module beside the data, as for `python -m`
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
