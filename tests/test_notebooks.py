"""The notebooks are those of the tutorials, and run from their first cell to the last."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from tests.hub.loopback import LoopbackHub


DOCS = Path(__file__).resolve().parents[1] / "docs"


def _maker():
    spec = importlib.util.spec_from_file_location("make_notebooks", DOCS / "make_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()


@pytest.mark.parametrize("name", MAKER.NOTEBOOKS)
def test_the_notebook_is_that_of_its_page(name):
    page, note = MAKER.NOTEBOOKS[name]
    text = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == MAKER.written(MAKER.make_notebook(page, note)), "run: python docs/make_notebooks.py"
    notebook = json.loads(text)
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    source = (DOCS / page).read_text(encoding="utf-8")
    assert len(code) == source.count("```bash") + source.count("```python")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert not any("](tutorial" in cell["source"] or "](../" in cell["source"] for cell in notebook["cells"])


def run(name, folder):
    """Text that each cell printed."""
    nbclient = pytest.importorskip("nbclient", reason="pip install hf_factuality[notebooks]")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(out.get("text", "") for out in cell.get("outputs", ())) for cell in notebook.cells]


@pytest.fixture(autouse=True)
def commands(monkeypatch):
    """`hf-factuality` is that of this Python."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
def test_a_number_in_ci(tmp_path):
    printed = "\n".join(run("verify", tmp_path))
    assert "tickets: contradicted: A ticket costs 14 euros." in printed
    assert "is below 0.8" in printed and "balanced accuracy" in printed
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_training_and_what_is_published(tmp_path, monkeypatch):
    server = LoopbackHub()
    try:
        for key, value in server.environment(tmp_path / "hub-home").items():
            monkeypatch.setenv(key, value)
        assert "after accuracy" in "\n".join(run("train", tmp_path))
        printed = "\n".join(run("publish", tmp_path))
        assert "model.safetensors" in printed and "training_args.bin" in printed
        assert "model.safetensors" in server.repos["model", "someone/knows-what-it-knows"].files("main")
    finally:
        server.close()
