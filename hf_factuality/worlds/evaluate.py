"""Measures a model on the questions of a world: are the answers right, and is what it says on the way true?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.spans import Label, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.worlds.oracle import WorldVerifier
from hf_factuality.worlds.world import World


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_FORMAT = re.compile(r"<think>(?:(?!</?(?:think|answer)>).)*</think>\s*<answer>([^<]*)</answer>\s*", re.DOTALL)
_TRUE = {Label.SUPPORTED, Label.HEDGED_SUPPORTED}
_FALSE = {Label.CONTRADICTED, Label.HEDGED_CONTRADICTED}


@dataclass(frozen=True)
class WorldEvaluation:
    """Figures, and what they were computed from.

    Args:
        metrics (`dict[str, float | int | None]`):
            - `n`: completions.
            - `accuracy`: share whose answer is the true one.
            - `factuality`: share of supported among the supported and contradicted sentences of all completions;
              `None` if there are none.
            - `no_claim`: share of judged completions without a supported or contradicted sentence.
            - `right_and_factual`: share of judged completions with the right answer, at least one claim, and no
              contradicted one.
            - `format`: share of the form `<think> ... </think><answer> ... </answer>`.
            - `sentences`: sentences per judged completion.
            - `unverifiable`: share of unverifiable sentences among all; `None` if there are none.
            - `unjudged`: completions that the verifier could not judge; left out of the figures about sentences.
        completions (`list[str]`):
            In the order of the dataset.
        verifications (`list[Verification]`):
            One per completion.
    """

    metrics: dict[str, float | int | None]
    completions: list[str]
    verifications: list[Verification]


def extract_answer(completion: str) -> str | None:
    """The answer of a completion that keeps the format, else `None`."""
    match = _FORMAT.fullmatch(completion)
    return match.group(1).strip() if match else None


def score_completions(
    rows: Sequence[Mapping[str, Any]], completions: Sequence[str], verifier: Verifier
) -> WorldEvaluation:
    """Figures for completions that exist already.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            Dataset rows with `question`, `answer` and `evidence`, one per completion.
        completions (`Sequence[str]`):
            Whole completions.
        verifier ([`Verifier`]):
            Usually a [`WorldVerifier`].
    """
    verifications = verifier.verify(
        [
            VerifierInput(completion, row["question"], tuple(row["evidence"]), row)
            for row, completion in zip(rows, completions, strict=True)
        ]
    )
    right = [extract_answer(text) == row["answer"] for row, text in zip(rows, completions, strict=True)]
    labels = [[span.label for span in found.spans] if found.judged else None for found in verifications]
    judged = [(found, correct) for found, correct in zip(labels, right, strict=True) if found is not None]
    true = [sum(label in _TRUE for label in found) for found, _ in judged]
    false = [sum(label in _FALSE for label in found) for found, _ in judged]
    sentences = sum(len(found) for found, _ in judged)
    claims = sum(true) + sum(false)
    metrics = {
        "n": len(completions),
        "accuracy": _share(sum(right), len(completions)),
        "factuality": _share(sum(true), claims),
        "no_claim": _share(sum(t + f == 0 for t, f in zip(true, false, strict=True)), len(judged)),
        "right_and_factual": _share(
            sum(correct and t > 0 and f == 0 for (_, correct), t, f in zip(judged, true, false, strict=True)),
            len(judged),
        ),
        "format": _share(sum(extract_answer(text) is not None for text in completions), len(completions)),
        "sentences": _share(sentences, len(judged)),
        "unverifiable": _share(sum(found.count(Label.UNVERIFIABLE) for found, _ in judged), sentences),
        "unjudged": len(completions) - len(judged),
    }
    return WorldEvaluation(metrics, list(completions), verifications)


def evaluate_world(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    world: World | Verifier,
    dataset: Dataset,
    *,
    temperature: float = 1.0,
    num_samples: int = 1,
    batch_size: int = 256,
    max_new_tokens: int = 48,
    seed: int = 0,
) -> WorldEvaluation:
    """Lets the model answer every question of the dataset and measures the completions.

    Args:
        model (`PreTrainedModel`):
            The model; it is put back into training mode if it was in it.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer, with a chat template.
        world ([`World`] or [`Verifier`]):
            Who judges: the world's own verifier, or another one.
        dataset (`datasets.Dataset`):
            As [`World.questions`] makes it.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of sampling; 0 for greedy decoding.
        num_samples (`int`, *optional*, defaults to `1`):
            Completions per question. More of them make the figures steadier; only useful when sampling.
        batch_size (`int`, *optional*, defaults to `256`):
            Completions generated at once.
        max_new_tokens (`int`, *optional*, defaults to `48`):
            Tokens per completion. The longest worked answer takes 35.
        seed (`int`, *optional*, defaults to `0`):
            Of sampling. The global random state is left alone.

    Returns:
        [`WorldEvaluation`]: all samples of the first question, then those of the second, ...
    """
    rows = [row for row in dataset for _ in range(num_samples)]
    completions = _generate(model, tokenizer, rows, temperature, batch_size, max_new_tokens, seed)
    return score_completions(rows, completions, WorldVerifier(world) if isinstance(world, World) else world)


def _generate(model, tokenizer, rows, temperature, batch_size, max_new_tokens, seed) -> list[str]:
    import torch

    if temperature > 0:
        # Neutral values switch off top-k and top-p, whatever the model's own generation config says.
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    else:
        sampling = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    was_training = model.training
    model.eval()
    completions = []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.inference_mode(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for start in range(0, len(rows), batch_size):
            texts = [
                tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
                for row in rows[start : start + batch_size]
            ]
            batch = tokenizer(
                texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
            ).to(model.device)
            output = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                **sampling,
            )
            completions += tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    model.train(was_training)
    return completions


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
