"""The import rules of docs/architecture.md, read from the syntax tree of every file."""

import ast
import importlib
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from hf_factuality._lazy import read_stub


PACKAGE = Path(__file__).resolve().parent.parent / "hf_factuality"
# Lowest first. A module may import from its own layer's room and from lower layers, not from a sibling room.
LAYERS = [
    {"errors", "lazy"},
    {"io"},
    {"offsets"},
    {"spans"},
    {"reading"},
    {"functional"},
    {"generation"},
    {"verifiers"},
    {"retrieval"},
    {"rewards", "metrics", "data", "worlds", "hub", "report"},
    {"checkpoints"},
    {"trainers"},
    {"methods"},
    {"evaluation"},
    {"demos", "server", "viewer"},
    {"cli", "pytest_plugin", "inspect_eval"},
]
LAYER_OF = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def room(module: Path) -> str:
    return module.parts[0].removesuffix(".py").lstrip("_")


@cache
def imports_of(path: Path) -> ast.Module:
    """The imports of a file, wherever they stand in it: it is parsed once for all tests, and nothing else is kept."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return ast.Module(body=nodes, type_ignores=[])


def imported_names(tree: ast.AST) -> set[str]:
    """In full; those that only type checkers read too."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any(getattr(node, "level", 0) for node in nodes), "imports of the package are absolute"
    return {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}


def imported_rooms(tree: ast.AST) -> set[str]:
    names = imported_names(tree)
    return {name.split(".")[1].lstrip("_") for name in names if name.startswith("hf_factuality.")}


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m not in (Path("__init__.py"), Path("__main__.py"))], ids=str
)
def test_imports_point_one_way(module):
    here = room(module)
    assert here in LAYER_OF, f"{module} is in no room: add it to LAYERS here and to docs/architecture.md"
    for other in imported_rooms(imports_of(PACKAGE / module)):
        allowed = other == here or LAYER_OF[other] < LAYER_OF[here]
        assert allowed, f"{module} imports hf_factuality.{other}, which is not below {here}"


def dotted(module: Path) -> str:
    return ".".join(("hf_factuality", *module.with_suffix("").parts)).removesuffix(".__init__")


FILES = {dotted(module): PACKAGE / module for module in MODULES if module != Path("__main__.py")}


@cache
def lazy_names(package: str) -> dict[str, str]:
    """The public names of a package with a stub, and the modules that it loads them from on first use."""
    init = FILES[package]
    return read_stub(str(init)) if init.with_suffix(".pyi").exists() else {}


def holder(module: str, name: str) -> str:
    """The module that `from module import name` really needs."""
    if f"{module}.{name}" in FILES:
        return f"{module}.{name}"
    if FILES[module].name == "__init__.py" and name in lazy_names(module):
        return holder(lazy_names(module)[name], name)
    return module


def imported_modules(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FILES:
            found |= {holder(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in FILES}
    return found


def test_no_import_circles():
    """`static_order` raises a `CycleError` that shows the circle."""
    graph = {name: imported_modules(imports_of(path)) - {name} for name, path in FILES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("hf_factuality.errors") < order.index("hf_factuality.spans") < order.index("hf_factuality.cli")


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import hf_factuality.spans", "spans"),
        ("from hf_factuality.verifiers import base", "verifiers.base"),
        ("def f():\n    from hf_factuality.verifiers import VerifierPipeline", "verifiers.pipeline"),
        ("class A:\n    def f(self):\n        from hf_factuality import load_fspo", "methods.fspo.data"),
        ("from hf_factuality.data.benchmarks import load_items", "data.benchmarks.registry"),
        ("try:\n    from hf_factuality import spans\nexcept ImportError:\n    pass", "spans"),
        ("if TYPE_CHECKING:\n    from hf_factuality.spans import Label", "spans"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from hf_factuality.spans import Label", "spans"),
    ],
)
def test_imports_are_followed_to_the_module_that_holds_the_name(code, needed):
    assert imported_modules(ast.parse(code)) == ({f"hf_factuality.{needed}"} if needed else set())


def test_formulas_are_pure():
    known = "__future__ bisect collections dataclasses decimal enum functools itertools math numpy re statistics string torch types typing unicodedata hf_factuality"
    for module in [*(PACKAGE / "functional").glob("*.py"), *(PACKAGE / "methods").glob("*/formula.py")]:
        names = imported_names(imports_of(module))
        other = {name.split(".")[0] for name in names}.difference(known.split())
        assert not other, f"{module.name} imports {other}; formulas are numpy and torch only"


def test_import_is_lazy():
    """No heavy library, and at most half a second of the processor (the best of three, since the machine is shared)."""
    code = (
        "import sys, time; start = time.process_time(); import hf_factuality, hf_factuality.verifiers; "
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'numpy', 'sentencex'}; "
        "print(time.process_time() - start, sorted(heavy & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        taken, heavy = output.split(" ", 1)
        assert heavy.strip() == "[]"
        seconds.append(float(taken))
    assert min(seconds) < 0.5


@pytest.mark.parametrize("package", [name for name, path in FILES.items() if path.name == "__init__.py"])
def test_every_lazy_name_resolves(package):
    found = importlib.import_module(package)
    for name, module in lazy_names(package).items():
        assert getattr(found, name) is getattr(importlib.import_module(module), name)
        assert name in dir(found) and name in found.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = found.nonsense


def test_names_that_have_moved_are_still_those_of_the_verifiers():
    from hf_factuality import generation, retrieval, verifiers

    for name in ("AnswerCache", "ChatClient", "LocalChat", "bind_policy"):
        assert getattr(verifiers, name) is getattr(generation, name)
    names = {"FACTSCORE_PASSAGES", "RLFH_PASSAGES", "KnowledgeBase", "PassageConfig"}
    for name in {*names, *(name for name in retrieval.__all__ if name.endswith("Retriever"))}:
        assert getattr(verifiers, name) is getattr(retrieval, name)
