"""The tutorials as notebooks, in docs/notebooks/: `python docs/make_notebooks.py`.

A command becomes a cell of bash, a program one of Python, and what the page shows of their output the output of the cell.
"""

import hashlib
import json
import re
from pathlib import Path


DOCS = Path(__file__).resolve().parent
URL = "https://github.com/hf-factuality/hf_factuality"
NOTEBOOKS = {
    "verify": ("tutorial-ci.md", ""),
    "train": ("tutorial-train.md", ""),
    "publish": ("tutorial-publish.md", "It goes on in the folder in which `train.ipynb` was run.\n"),
}
INSTALL = f"In a new environment: `pip install git+{URL}` (Python 3.11 to 3.13).\n"
_BLOCK = re.compile(r"```(bash|python|)\n(.*?)```\n", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)((?:\.\./)?)([^)]+)\)")
_FAILS = re.compile(r"\s+# exit status [1-9]\d*$", re.MULTILINE)


def make_notebook(page: str, note: str = "") -> dict:
    """A notebook of format 4.5 made of a page of docs/."""
    text = _LINK.sub(
        lambda link: f"]({URL}/blob/main/{'' if link[1] else 'docs/'}{link[2]})", (DOCS / page).read_text("utf-8")
    )
    cells: list[dict] = []

    def add(kind: str, source: str, **fields) -> None:
        name = hashlib.sha256(f"{len(cells)} {source}".encode()).hexdigest()[:12]
        cells.append({"cell_type": kind, "id": name, "metadata": {}, "source": source, **fields})

    def add_words(words: str) -> None:
        if words.strip():
            add("markdown", words.strip())

    title, _, text = text.partition("\n")
    add_words(f"{title}\n\n{INSTALL}{note}")
    done = 0
    for block in _BLOCK.finditer(text):
        add_words(text[done : block.start()])
        done = block.end()
        language, content = block[1], block[2].rstrip("\n")
        if language == "python":
            add("code", content, execution_count=None, outputs=[])
        elif language == "bash":
            # A check that fails is what the page shows, and no reason to stop.
            magic = "%%bash --no-raise-error" if _FAILS.search(content) else "%%bash"
            add("code", f"{magic}\n{content}", execution_count=None, outputs=[])
        else:
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"{content}\n"}]
    add_words(text[done:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def written(notebook: dict) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, (page, note) in NOTEBOOKS.items():
        (DOCS / "notebooks" / f"{name}.ipynb").write_text(written(make_notebook(page, note)), encoding="utf-8")
