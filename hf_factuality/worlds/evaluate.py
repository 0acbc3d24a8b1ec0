"""Measures a model on the requests of a world: are the answers right, what does it say on the way, and what not?

Of the world's own model, before anything is done to it: the figures of `hf-factuality world build`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import DataError
from hf_factuality.functional.answers import exact_match
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import decided_precision, factual_precision, mean, mean_factuality
from hf_factuality.generation.base import ChatRequest
from hf_factuality.generation.local import LocalChat
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.io.files import write_atomically
from hf_factuality.io.rows import read_rows
from hf_factuality.reading.marks import check_format, extract_answer
from hf_factuality.reading.scopes import scope_ranges
from hf_factuality.spans import Label, Verification
from hf_factuality.worlds.lm import CURVE_FILE, WORLD_FILE, load_world
from hf_factuality.worlds.oracle import WorldSentence, WorldVerifier, to_verification
from hf_factuality.worlds.world import World


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
_TRUE = {Label.SUPPORTED, Label.HEDGED_SUPPORTED}
_FALSE = {Label.CONTRADICTED, Label.HEDGED_CONTRADICTED}


@dataclass(frozen=True)
class WorldEvaluation:
    """Figures, and what they were computed from.

    Args:
        metrics (`dict[str, float | int | None]`):
            See [`world_metrics`].
        completions (`list[str]`):
            In the order of the dataset.
        sentences (`list[list[WorldSentence]]`):
            What the oracle read in each.
    """

    metrics: dict[str, float | int | None]
    completions: list[str]
    sentences: list[list[WorldSentence]]

    @property
    def verifications(self) -> list[Verification]:
        """One per completion."""
        return [to_verification(found) for found in self.sentences]


def world_metrics(
    rows: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    sentences: Sequence[Sequence[WorldSentence]],
    lengths: Sequence[int] | None = None,
) -> dict[str, float | int | None]:
    """Figures of completions that the oracle has read, of which `lengths` are the tokens; rows with `answer` are questions.

    Shares are of completions where nothing else is said, and `None` where there is nothing to count.

        - `n`: completions. `sentences`, `tokens`: per completion. In all other figures each clause of a compound sentence
          counts as a sentence.
        - `correct`, `wrong`, `unverifiable`: supported, contradicted and unverifiable sentences per completion, hedged
          ones included; `claims`: the first two.
        - `precision`: supported among these three of all completions; `decided_precision`: among the first two.
        - `factuality_score`: mean over completions with sentences of the share of sentences that are neither
          contradicted nor unverifiable (Mask-DPO's score).
        - `mean_factuality`: mean over completions of FSPO's sentence mean (1, 0, -1).
        - `fact_free`: NO_FACT among all sentences; `unparsable`: likewise.
        - `no_claim`: with none of the first two. `repetition`: says a fact of the answer twice. `off_subject`: speaks of
          somebody else. `empty`: without any text.
        - `informativeness`: sum of RLFH's ratings over the supported, per completion.

    Of questions also:

        - `accuracy`: right in the reward's sense (right form, right answer). `format`: of that form.
        - `right_for_right_reasons`: right, at least one sentence supported, none contradicted.
        - `wrong_reasons`: contradicts something, among the right ones.
        - `reward`: answer plus mean sentence factuality (FSPO, Eq. 10), mean; as in training, text without a think block
          adds nothing.
    """
    n = len(completions)
    flat = [sentence for found in sentences for sentence in found]
    read = [to_verification(found) for found in sentences]
    verifications = [judged_units(found) for found in read]
    spans = [span for found in verifications for span in found]

    def count(labels: set[Label]) -> list[int]:
        return [sum(s.label in labels for s in found) for found in sentences]

    true, false, unverifiable = count(_TRUE), count(_FALSE), count({Label.UNVERIFIABLE})
    claims = [t + f for t, f in zip(true, false, strict=True)]
    bad = zip(false, unverifiable, sentences, strict=True)
    means = [mean_factuality(found) for found in verifications]
    metrics: dict[str, float | int | None] = {
        "n": n,
        "correct": mean(true),
        "wrong": mean(false),
        "unverifiable": mean(unverifiable),
        "claims": mean(claims),
        "precision": factual_precision(spans),
        "decided_precision": decided_precision(spans),
        "factuality_score": mean([(len(found) - f - u) / len(found) for f, u, found in bad if found]),
        "mean_factuality": mean(means),
        "fact_free": mean([s.label is Label.NO_FACT for s in flat]),
        "unparsable": mean([s.kind == "unparsable" for s in flat]),
        "no_claim": mean([not c for c in claims]),
        "repetition": mean([any(s.repeated for s in found) for found in sentences]),
        "off_subject": mean([any(s.off_subject for s in found) for found in sentences]),
        "empty": mean([not text.strip() for text in completions]),
        "sentences": mean([len(found.spans) for found in read]),
        "informativeness": mean([sum(s.informativeness for s in found if s.label in _TRUE) for found in sentences]),
        "tokens": mean(lengths or []),
    }
    if n and all("answer" in row for row in rows):
        formats = [check_format(text) for text in completions]
        right = [
            keeps and exact_match(extract_answer(text), [row["answer"]]) == 1.0
            for keeps, text, row in zip(formats, completions, rows, strict=True)
        ]
        reasons = [r and t > 0 and f == 0 for r, t, f in zip(right, true, false, strict=True)]
        metrics["accuracy"] = mean(right)
        metrics["right_for_right_reasons"] = mean(reasons)
        metrics["wrong_reasons"] = mean([f > 0 for r, f in zip(right, false, strict=True) if r])
        metrics["format"] = mean(formats)
        reasoned = [bool(scope_ranges(text, "think")) for text in completions]
        metrics["reward"] = mean([r + m * t for r, m, t in zip(right, means, reasoned, strict=True)])
    return metrics


def evaluate_world(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    world: World,
    dataset: Dataset,
    *,
    temperature: float = 1.0,
    num_samples: int = 1,
    batch_size: int = 256,
    max_new_tokens: int = 48,
    seed: int = 0,
) -> WorldEvaluation:
    """Lets the model answer every request of the dataset and measures the completions with the exact oracle.

    Args:
        model (`PreTrainedModel`):
            The model; it is put back into training mode if it was in it.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, with a chat template.
        world ([`World`]):
            What is true.
        dataset (`datasets.Dataset`):
            As [`World.questions`] or [`World.biographies`] makes it.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of sampling; 0 for greedy decoding.
        num_samples (`int`, *optional*, defaults to `1`):
            Completions per request. More of them make the figures steadier; only useful when sampling.
        batch_size (`int`, *optional*, defaults to `256`):
            Completions generated at once.
        max_new_tokens (`int`, *optional*, defaults to `48`):
            Tokens per completion. A worked answer of two facts takes up to 30; a biography up to 110.
        seed (`int`, *optional*, defaults to `0`):
            Of sampling. The global random state is left alone.

    Returns:
        [`WorldEvaluation`]: all samples of the first request, then those of the second, ...
    """
    rows = [row for row in dataset for _ in range(num_samples)]
    completions, lengths = _generate(model, tokenizer, rows, temperature, batch_size, max_new_tokens, seed)
    oracle = WorldVerifier(world)
    sentences = [oracle.read(text, row["question"], row) for text, row in zip(completions, rows, strict=True)]
    return WorldEvaluation(world_metrics(rows, completions, sentences, lengths), completions, sentences)


def _generate(model, tokenizer, rows, temperature, batch_size, max_new_tokens, seed) -> tuple[list[str], list[int]]:
    """Completions, and how many tokens each has before its end."""
    how = SamplingConfig(temperature=float(temperature), max_new_tokens=max_new_tokens)
    asked = [ChatRequest.of(row["prompt"], how, (seed << 32) + number) for number, row in enumerate(rows)]
    found = LocalChat(model, tokenizer, batch_size=batch_size).tokens(asked)
    ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    lengths = [next((place for place, token in enumerate(row) if token in ends), len(row)) for row in found]
    return tokenizer.batch_decode(found, skip_special_tokens=True), lengths


def measure_knowledge(model_dir: str | os.PathLike[str], people: int = 400, questions: int = 600) -> dict[str, Any]:
    """Measures a world's model once on biographies of `people` spread evenly over the ranks of popularity and on two-hop
    `questions`, half of each split, and keeps the figures in its directory.

    Per mode (`"greedy"`; `"sampled"`: temperature 1) the names of [`world_metrics`]: of the biographies, with
    `precision_by_quartile` of the people by popularity, most popular first; of the questions from `accuracy` on; `unparsable`
    of both together. And `parameters`, `loss` (at the end of training), `tokens` (trained on). `DataError`: the curve of the
    training is empty.
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
