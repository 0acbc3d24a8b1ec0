"""The closed-world runs of the examples: data, verifier, measurement before and after, table and page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.generation.sureness import SURE_WORDS
from hf_factuality.hub.results import environment, folder_fingerprint, measured_entry, write_results
from hf_factuality.hub.tables import NOISE, before_and_after, format_table
from hf_factuality.methods.long_form.reward import answer_outcome
from hf_factuality.report import StoredCompletion, write_before_and_after
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.worlds import (
    WorldConfig,
    WorldModelConfig,
    WorldVerifier,
    build_world_model,
    evaluate_world,
    load_world,
)
from hf_factuality.worlds.evaluate import world_metrics


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer

    from hf_factuality.worlds import WorldEvaluation

SAMPLES_SHOWN = 30
_LESS_IS_BETTER = {"wrong", "empty"}
_CHECKED = {"consistent": Label.SUPPORTED, "contradictory": Label.CONTRADICTED, "missing": Label.UNVERIFIABLE}
_NEITHER = {"refused", "declined", "calls", "no_claim", "sentences", "fact_free", "tokens"}
# These are shares of all claims and of all sentences; the other figures are means over completions.
_WEIGHTS = {"precision": ("correct", "wrong", "unverifiable"), "fact_free": ("sentences",)}


class ClosedWorldDemo:
    """Questions about the people of a closed world, for a small model that is built on first use.

    `test_dataset` asks about people whose facts the model has read but whom it is never trained on; `verifier` labels every
    sentence without error.
    """

    metrics: Mapping[str, str] = {
        "accuracy": "answer accuracy",
        "precision": "reasoning factuality (supported share of the claims)",
        "right_for_right_reasons": "right answer, with claims, none of them false",
        "no_claim": "reasoning without any claim",
        "sentences": "sentences per completion",
    }
    benchmark = "closed-world-questions"
    data = "questions about people of a closed world"
    setting = "Questions about people held out from training, one completion each at temperature 1."
    max_new_tokens = 48
    count_repeats = False
    compared: frozenset[str] = frozenset()
    judge = "WorldVerifier"

    def __init__(self):
        import torch
        from accelerate import PartialState

        # A model this small gains next to nothing from a second thread, and loses a lot where cores are shared.
        torch.set_num_threads(1)
        with PartialState().main_process_first():
            self.model_dir = str(self._build())
        self.world = load_world(self.model_dir)
        self.verifier = WorldVerifier(self.world, count_repeats=self.count_repeats)
        self.train_dataset = self._requests("train")
        self.train_dataset.info.description = self.data  # for the card
        self.test_dataset = self._requests("test")
        self._found: dict[str, WorldEvaluation] = {}
        self._model: dict[str, Any] = {}

    def _build(self) -> Path:
        return build_world_model(size="demo")

    def _requests(self, split: str) -> Dataset:
        return self.world.questions(split)

    def measure(self, name: str, trainer: Trainer) -> None:
        """Let the trainer's model answer the held-out requests, one sample each at temperature 1.

        When `"after"` training is measured, the model is saved in the trainer's `output_dir` already: the results say which
        weights they are of.
        """
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        trainer.accelerator.print(f"Measuring {name} training on {len(self.test_dataset)} held-out requests ...")
        found = evaluate_world(
            model, trainer.processing_class, self.world, self.test_dataset, max_new_tokens=self.max_new_tokens
        )
        figures = self._figures(list(self.test_dataset), found.completions, found.sentences)
        self._found[name] = replace(found, metrics={**figures, "tokens": found.metrics["tokens"]})
        self._note_model(name, trainer)

    def _note_model(self, name: str, trainer: Trainer) -> None:
        """What the files of results say of the model that was measured."""
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        adapter = hasattr(model, "peft_config")
        folder = Path(model.config.name_or_path if name == "before" else trainer.args.output_dir).resolve()
        fingerprint = folder_fingerprint(folder)
        self._model[name] = {
            "name": Path(model.config.name_or_path).name if adapter else folder.name,
            "revision": None,
            "adapter": folder.name if adapter and name == "after" else None,
            "dtype": str(model.dtype).removeprefix("torch."),
            "server": None,
            **({"fingerprint": fingerprint} if fingerprint else {}),
        }
        self._device = model.device.type

    def _figures(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], sentences: Sequence[Any]) -> dict:
        """What the oracle finds in the completions."""
        return world_metrics(rows, texts, sentences)

    def report(self, output_dir: str) -> dict[str, Path]:
        """Print the table, write `results-before.json`, `results-after.json` (returned, for the card) and `report.html`."""
        from accelerate import PartialState

        folder = Path(output_dir)
        paths = {name: folder / f"results-{name}.json" for name in ("before", "after")}
        if not PartialState().is_main_process:
            return paths
        entries = self._write(paths)
        table = before_and_after(entries["before"], entries["after"])
        page = write_before_and_after(
            folder, self.setting, table, {name: self._stored(name) for name in ("before", "after")}, SAMPLES_SHOWN
        )
        print(f"\n{format_table(table)}\n\n{NOISE}\n{self.setting}\nCompletions with labelled sentences: {page}\n")
        return paths

    def _stored(self, name: str) -> list[StoredCompletion]:
        found, rows = self._found[name], [dict(row) for row in self.test_dataset]
        outcomes = self._outcomes(rows, found.completions, found.sentences)
        return [
            StoredCompletion(
                text, verification, row["question"], row.get("answer"), outcome=outcome, verifier=self.judge
            )
            for text, verification, row, outcome in zip(
                found.completions, found.verifications, rows, outcomes, strict=True
            )
        ]

    def _outcomes(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], sentences: Sequence[Any]
    ) -> list[str | None]:
        """What became of each answer, where it is right or wrong as a whole."""
        if "accuracy" not in self.metrics:
            return [None] * len(texts)
        each = zip(rows, texts, sentences, strict=True)
        return ["correct" if self._figures([row], [text], [own])["accuracy"] else "wrong" for row, text, own in each]

    def _write(self, paths: Mapping[str, Path]) -> dict[str, list[dict[str, Any]]]:
        """Write the files of results, and return their entries."""
        entries = {name: self._entries(name) for name in paths}
        for name, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # of an earlier run, whose weights are gone
            write_results(path, self._model[name], entries[name], environment(self._device))
        return entries

    def _entries(self, name: str) -> list[dict[str, Any]]:
        """Entries of the file of results. Their values are computed again, from one figure per completion."""
        found, rows = self._found[name], [dict(row) for row in self.test_dataset]
        single = [
            self._figures([row], [text], [sentences])
            for row, text, sentences in zip(rows, found.completions, found.sentences, strict=True)
        ]
        entries = []
        for key, title in self.metrics.items():
            items = [_numerator_and_weight(figures, key) for figures in single]
            better = None if key in _NEITHER else key not in _LESS_IS_BETTER
            judged = {} if key not in self.compared else {"verifier": None}  # with the gold answers, not by the oracle
            entry = self._entry(key, items, title, better, **judged)
            if key == "tokens":  # counted while sampling, of all completions together
                entry |= {"value": found.metrics[key], "n_scored": len(rows), "confidence_interval": None}
                entry["left_out"] = {"responses": {}}
            entries.append(entry)
        return entries

    def _entry(
        self, key: str, items: Sequence[tuple[float, float]], title: str, better: bool | None, **other: Any
    ) -> dict[str, Any]:
        rows = [dict(row) for row in self.test_dataset]
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
        how = {
            "dataset": {"dataset": self.benchmark, "split": "test", "revision": digest, "rows": len(rows),
                        "used": len(rows), "style": None, "seed": None, "dropped": {}},
            "generation": {"prompt_format": "chat", "chat_template_kwargs": {}, "max_new_tokens": self.max_new_tokens,
                           "temperature": 1.0, "top_p": 1.0, "n_samples": 1, "seed": 0, "stop": []},
            "verifier": {"name": self.judge, "extractor": None, "judge": None},
            "note": self.setting,
        }  # fmt: skip
        return measured_entry(self.benchmark, key, items, higher_is_better=better, title=title, **{**how, **other})


def _numerator_and_weight(figures: Mapping[str, Any], key: str) -> tuple[float, float]:
    """What a completion adds to a figure of many, from its own figures."""
    value, weight = figures[key], sum(figures[name] for name in _WEIGHTS[key]) if key in _WEIGHTS else 1.0
    return (0.0, 0.0) if value is None else (float(value) * weight, float(weight))


class BiographyDemo(ClosedWorldDemo):
    """Biographies of the people of a closed world, and preference pairs of them.

    The world is not that of [`ClosedWorldDemo`]: its texts have sentences with a vague value in the slot ("an unrecorded
    place"), without which a model cannot decline at the moment when it knows that it does not know, and the model reads
    nothing but biographies.
    """

    metrics = {
        "correct": "correct facts per answer",
        "wrong": "wrong facts per answer",
        "precision": "precision (supported share of the claims)",
        "factuality_score": "factuality score (share of sentences without hallucination)",
        "fact_free": "sentences without a fact",
        "no_claim": "answers without a fact",
        "tokens": "tokens per answer",
    }
    benchmark = "closed-world-biographies"
    data = "requests for biographies of people of a closed world"
    setting = "Biographies of people who are in no pair, one completion each at temperature 1."
    max_new_tokens = 110

    def _build(self) -> Path:
        return build_world_model(
            config=WorldConfig(num_people=400),
            model_config=WorldModelConfig(
                hidden_size=128, intermediate_size=352, num_layers=3, steps=900, questions=0.0, short_answers=0.0
            ),
        )

    def _requests(self, split: str) -> Dataset:
        return self.world.biographies(split)

    def preference_pairs(self, output_dir: str, seed: int = 0) -> Dataset:
        """Pairs that the model samples and the oracle labels: the best four of 16 biographies against the worst four.

        They are kept in a folder of `output_dir`, and found there by the next run of the same model and seed.
        """
        from accelerate import PartialState

        from hf_factuality.data.pairs import PairConfig
        from hf_factuality.data.preferences import load_pairs, preferences_from
        from hf_factuality.data.questions import read_questions
        from hf_factuality.data.sampling import SamplingConfig, TransformersSampler

        folder = Path(output_dir) / f"pairs-{Path(self.model_dir).name}-seed{seed}"
        with PartialState().main_process_first():
            if not (folder / "pairs.parquet").exists():
                print(f"Sampling 16 biographies of each of {len(self.train_dataset)} people, and labelling them ...")
                settings = SamplingConfig(
                    num_samples=16, temperature=0.8, top_k=40, max_new_tokens=self.max_new_tokens
                )
                preferences_from(
                    read_questions([{**row, "id": row["person"]} for row in self.train_dataset]),
                    TransformersSampler(self.model_dir, config=settings, batch_size=256),
                    self.verifier,
                    folder,
                    pairs=PairConfig(pairs_per_question=4),
                    seed=seed,
                    questions_per_batch=16,
                )
            return load_pairs(folder)


class KnowledgeDemo(ClosedWorldDemo):
    """Questions for single facts, some of which the model knows: of popular people nearly all, of others few.

    An answer is `<answer> Vellin </answer><confidence> 70% </confidence>`. Before it is trained the model declines (`I do not
    know`) and is confident at random, so that it knows the form and has yet to learn when.
    """

    metrics: Mapping[str, str] = {
        "correct": "right answers",
        "wrong": "wrong answers",
        "refused": "declined, or unsure",
        "tokens": "tokens per answer",
    }
    benchmark = "closed-world-facts"
    data = "questions for single facts about people of a closed world"
    max_new_tokens = 32
    compared = frozenset(("correct", "wrong", "refused"))

    def _build(self) -> Path:
        return build_world_model(
            config=WorldConfig(
                num_people=300,
                popularity_exponent=1.2,
                filler=0.0,
                unknown=0.02,
                hedged=0.0,
                hop_share=0.0,
                stated=1.0,
            ),
            model_config=WorldModelConfig(
                hidden_size=128, intermediate_size=352, num_layers=2, steps=900, questions=0.0, short_answers=0.5
            ),
        )

    def _requests(self, split: str) -> Dataset:
        return self.world.questions(split, hops=1)

    def _figures(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], sentences: Sequence[Any]) -> dict:
        """Shares of the outcomes."""
        said = self._outcomes(rows, texts, sentences)
        shares = {name: said.count(name) / len(said) for name in ("correct", "wrong", "refused")}
        return {**super()._figures(rows, texts, sentences), **shares}

    def _outcomes(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], sentences: Sequence[Any]
    ) -> list[str | None]:
        """`"I am unsure."` (R-Tuning) declines as well."""
        found = answer_outcome()(list(texts), prompts=None, answer=[row["answer"] for row in rows])
        unsure = SURE_WORDS[self.world.config.language].unsure
        return ["refused" if unsure in text else outcome for text, outcome in zip(texts, found, strict=True)]

    def refusals(self, variant: str, output_dir: str, seed: int) -> Dataset:
        """R-Tuning's data: what the model knows. Gold answers stand between tags, as it writes them."""
        from hf_factuality.data import RefusalConfig, read_questions, refusals_from
        from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
        from hf_factuality.verifiers import GoldVerifier

        rows = [
            {**row, "answer": [f"<answer> {row['answer']} </answer>", row["answer"]]} for row in self.train_dataset
        ]
        number, temperature = (5, 0.7) if variant == "uncertain" else (1, 0.0)
        sampling = SamplingConfig(
            num_samples=number, temperature=temperature, max_new_tokens=12, stop=("<confidence>",)
        )
        words = {"refusals": ("<answer> I do not know </answer>",)} if variant == "unknown" else {"question": ""}
        folder = Path(output_dir) / f"refusals-{Path(self.model_dir).name}-{number}-seed{seed}"
        return refusals_from(
            read_questions(rows), TransformersSampler(self.model_dir, config=sampling, batch_size=256),
            GoldVerifier("world"), folder, refusals=RefusalConfig(variant, **words), seed=seed, questions_per_batch=256,
        )  # fmt: skip


class RLFHDemo(BiographyDemo):
    """Biographies, to be explored by a policy that is paid for what it states."""

    metrics = {**BiographyDemo.metrics, "informativeness": "informativeness of the correct facts, per answer",
               "empty": "empty answers"}  # fmt: skip
    setting = "Biographies of people held out from training, one completion each at temperature 1."
    count_repeats = True


class KLCFDemo(BiographyDemo):
    """Biographies, paid for what they recall of a checklist and for the truth of what they state.

    `checklist_judge` finds without error what an answer says about an item of the checklist.
    """

    metrics = {
        "correct": "true facts per answer",
        "wrong": "false facts per answer",
        "precision": "precision (supported share of the claims)",
        "repetition": "answers that state a fact twice",
        "empty": "empty answers",
        "tokens": "tokens per answer",
    }
    setting = RLFHDemo.setting

    @property
    def checklist_judge(self) -> _ChecklistJudge:
        return _ChecklistJudge(self.verifier)


class _ChecklistJudge:
    """Judge that looks an item of a checklist up in the facts that an answer states."""

    def __init__(self, verifier: WorldVerifier):
        self.verifier = verifier

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        found = []
        for item in inputs:
            (fact,) = self.verifier.read(item.claim)
            said = self.verifier.check(item.evidence[0], fact.person)
            found.append(Judgement(_CHECKED[said[fact.relation]]))
        return found
