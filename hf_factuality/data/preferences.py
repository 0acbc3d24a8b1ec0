"""From questions to fine-grained preference pairs: sample, verify, choose; a run that is killed goes on where it was.

Mask-DPO (ICLR 2025) describes these steps; its authors released neither the code nor the data. `builder.py` says what lies in
the folder of a run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.data.builder import (
    DatasetKind,
    PreferenceQuestion,
    describe_run,
    features_of,
    judged_responses,
    verified_responses,
)
from hf_factuality.data.pairs import REASONS, Pair, PairConfig, PairReport, choose_pairs
from hf_factuality.data.sampling import Sampler
from hf_factuality.errors import DataError
from hf_factuality.verifiers.base import Verifier


if TYPE_CHECKING:
    from datasets import Dataset, Features


_SIDES = ("chosen", "rejected")
_COLUMNS = "id prompt chosen rejected chosen_spans rejected_spans chosen_score rejected_score topic"
KIND = DatasetKind("pairs.parquet", "preference pairs", "pair", REASONS, """# Fine-grained preference pairs

{pairs} pairs of responses with a verdict on every sentence, made with hf_factuality {version}: {responses} responses to
{questions} questions, labelled by a verifier; of each question the best against the worst by the share of sentences without
hallucination, as in [Mask-DPO](https://huggingface.co/papers/2503.02846). `chosen_spans` and `rejected_spans` are half-open
character ranges of the content of `chosen` and `rejected`, with a label each.

**The labels are a model's or a program's, not people's.** They are as good as the verifier below.
""", ("preference", "mask-dpo", "factuality"), origin="of sampled responses")  # fmt: skip
push_pairs = KIND.push


def preferences_from(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    *,
    pairs: PairConfig | None = None,
    **run: Any,
) -> Dataset:
    """Sample responses to each question, verify them, and make the pairs of a preference dataset.

    Started again on the same folder with the same settings it continues: nothing is sampled or verified twice, and the
    dataset is the one that an uninterrupted run makes (with a sampler that repeats itself for a seed). Responses that the
    verifier failed on, or of which a server judged no sentence, are tried again once, at the end and in each later run, and
    else left out and counted.

    Args:
        questions (`Sequence[PreferenceQuestion]`):
            See [`read_questions`].
        sampler ([`~hf_factuality.data.sampling.Sampler`]):
            Samples the responses.
        verifier ([`~hf_factuality.verifiers.base.Verifier`]):
            Labels their sentences.
        folder (`str` or `PathLike`):
            Where the run lives.
        pairs ([`~hf_factuality.data.pairs.PairConfig`], *optional*):
            What makes a pair. May differ when a run is continued, since it is applied at the end.
        seed (`int`, *optional*, defaults to `0`):
            Of sampling.
        questions_per_batch (`int`, *optional*, defaults to `1`):
            Questions that are sampled together, and verified together.
        patience (`float`, *optional*, defaults to `3600.0`):
            Seconds to wait, in growing steps, for a verifier or sampler whose server is down, before the run stops.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.
        overlap (`bool`, *optional*):
            Whether the responses to one batch are verified, in a thread, while those to the next are sampled. By default
            if the verifier asks a server; one that runs a model here would compete with the sampler, and could disturb
            its random state.
        workers (`int`, *optional*, defaults to `0`):
            If not 0, batches are sampled and verified in so many processes of Ray each (docs/annotation.md).
        gpus_per_worker (`float`, *optional*, defaults to `0.0`):
            Of Ray, for a model that samples in the workers, or else for one that judges there.

    Returns:
        `datasets.Dataset`: columns of [`pair_features`].

    Raises:
        `DataError`: the folder holds a run with other settings, or files that are none; no pair is left.
        `JudgingError`: a server was down for longer than `patience`; what is done is kept.
        `ValueError`: the sampler draws a single response.
    """
    config, report, rows, counts = pairs or PairConfig(), PairReport(), [], Counter()
    if (number := sampler.describe().get("num_samples", 2)) < 2:
        raise ValueError(f"num_samples={number}: a pair needs at least 2 responses per question")
    with judged_responses(questions, sampler, verifier, folder, KIND.file, **run) as journals:
        for question in questions:
            found = verified_responses(question, *journals, counts)
            chosen = choose_pairs([text for text, _ in found], [verdict for _, verdict in found], config, report)
            rows += [_row(question, pair) for pair in chosen]
        summary = {
            **asdict(report),
            **report.dropped,
            **counts,
            **{f"{side}_score": sum(row[f"{side}_score"] for row in rows) / len(rows) for side in _SIDES if rows},
        }
        return KIND.write(Path(folder), rows, _COLUMNS, summary, config)


def load_pairs(folder: str | os.PathLike) -> Dataset:
    """The dataset that [`preferences_from`] wrote.

    Raises:
        `DataError`: there is none.
    """
    from datasets import Dataset

    path = Path(folder) / KIND.file
    if not path.is_file():
        raise DataError(f"there is no {path}; a run writes it at its end: start it again to finish it")
    dataset = Dataset.from_parquet(str(path))
    dataset.info.description = describe_run(path.parent)  # for the card of a model that is trained on it
    return dataset


def pair_features() -> Features:
    """Columns of the dataset: conversations, their sentences, scores.

    `chosen_spans` and `rejected_spans` hold [`~hf_factuality.spans.LabeledSpan`] as dictionaries: characters of the content
    of `chosen` and `rejected`.
    """
    return features_of(_COLUMNS)


def _row(question: PreferenceQuestion, pair: Pair) -> dict[str, Any]:
    row = question.columns()
    for side in _SIDES:
        response = getattr(pair, side)
        row[side] = [{"role": "assistant", "content": response.text}]
        row[f"{side}_spans"] = [span.to_dict() for span in response.spans]
        row[f"{side}_score"] = response.score
    return row
