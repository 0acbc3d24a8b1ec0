"""The cards in docs/cards/: written by `python -m tests.hub.cards.card_pages`, compared by the tests of the examples.

The runs are those of these tests (the examples in a closed world, with few people and a small model), only with more steps.
"""

import importlib
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import yaml

from tests.test_recipes import load_training


REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = REPOSITORY / "docs" / "cards"
METHODS = {"fspo": "fspo", "mask-dpo": "mask_dpo", "rlfh": "rlfh"}
# In place of the tests' values, which only have to be fast.
CHANGES = {"--max_steps": "12", "--learning_rate": "0.0003", "--critic_learning_rate": "0.001",
           "--max_completion_length": "48"}  # fmt: skip


def structure(card: str) -> list[str]:
    """Lines of a card without its numbers, names of machines and versions: what a reader finds where."""
    _, header, body = card.split("---\n", 2)
    data = yaml.safe_load(header)
    index = data.pop("model-index", [])
    lines = [f"{name}: {value}" for name, value in data.items()]
    for result in (result for model in index for result in model["results"]):
        lines += [f"{result['task']} {result['dataset']}"]
    for line in body.splitlines():
        cells = line.strip("|").split("|")
        if line.startswith("| hardware") or line.startswith("| software"):
            line = cells[0].strip()
        elif line.startswith("|") and len(cells) == 5:  # of the results
            line = "|".join(cells[:2])
        lines.append(re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", line).rstrip())
    return lines


def check_page(name: str, card: str) -> None:
    """Fail if the page in docs/cards is built otherwise than this card."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert structure(page) == structure(card), "run `python -m tests.hub.cards.card_pages`"


def main() -> None:
    sys.path.insert(0, str(REPOSITORY / "examples"))
    from hf_factuality.demos import closed_world as demo
    from hf_factuality.hub.cards.card import validate_card
    from hf_factuality.worlds import WorldConfig, WorldModelConfig

    PAGES.mkdir(exist_ok=True)
    build = demo.build_world_model
    for name in sys.argv[1:] or METHODS:
        folder = Path(tempfile.mkdtemp())
        out = folder / f"closed-world-{name}"

        def small(config=None, model_config=None, folder=folder, **_):
            settings = replace(
                model_config or WorldModelConfig(), hidden_size=64, intermediate_size=128, num_layers=2, batch_size=32
            )
            world = WorldConfig(num_people=24, num_attributes=0)
            return build(world, folder / "closed-world", settings, steps=700, progress=False)

        flags = list(importlib.import_module(f"tests.examples.test_{METHODS[name]}").FEW)
        for flag, value in CHANGES.items():
            if flag in flags:
                flags[flags.index(flag) + 1] = value
        flags += ["--verifier", "lexical"] if name == "fspo" else []
        with (
            mock.patch.object(demo, "build_world_model", small),
            mock.patch.object(demo.BiographyDemo, "max_new_tokens", 60),
        ):
            load_training(METHODS[name]).main(["--output_dir", str(out), *flags])
        validate_card(out, ask_hub=False)
        shutil.copy(out / "README.md", PAGES / f"{name}.md")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
