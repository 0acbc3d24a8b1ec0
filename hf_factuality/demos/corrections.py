"""The closed-world run of self-correction: a model that knows the form of checking and revising, and not yet when to do it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from hf_factuality.data import CorrectionConfig, corrections_from, read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.functional.answers import exact_match
from hf_factuality.hub.cards.card import write_method_card
from hf_factuality.hub.tables import NOISE, before_and_after, format_table
from hf_factuality.methods.self_correction.formula import CHECKED_RIGHT, CHECKED_WRONG, correction_figures
from hf_factuality.reading.marks import extract_answer, self_verdict
from hf_factuality.verifiers import GoldVerifier


FIGURES = {
    "turn_1": ("first answers that are right", True),
    "final": ("last answers that are right", True),
    "corrected": ("wrong, then right", True),
    "spoilt": ("right, then wrong", False),
    "verdict_accuracy": ("verdicts that are right", True),
}
REVISE, VERDICTS = "[REVISE]", (CHECKED_RIGHT, CHECKED_WRONG)


class CorrectionDemo(ClosedWorldDemo):
    """Two-hop questions. The base is taught the form of two turns: its own answers with verdicts and revisions at random."""

    benchmark = "closed-world-corrections"
    data = "two-hop questions about people of a closed world"
    setting = "Questions about people held out from training, one answer each at temperature 1, revised where it says that it is wrong."
    max_new_tokens = 72

    def __init__(self, output_dir: str, seed: int):
        super().__init__()
        self.output_dir, self.seed = Path(output_dir), seed
        self._rows: dict[str, list[tuple[bool, bool, bool | None]]] = {}
        self.base = str(self._taught(self.output_dir / f"form-{Path(self.model_dir).name}-seed{seed}"))

    def _sampler(self, model: Any, tokenizer: Any = None, number: int = 4) -> TransformersSampler:
        config = SamplingConfig(num_samples=number, temperature=float(number > 1), max_new_tokens=self.max_new_tokens)
        return TransformersSampler(model, tokenizer, config, batch_size=512)

    def _taught(self, folder: Path) -> Path:
        if (folder / "config.json").exists():
            return folder
        rng, prompts = random.Random(self.seed), [row["prompt"] for row in self.train_dataset]
        said = self._sampler(self.model_dir, number=2).sample(prompts, self.seed)
        rows = []
        for prompt, (first, second) in zip(prompts, said, strict=True):
            verdict = rng.choice(VERDICTS)
            told = [*prompt, {"role": "assistant", "content": f"{first.text}\n\n{verdict}"}]
            again = [{"role": "user", "content": REVISE}, {"role": "assistant", "content": second.text}]
            rows.append(told + again * (verdict == VERDICTS[1]))
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(self.model_dir),
            AutoTokenizer.from_pretrained(self.model_dir),
        )
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (REVISE, *VERDICTS)])
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        settings = {"num_train_epochs": 6, "per_device_train_batch_size": 64, "learning_rate": 1e-3, "max_length": 256}
        quiet = {
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "bf16": False,
            "use_cpu": not _cuda(),
        }
        args = SFTConfig(
            str(folder), assistant_only_loss=True, seed=self.seed, gradient_checkpointing=False, **settings, **quiet
        )
        trainer = SFTTrainer(
            model,
            args,
            train_dataset=Dataset.from_list([{"messages": row} for row in rows]),
            processing_class=tokenizer,
        )
        trainer.train()
        trainer.save_model()
        return folder

    def build(self, model: str, stage: str) -> Dataset:
        """Trajectories, or pairs for `"dpo"`, of a model's own answers, kept in `output_dir`."""
        output = "pairs" if stage == "dpo" else "trajectories"
        rows = [{**row, "answer": [row["answer"]]} for row in self.train_dataset]
        config = CorrectionConfig(output, num_verdicts=4, num_revisions=4, revise=REVISE)
        folder = self.output_dir / f"corrections-{Path(model).name}-{output}-seed{self.seed}"
        return corrections_from(
            read_questions(rows), self._sampler(model), GoldVerifier("world"), folder, corrections=config, seed=self.seed,
            questions_per_batch=128,
        )  # fmt: skip

    def two_turns(self, name: str, trainer: Any) -> dict[str, float | None]:
        """The figures of one answer at temperature 1 to each held-out question."""
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        sampler = self._sampler(model, trainer.processing_class, 2)  # of which the first is taken
        prompts = [row["prompt"] for row in self.test_dataset]
        golds = [[row["answer"]] for row in self.test_dataset]
        first = [found.text for found, _ in sampler.sample(prompts, 0)]
        verdicts, final = [self_verdict(text) for text in first], list(first)
        again = [place for place, verdict in enumerate(verdicts) if verdict is False]
        asked = [
            [*prompts[it], {"role": "assistant", "content": first[it]}, {"role": "user", "content": REVISE}]
            for it in again
        ]
        for place, (found, _) in zip(again, sampler.sample(asked, 1) if asked else (), strict=True):
            final[place] = found.text
        right = [
            [exact_match(extract_answer(text) or "", gold) >= 0.5 for text, gold in zip(texts, golds, strict=True)]
            for texts in (first, final)
        ]
        found = correction_figures(*right, verdicts)
        self._rows[name] = list(zip(*right, verdicts, strict=True))
        self._note_model(name, trainer)
        return found

    def write(self, output_dir: str) -> dict[str, Path]:
        """Print the table, and write `results-before.json` and `results-after.json`, for the card."""
        paths = {name: Path(output_dir) / f"results-{name}.json" for name in self._rows}
        if PartialState().is_main_process:
            entries = self._write(paths)
            if len(entries) == 2:
                table = format_table(before_and_after(entries["before"], entries["after"]))
                print(f"\n{table}\n\n{NOISE}\n{self.setting}\n")
        return paths

    def _entries(self, name: str) -> list[dict[str, Any]]:
        rows = self._rows[name]
        shares = {key: [correction_figures(*([it] for it in row))[key] for row in rows] for key in FIGURES}
        return [
            self._entry(key, [(float(value), 1.0) for value in shares[key]], title, better, verifier=None)
            for key, (title, better) in FIGURES.items()
        ]


def write_card(trainer: Any, script: Any, demo: CorrectionDemo | None) -> None:
    """Measure the trained model in the closed world, and write the card of a stage, of which RL has a trainer of ours."""
    results, named = None, {"dataset_name": script.dataset_name}
    if demo:
        demo.two_turns("after", trainer)
        results = demo.write(trainer.args.output_dir)
    if script.stage == "rl":
        trainer.card_results = results
        trainer.create_model_card(**named)
    else:
        write_method_card(trainer, f"correction_{script.stage}", results=results, **named)


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
