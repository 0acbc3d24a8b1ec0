"""The alignment tax: other abilities of models, by lm-evaluation-harness (`lm_eval`), and what they lost of them."""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.evaluation._shared import shown
from hf_factuality.evaluation.plan import ABILITIES
from hf_factuality.functional.scoring import mean
from hf_factuality.hub.results import load_results, measured_entry, measurement
from hf_factuality.io.rows import read_rows


class Ability:
    """A task of the harness: its rows, from the Hub or a file in the same columns, are read, and those that will be asked
    (all, or a sample of `limit`) rendered; a `DataError` says what is wrong with them."""

    def __init__(self, name: str, path: str | None, limit: int | None, seed: int):
        import lm_eval

        metric, dataset = ABILITIES[name]
        digest = path and hashlib.sha256(Path(path).read_bytes()).hexdigest()
        source, place = Path(path).name if path else dataset, "the rows"
        try:
            self.task = task = _task(name, path)
            docs = list(task.eval_docs)
            if not docs:
                raise ValueError("there are none")
            self.rows = sorted(random.Random(seed).sample(range(len(docs)), min(limit or len(docs), len(docs))))
            for number in self.rows:
                place, doc = f"row {number}", docs[number]
                text, target = task.doc_to_text(doc), task.doc_to_target(doc)
                if task.OUTPUT_TYPE == "multiple_choice" and not 0 <= target < len(task.doc_to_choice(doc)):
                    raise ValueError(f"there is no choice {target} in answer to {text!r}")
                if name == "squadv2" and not isinstance(doc["answers"]["text"], list):
                    raise ValueError(f"answers.text must be a list, got {doc['answers']['text']!r:.100}")
        # The harness and datasets raise all sorts.
        except Exception as error:
            said = f"{name}: {place} of {source} cannot be read ({type(error).__name__}: {error!s:.300})"
            raise DataError(f"{said}; a file for `dataset` {name}=FILE has the columns of {dataset}") from error
        task.set_config("num_fewshot", 0)
        split = None if path else task.config.test_split or task.config.validation_split
        used = {"rows": len(docs), "used": len(self.rows), "seed": seed if limit else None}
        how = {"prompt_format": "plain", "harness": f"lm_eval {lm_eval.__version__}", "task_version": task.VERSION}
        where = {"dataset": source, "split": split, "revision": digest, **used}
        self._result = functools.partial(measured_entry, name, metric, dataset=where, generation=how)  # of scores

    def measure(self, engine: Any, out: Path, overwrite: bool) -> dict[str, Any]:
        """The result of a model that is loaded; one that `out` holds already is taken from there."""
        from lm_eval import evaluate
        from lm_eval.models.huggingface import HFLM

        wanted, name = measurement(self._result([])), self.task.task_name
        for known in load_results(out)["results"]:
            if measurement(known) == wanted and not overwrite:
                return known
        model = HFLM(pretrained=engine.model, tokenizer=engine.tokenizer, batch_size=engine.batch_size)
        several = len(self.rows) > 1  # one has no standard error
        found = evaluate(model, {"tasks": {name: self.task}}, samples={name: self.rows}, bootstrap_iters=int(several))
        figures = {key.removesuffix(",none"): it for key, it in found["results"][name].items()}
        key = "acc" if "acc" in figures else "f1"
        entry = self._result([(float(it[key]), 1.0) for it in found["samples"][name]])
        entry["parts"] = {it: float(figures[it]) for it in ("acc_norm", "em") if it in figures}
        entry["parts"]["standard_error"] = float(figures[f"{key}_stderr"]) if several else None
        return entry


def _task(name: str, path: str | None) -> Any:
    from lm_eval import tasks

    config: dict[str, Any] = {"task": name}
    if path is not None:
        from datasets import Dataset

        rows = Dataset.from_list([row for _, row in read_rows(path)])
        config["custom_dataset"] = lambda **_: dict.fromkeys(("train", "validation", "test"), rows)
    if name != "squadv2":
        folder = Path(tasks.__file__).parent / name.partition("_")[0]  # to index all its 14,000 tasks takes long
        manager = tasks.TaskManager(include_defaults=False, include_path=str(folder))
        return manager.load({"group": "tax", "task": [config]})["tasks"][name]
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks.squadv2.task import SQuAD2

    # The harness's own class reads no file, and its metric is code from the Hub; the prompt and the rule are the same.
    squad = {
        "dataset_path": ABILITIES[name][1],
        "validation_split": "validation",
        "output_type": "generate_until",
        "doc_to_text": functools.partial(SQuAD2.doc_to_text, None),
        "doc_to_target": functools.partial(SQuAD2.doc_to_target, None),
        "generation_kwargs": {"until": ["\n"]},
        "process_results": _squad_f1,
        "metric_list": [{"metric": "f1", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": SQuAD2.VERSION},
    }
    return ConfigurableTask(config={**squad, **config})


def _squad_f1(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """F1 of SQuAD's script; without a gold answer, whether nothing is said."""
    from lm_eval.tasks.tydiqa.utils import f1_score, normalize_answer

    silent = float(not normalize_answer(results[0], "en"))
    return {"f1": max((f1_score(results[0], gold, "en") for gold in doc["answers"]["text"]), default=silent)}


def tax_rows(collected: Sequence[tuple[Any, Sequence[Mapping[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """A row for each metric of a model: its `value`, and all abilities and their mean with standard errors."""
    found = {
        it["benchmark"]: (it["value"], it["parts"]["standard_error"]) for known, (it, *_) in collected if not known
    }
    values, errors = zip(*found.values(), strict=True)
    # The abilities are measured on different items.
    found["mean"] = mean(values), None if None in errors else math.hypot(*errors) / len(errors)
    abilities = {name: {"value": value, "standard_error": error} for name, (value, error) in found.items()}
    for entry in (entry for known, entries in collected if known for entry in entries):
        row = {"benchmark": f"{entry['benchmark']}.{entry['metric']}", "value": entry["value"]}
        yield {**row, "interval": entry["confidence_interval"], "mean": found["mean"][0], "abilities": abilities}


def add_tax(groups: Iterable[Sequence[dict[str, Any]]]) -> tuple[dict[str, Any], list[str]]:
    """Add what the first model has more to each ability, with the error as of independent samples; returns a note."""
    for first, *others in groups:
        for row in (first, *others):
            for name, figure in row["abilities"].items():
                before = first["abilities"][name]
                errors = [it["standard_error"] for it in (figure, before)] if row is not first else [0.0]
                figure["tax"] = before["value"] - figure["value"]
                figure["tax_error"] = None if None in errors else math.hypot(*errors)
    return {}, [f"in brackets the tax: what {first['model']} has more"]


def tax_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """A line of the table."""
    cells = {name: shown(row[name]) for name in ("benchmark", "model", "value", "front")}
    for name, it in row["abilities"].items():
        figures = [shown(it[key]) for key in ("value", "standard_error", "tax", "tax_error")]
        cells[name] = "{} ± {} ({} ± {})".format(*figures)
    return cells
