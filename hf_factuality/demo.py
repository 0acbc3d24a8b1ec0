"""The closed-world run of the examples: data, verifier, measurement before and after, table and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.hub.card import before_and_after, format_table
from hf_factuality.report import ReportSample, write_report
from hf_factuality.worlds import WorldVerifier, build_world_model, evaluate_world, load_world


if TYPE_CHECKING:
    from transformers import Trainer

METRICS = {
    "accuracy": "answer accuracy",
    "precision": "reasoning factuality (supported / (supported + contradicted))",
    "right_for_right_reasons": "right answer, with claims, none of them false",
    "no_claim": "reasoning without any claim",
    "sentences": "sentences per completion",
}
SAMPLES_SHOWN = 30


class ClosedWorldDemo:
    """Questions about the people of a closed world, for a small model that is built on first use.

    Attributes:
        model_dir (`str`):
            The model, as `from_pretrained` loads it.
        train_dataset, test_dataset (`datasets.Dataset`):
            Questions about people to train on, and about others, whose facts the model has read but whose questions it is
            never trained on.
        verifier ([`WorldVerifier`]):
            Labels every sentence without error.
    """

    def __init__(self):
        import torch
        from accelerate import PartialState

        # A model this small gains next to nothing from a second thread, and loses a lot where cores are shared.
        torch.set_num_threads(1)
        with PartialState().main_process_first():
            self.model_dir = str(build_world_model(size="demo"))
        self.world = load_world(self.model_dir)
        self.verifier = WorldVerifier(self.world)
        self.train_dataset = self.world.questions("train")
        self.test_dataset = self.world.questions("test")
        self._found: dict[str, Any] = {}

    def measure(self, name: str, trainer: Trainer) -> None:
        """Let the trainer's model answer the held-out questions, one sample each at temperature 1.

        Args:
            name (`str`):
                `"before"` or `"after"`.
            trainer ([`~transformers.Trainer`]):
                Its model and tokenizer are measured.
        """
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        trainer.accelerator.print(f"Measuring {name} training on {len(self.test_dataset)} held-out questions ...")
        self._found[name] = evaluate_world(model, trainer.processing_class, self.world, self.test_dataset)

    def report(self, output_dir: str) -> dict[str, Any]:
        """Print the table, write `results.json` and `report.html`.

        Args:
            output_dir (`str`):
                Where to write them.

        Returns:
            `dict`: results for the model card.
        """
        from accelerate import PartialState

        before, after = self._found["before"], self._found["after"]
        setting = "Questions about people held out from training, one completion each at temperature 1."
        results = before_and_after(before.metrics, after.metrics, METRICS, before.metrics["n"], setting)
        if not PartialState().is_main_process:
            return results
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        record = {"setting": setting, "before": before.metrics, "after": after.metrics}
        (folder / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        samples = [
            ReportSample(row["question"], row["answer"], [("before", b, vb), ("after", a, va)])
            for row, b, vb, a, va in zip(
                self.test_dataset,
                before.completions,
                before.verifications,
                after.completions,
                after.verifications,
                strict=True,
            )
        ][:SAMPLES_SHOWN]
        page = write_report(folder / "report.html", "Before and after training", setting, results["metrics"], samples)
        print(f"\n{format_table(results['metrics'])}\n\n{setting}\nCompletions with labelled sentences: {page}\n")
        return results
