"""The closed-world run of rollouts that search, and how these are measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from transformers import PrinterCallback

from hf_factuality.demos.closed_world import ClosedWorldDemo
from hf_factuality.methods.tools.formula import CitedStatement, citation_figures
from hf_factuality.methods.tools.reward import CitationReward, tool_calls
from hf_factuality.spans import Label, Verification
from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
from hf_factuality.trainers.fact_grpo_trainer import FactGRPOTrainer
from hf_factuality.worlds.searching import (
    TOKENS,
    SearchWorld,
    SearchWorldConfig,
    SearchWorldVerifier,
    read_statements,
)


@dataclass(frozen=True)
class SearchRollout:
    """A rollout about a person, as it is measured.

    Args:
        text (`str`): What the policy said.
        right (`dict[str, bool]`): Relation -> whether the answer is right.
        declined (`int`): Relations of which it says that nobody knows.
        calls, new (`int`): Searches, and those that showed a passage for the first time.
        verification ([`Verification`]): Labels by what was retrieved.
        statements (`list[CitedStatement]`): What is stated, with what its citations are worth.
    """

    text: str
    right: dict[str, bool]
    declined: int
    calls: int
    new: int
    verification: Verification
    statements: list[CitedStatement]


def search_figures(rollouts: Sequence[SearchRollout]) -> dict[str, float | None]:
    """Figures of rollouts; `None` where there is nothing to count.

    `right`: share of what was asked that is right, declining where nobody can know included. `supported`: share of what is
    stated that passages of the rollout support. `citation_recall`, `citation_precision`, `citation_f1`: see
    [`~hf_factuality.methods.tools.formula.citation_figures`]. `calls`: per rollout. `declined`: share of what was asked.
    `idle_calls`: share of the calls that show nothing new. `cites_all`: share of the statements with three citations or more;
    `cites_missing`: with one of a passage that is not there.
    """
    stated = [
        it.label is Label.SUPPORTED
        for own in rollouts
        for it in own.verification.spans
        if it.label is not Label.NO_FACT
    ]
    cited = [it for own in rollouts for it in own.statements]
    calls = sum(own.calls for own in rollouts)
    return {
        "right": fmean(fmean(own.right.values()) for own in rollouts),
        "supported": fmean(stated) if stated else None,
        **{f"citation_{name}": value for name, value in citation_figures(cited).items()},
        "calls": calls / len(rollouts),
        "declined": fmean(own.declined / len(own.right) for own in rollouts),
        "idle_calls": 1 - sum(own.new for own in rollouts) / calls if calls else None,
        "cites_all": fmean(len(it.exist) >= 3 for it in cited) if cited else None,
        "cites_missing": fmean(not all(it.exist) for it in cited) if cited else None,
        "n": len(rollouts),
    }


def measure_rollouts(
    model: Any, tokenizer: Any, world: SearchWorld, environment: Callable[[], Any], dataset: Any, seed: int = 0
) -> list[SearchRollout]:
    """One rollout at temperature 1 for each row, by the trainer's own loop."""
    found: list[SearchRollout] = []
    citations = CitationReward(SearchWorldVerifier())

    def record(completions, completion_texts, person, verifications, **columns):
        statements = citations.statements(completion_texts, columns)
        rows = zip(completions, completion_texts, person, verifications, statements, strict=True)
        for completion, text, name, verification, cited in rows:
            declined = {it.relation for it in read_statements(text) if it.name == name and it.value is None}
            new = _results_with_news(completion)
            calls = len(tool_calls(completion))
            found.append(SearchRollout(text, world.right(text, name), len(declined), calls, new, verification, cited))
        return [0.0] * len(completions)

    with tempfile.TemporaryDirectory() as scratch:
        args = FactGRPOConfig(
            scratch, verify_scope="completion", factuality_reward_weight=0.0, credit="none", num_generations=2,
            num_generations_eval=1, per_device_train_batch_size=2, per_device_eval_batch_size=64, report_to="none",
            max_completion_length=TOKENS, use_cpu=model.device.type == "cpu", bf16=False, seed=seed, disable_tqdm=True,
            gradient_checkpointing=False,
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            model,
            record,
            args,
            dataset,
            dataset,
            tokenizer,
            verifier=SearchWorldVerifier(),
            environment_factory=environment,
        )
        trainer.remove_callback(PrinterCallback)  # of the evaluation's own figures, which say nothing here
        trainer.evaluate()
    return found[: len(dataset)]


def _results_with_news(completion: Sequence[dict[str, Any]]) -> int:
    """How many results of tools show a passage that none before them showed."""
    seen: set[str] = set()
    count = 0
    for message in completion:
        if message["role"] == "tool":
            new = {line for line in str(message["content"]).splitlines() if line.startswith("[")} - seen
            count += bool(new)
            seen |= new
    return count


@dataclass(frozen=True)
class _Measured:
    metrics: dict[str, float | None]
    rollouts: list[SearchRollout]

    @property
    def completions(self) -> list[str]:
        return [own.text for own in self.rollouts]

    @property
    def sentences(self) -> list[SearchRollout]:
        return self.rollouts

    @property
    def verifications(self) -> list[Verification]:
        return [own.verification for own in self.rollouts]


class SearchDemo(ClosedWorldDemo):
    """Questions about people of a closed world, for a small policy that searches a corpus about them."""

    metrics = {
        "right": "right, or declined where nobody can know",
        "supported": "statements that what was retrieved supports",
        "citation_recall": "citation recall",
        "citation_precision": "citation precision",
        "calls": "searches per answer",
        "declined": "declined",
    }
    benchmark = "closed-world-search"
    data = "questions about people of a closed world, with a corpus to search"
    setting = "Questions about people held out from training, one rollout each at temperature 1."
    max_new_tokens = TOKENS
    judge = "SearchWorldVerifier"

    def __init__(self, output_dir: str, config: SearchWorldConfig | None = None):
        import torch

        torch.set_num_threads(1)
        self.search_world = world = SearchWorld(config)
        folder = Path(output_dir)
        with PartialState().main_process_first():
            self.model_dir = str(world.build_policy())
            folder.mkdir(parents=True, exist_ok=True)
            self.environment = world.environment(folder)
        self.verifier = SearchWorldVerifier()
        self.train_dataset, self.test_dataset = world.questions("train"), world.questions("test")
        self.train_dataset.info.description = self.data
        self._found, self._model = {}, {}

    def measure(self, name, trainer):
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        trainer.accelerator.print(f"Measuring {name} training on {len(self.test_dataset)} held-out questions ...")
        mode = model.training
        rollouts = measure_rollouts(
            model, trainer.processing_class, self.search_world, self.environment, self.test_dataset
        )
        model.train(mode)
        self._found[name] = _Measured(search_figures(rollouts), rollouts)
        self._note_model(name, trainer)

    def _figures(self, rows, texts, sentences):
        return search_figures(sentences)
