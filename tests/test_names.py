"""One name, one thing: no two public classes or functions of the package have the same name, and none of a module has two values."""

import ast
from collections import Counter, defaultdict
from pathlib import Path


PACKAGE = Path(__file__).resolve().parent.parent / "hf_factuality"
# What every file of a kind has, so that its caller need not know which one it is: a command its parser, a training its
# `main`, a method with named rewards the function that makes them.
OF_EVERY = {"add_parser": "cli", "main": "cli", "named_reward": "methods"}


def definitions(folder):
    """Name -> files, of the public classes and functions of modules."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith(
                "_"
            ):
                found[node.name].append(path.relative_to(folder))
    return found


def test_public_names_are_unique():
    several = {
        name: [str(path) for path in paths if path.parts[0] != OF_EVERY.get(name)]
        for name, paths in definitions(PACKAGE).items()
        if len(paths) > 1
    }
    assert {name: paths for name, paths in several.items() if paths} == {}


def test_two_of_one_name_are_seen(tmp_path):
    (tmp_path / "a.py").write_text("class Row: ...\ndef _own(): ...\n")
    (tmp_path / "b.py").write_text("def _own(): ...\ndef Row(): ...\nclass Other: ...\n")
    assert {name: len(paths) for name, paths in definitions(tmp_path).items()} == {"Row": 2, "Other": 1}


def bound_twice(body):
    """Names that the statements of a module or class bind more than once, where the second would silently replace the first."""
    names = Counter()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.decorator_list:
            names[node.name] += 1
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names.update(
            one.id
            for target in targets
            for one in ast.walk(target)
            if isinstance(getattr(one, "ctx", None), ast.Store) and isinstance(one, ast.Name)
        )
    return {name for name, number in names.items() if number > 1}


def test_a_name_of_a_module_has_one_value():
    several = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        if found := set().union(*map(bound_twice, bodies)) - {"_"}:
            several[str(path)] = found
    assert several == {}
    assert bound_twice(ast.parse("A = 1\ndef f(): ...\nA: int = 2\nclass f: ...\nB = 1").body) == {"A", "f"}
