"""R-Tuning's data by sureness: gold answers to the questions of which a model that learnt the form is surest, refusals elsewhere."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.data.builder import describe_run, questions_digest, seeded_random
from hf_factuality.data.questions import PreferenceQuestion, read_questions, with_golds
from hf_factuality.errors import DataError
from hf_factuality.generation.sureness import answers_with_probability
from hf_factuality.io.files import write_atomically, writing
from hf_factuality.methods.abstention.data import KIND, RefusalConfig


if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)
VARIANT, REPORT = "surest", "report.json"
Train = Callable[["Dataset"], tuple[Any, Any]]


def refusals_by_sureness(
    rows: Sequence[Mapping[str, Any]],
    train: Train,
    out: str | os.PathLike,
    *,
    answered_share: float = 0.6,
    folds: int = 2,
    refusals: Sequence[str] = (),
    language: str = "en",
    max_new_tokens: int = 24,
    batch_size: int = 32,
    seed: int = 0,
) -> Dataset:
    """Ask each part of the questions of a model that learnt gold answers to the others, and decline where it is least sure.

    What a model says before any training is right or wrong for its form, too. After SFT on gold answers the probability of its
    own answer tells right from wrong ones far better, but of a question that it was trained on it knows the answer by heart.
    So the questions are divided, as in cross-fitting (docs/real-model.md).

    Args:
        rows (`Sequence[Mapping]`):
            Questions as for `build-refusals`: `question` or `prompt`, and `answer`, the gold answer or a list of them.
        train (`Callable`):
            Trains the model as it was before on a dataset with the columns `prompt` and `completion`; returns it and its
            tokenizer. Called once per fold.
        out (`str` or `PathLike`):
            Folder for the dataset, which `hf-factuality train rtuning --refusals` reads, and its `report.json`.
        answered_share (`float`, *optional*, defaults to `0.6`):
            Of the questions, the surest ones, to which the gold answer is learnt.
        folds (`int`, *optional*, defaults to `2`):
            Parts of the questions. More of them cost more trainings, on more questions each.
        refusals, language (*optional*):
            What the others are answered with, drawn by the seed: texts, by default those of the language in
            `hf_factuality.methods.abstention.data.REFUSALS`.
        max_new_tokens, batch_size (`int`, *optional*, defaults to `24` and `32`):
            Longest answer, in tokens, and how many questions are asked at once.
        seed (`int`, *optional*, defaults to `0`):
            Divides the questions and draws refusals.

    Returns:
        `datasets.Dataset`: columns `id`, `prompt`, `completion` (conversations), `question`, `answer` (a list), `topic`, `said`
        (the answer of the model that was asked), `sureness` (geometric mean of the probabilities of its tokens), `sure`. A
        question that cannot be asked, such as one that is too long for the model, is left out and counted.

    Raises:
        `ValueError`: a number out of range. `DataError`: a row that is no question or has no gold answer; fewer different
        questions than folds; none that could be asked.
    """
    from datasets import Dataset

    if not 0 < answered_share < 1:
        raise ValueError(f"answered_share is between 0 and 1, got {answered_share!r}")
    config = RefusalConfig("unknown", language=language, refusals=tuple(refusals))
    questions = with_golds(read_questions(rows))
    asked = _asked_in_folds(questions, train, folds, max_new_tokens, batch_size, seed)
    number, digest = len(questions), questions_digest(questions)
    questions = [question for question in questions if asked[question.id]["p_pred"] is not None]
    if lost := number - len(questions):
        logger.warning("%d questions are left out: too long for the model, or refused by its chat template", lost)
    if not questions:
        raise DataError(
            f"none of the {number} questions could be asked; shorten them, or take a model of longer texts"
        )
    order = sorted(questions, key=lambda question: -asked[question.id]["p_pred"])
    surest = {question.id for question in order[: max(1, round(answered_share * len(questions)))]}
    found = []
    for question in questions:
        columns, sure = question.columns(), question.id in surest
        text = config.completion(columns["answer"][0], sure, seeded_random(seed, question.id))
        said = asked[question.id]
        found.append(
            {name: columns[name] for name in ("id", "prompt", "question", "answer", "topic")}
            | {"completion": [{"role": "assistant", "content": text}]}
            | {"said": said["answer"], "sureness": said["p_pred"], "sure": sure}
        )
    report = {
        "questions": len(questions),
        "questions_digest": digest,
        "not_asked": lost,
        "answered": len(surest),
        "folds": folds,
        "rows_are": (
            f"gold answers to {len(surest)} of {len(questions)} questions, those of which models that learnt from the others are "
            "surest, and refusals"
        ),
        "refusal_settings": {"variant": VARIANT, "answered_share": answered_share, "seed": seed},
    }
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT).unlink(missing_ok=True)  # never that of other rows
    dataset = Dataset.from_list(found)
    with writing(out / KIND.file) as unfinished:
        dataset.to_parquet(str(unfinished))
    write_atomically(out / REPORT, json.dumps(report, indent=2) + "\n")
    dataset.info.description = describe_run(out)
    return dataset


def sureness_settings(folder: str | os.PathLike) -> dict[str, Any] | None:
    """The settings by which [`refusals_by_sureness`] made the dataset of a folder, with `questions_digest`, which tells other
    questions; `None` if it did not."""
    try:
        report = json.loads((Path(folder) / REPORT).read_text(encoding="utf-8"))
        found = report["refusal_settings"]
        return found | {"questions_digest": report["questions_digest"]} if found["variant"] == VARIANT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _asked_in_folds(
    questions: Sequence[PreferenceQuestion], train: Train, folds: int, max_new_tokens: int, batch_size: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Answer and its probability by the id of the question, of the model that was not trained on it."""
    from accelerate.utils.memory import clear_device_cache
    from datasets import Dataset

    same: dict[str, list[str]] = {}  # questions that are asked in the same words stay together
    for question in questions:
        same.setdefault(json.dumps(list(map(dict, question.messages)), sort_keys=True), []).append(question.id)
    groups = list(same.values())
    if not 2 <= folds <= len(groups):
        raise DataError(
            f"{folds} folds need at least 2 and at most as many as different questions, of which there are {len(groups)}"
        )
    places = list(range(len(groups)))
    random.Random(f"{seed} folds").shuffle(places)
    found: dict[str, dict[str, Any]] = {}
    for number in range(folds):
        held = {name for place in places[number::folds] for name in groups[place]}
        taught = [question for question in questions if question.id not in held]
        gold = Dataset.from_dict(
            {
                "prompt": [list(map(dict, question.messages)) for question in taught],
                "completion": [[{"role": "assistant", "content": question.evidence[0]}] for question in taught],
            }
        )
        model, tokenizer = train(gold)
        own = [question for question in questions if question.id in held]
        prompts = [list(map(dict, question.messages)) for question in own]
        said = answers_with_probability(
            model, tokenizer, prompts, max_new_tokens=max_new_tokens, stop=(), batch_size=batch_size
        )
        found |= {question.id: one for question, one in zip(own, said, strict=True)}
        # Before the next one is loaded; a trainer, which refers to itself, may still hold it.
        del model, tokenizer
        clear_device_cache(garbage_collection=True)
    return found
