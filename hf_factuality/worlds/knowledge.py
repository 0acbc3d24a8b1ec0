"""What a world's model knows and says before anything is done to it: the figures of `hf-factuality world build`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.io.files import write_atomically
from hf_factuality.io.rows import read_rows
from hf_factuality.worlds.evaluate import WorldEvaluation, evaluate_world, world_metrics
from hf_factuality.worlds.lm import CURVE_FILE, WORLD_FILE, load_world
from hf_factuality.worlds.world import World


KNOWLEDGE_FILE = "knowledge.json"
MODES = (("greedy", 0.0), ("sampled", 1.0))
_BIOGRAPHIES = {
    "precision": "biographies: precision",
    "correct": "biographies: correct facts each",
    "wrong": "biographies: wrong facts each",
    "unverifiable": "biographies: unverifiable sentences each",
}
_QUESTIONS = {
    "accuracy": "questions: accuracy",
    "right_for_right_reasons": "questions: right for the right reasons",
    "wrong_reasons": "questions: wrong reasons among right answers",
    "no_claim": "questions: answers without a claim",
}


def measure_knowledge(model_dir: str | os.PathLike[str], people: int = 400, questions: int = 600) -> dict[str, Any]:
    """Measures a world's model once on biographies of `people` spread evenly over the ranks of popularity and on two-hop
    `questions`, half of each split, and keeps the figures in its directory.

    Per mode (`"greedy"`; `"sampled"`: temperature 1) the names of [`world_metrics`]: of the biographies, with
    `precision_by_quartile` of the people by popularity, most popular first; of the questions from `accuracy` on;
    `unparsable` of both together. And `parameters`, `loss` (at the end of training), `tokens` (trained on).

    Raises:
        `DataError`: the curve of the training is empty.
    """
    folder = Path(model_dir)
    setting = {"people": people, "questions": questions, "precision": "of all claims"}  # once: of the decided ones
    cached = folder / KNOWLEDGE_FILE
    try:
        found = json.loads(cached.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    if found.pop("setting", None) == setting:
        return found

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    world = load_world(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    *_, last = [None, *(row for _, row in read_rows(folder / CURVE_FILE))]
    if last is None:
        raise DataError(f"{folder / CURVE_FILE} is empty: nothing tells how the model was trained; build it again")
    found: dict[str, Any] = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": last["tokens"],
        "loss": last["loss"],
    }
    rows = _by_rank(world, people)
    asked = [row for split in ("test", "train") for row in list(world.questions(split))[: questions // 2]]
    for mode, temperature in MODES:
        about = evaluate_world(model, tokenizer, world, rows, temperature=temperature, max_new_tokens=128)
        answered = evaluate_world(model, tokenizer, world, asked, temperature=temperature)
        found[mode] = _figures(rows, about, answered)
    write_atomically(cached, json.dumps({"setting": setting, **found}, indent=2) + "\n")
    return found


def format_knowledge(found: dict[str, Any], model_dir: str | os.PathLike[str]) -> str:
    """The figures of [`measure_knowledge`] as a table for the terminal."""
    record = json.loads((Path(model_dir) / WORLD_FILE).read_text(encoding="utf-8"))
    modes = [found[mode] for mode, _ in MODES]
    rows = [(label, [mode[name] for mode in modes]) for name, label in {**_BIOGRAPHIES, **_QUESTIONS}.items()]
    rows.append(("unparsable sentences", [mode["unparsable"] for mode in modes]))
    quartiles = zip(*(mode["precision_by_quartile"] for mode in modes), strict=True)
    rows += [(f"precision by popularity, quartile {number}", both) for number, both in enumerate(quartiles, start=1)]
    return "\n".join(
        [
            f"{found['parameters'] / 1e6:.2f} million parameters, {record['world']['num_people']} people, "
            f"{found['tokens'] / 1e6:.2f} million tokens, loss {found['loss']:.3f}",
            "",
            f"{'':44}{'greedy':>10}{'sampled':>10}",
            *(f"{label:44}{_cell(one):>10}{_cell(other):>10}" for label, (one, other) in rows),
        ]
    )


def _by_rank(world: World, count: int) -> list[dict[str, Any]]:
    """Requests for biographies of people at even distances in the order of popularity."""
    everybody = {row["person"]: row for split in ("train", "test") for row in world.biographies(split)}
    count = min(count, len(world.people))
    return [everybody[world.people[number * len(world.people) // count].name] for number in range(count)]


def _figures(rows: list[dict[str, Any]], about: WorldEvaluation, answered: WorldEvaluation) -> dict[str, Any]:
    quarter = -(-len(rows) // 4)
    parts = [slice(start, start + quarter) for start in range(0, len(rows), quarter)]
    quartiles = [world_metrics(rows[part], about.completions[part], about.sentences[part]) for part in parts]
    kinds = [sentence.kind for found in (*about.sentences, *answered.sentences) for sentence in found]
    return {
        **{name: about.metrics[name] for name in _BIOGRAPHIES},
        "precision_by_quartile": [figures["precision"] for figures in quartiles],
        "unparsable": kinds.count("unparsable") / len(kinds) if kinds else None,
        **{name: answered.metrics[name] for name in _QUESTIONS},
    }


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
