"""The recipes that come with the package: settings of trainings as YAML."""

from __future__ import annotations

import os
from pathlib import Path


RECIPES = Path(__file__).resolve().parents[1] / "recipes"
"""Their folder, with one folder per method."""


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The file of this name or, if there is none, the recipe of the package: `recipes/fspo/closed-world.yaml`."""
    path = Path(name)
    if path.exists():
        return path
    packaged = RECIPES.joinpath(*path.parts[path.parts[:1] == ("recipes",) :])
    return packaged if packaged.is_file() else path
