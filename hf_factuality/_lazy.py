"""Names that load on first use: those of a package, and those that a user gives."""

from __future__ import annotations

import ast
import difflib
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


def is_object_name(text: Any) -> bool:
    """Whether this is a text of the form `"package.module:name"`, as no path and no address is."""
    module, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def object_name(given: Any) -> str:
    """`"package.module:name"` of a function or a class, and of the class of another object."""
    while not hasattr(given, "__qualname__") and hasattr(given, "func"):  # functools.partial
        given = given.func
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{named.__module__}:{named.__qualname__}"


def load_name(
    path: str, what: str = "the object", fits: Callable[[Any], bool] = callable, wanted: str = "a function or a class"
) -> Any:
    """What `"package.module:name"` stands for, wherever a name is taken for something of the user's own.

    The code of that module runs, so the text must come from the user, and never from a file that was downloaded.

    Args:
        path (`str`):
            A module that Python finds, also one in the current folder, and a name in it.
        what (`str`, *optional*, defaults to `"the object"`):
            What is named, for errors: `"the metric"`.
        fits (`Callable`, *optional*, defaults to `callable`), wanted (`str`, *optional*):
            Whether an object can be that, and what it must be, in words.

    Raises:
        `ValueError`: it has another form, there is no such module or name, importing it fails, or it is something else.
    """
    if not is_object_name(path):
        raise ValueError(
            f"{what} {path!r} is not of the form 'package.module:name', with a module that Python finds and no path"
        )
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a module beside the data, as for `python -m`
    try:
        found: Any = import_module(module)
    except Exception as error:  # whatever the code of a module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{what} {path!r}: there is no module {error.name!r}; install it, or add its folder to PYTHONPATH"
            ) from None
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{what} {path!r}: the module {module!r} cannot be imported: {why}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{what} {path!r}: {getattr(found, '__name__', found)!r} has no {part!r}{hint}")
        found = getattr(found, part)
    if not fits(found):
        raise ValueError(f"{what} {path!r} is a {type(found).__name__}; it must be {wanted}")
    return found
