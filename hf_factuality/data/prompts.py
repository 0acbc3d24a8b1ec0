"""FSPO's prompts (arXiv 2505.24630), which benchmarks ask too, and whether prompts fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_factuality.data.reading import refuse_unrendered
from hf_factuality.errors import DataError


if TYPE_CHECKING:
    from datasets import Dataset


PREFILL = "Let me solve this step by step.\n<think>"
"""Beginning of the assistant's turn, part of the prompt."""

# Task -> what comes before and after the sentence on reasoning.
_THINK = "Before you answer, reason about it, and write all of your reasoning between <think> and </think>."
_INSTRUCTIONS = {
    "answer": (
        "The user asks a question.",
        "Then write the final answer, and nothing but the final answer, between <answer> and </answer>, for example: "
        "<answer> {sample} </answer>.",
    ),
    "judge": (
        "The user shows a question and a candidate answer to it. Decide whether the candidate answer is hallucinated, "
        "which means that it is incorrect.",
        "Then write Yes if it is hallucinated, or No if it is correct and factual, and nothing else, between <answer> "
        "and </answer>, for example: <answer> Yes </answer>.",
    ),
    "choose": (
        "The user shows a question and two candidate answers to it, one of which is hallucinated.",
        "Then copy the candidate answer that is correct, without its label and with nothing else, between <answer> and "
        "</answer>, for example: <answer> {sample} </answer>.",
    ),
}
_SAMPLE_NUMBER, _SAMPLE_NAME = "42", "Lake Victoria"
_NUMERIC_SOURCES = ("MATH", "GSM8K", "math", "gsm8k")


def instructions(question: str, data_source: str) -> str:
    """What a question of this kind and source is to be answered like."""
    task = "choose" if "#Candidate Answer 1#" in question else "answer"
    task = "judge" if "#Candidate Answer#" in question else task
    before, after = _INSTRUCTIONS[task]
    sample = _SAMPLE_NUMBER if data_source in _NUMERIC_SOURCES else _SAMPLE_NAME
    return f"{before} {_THINK} {after}".replace("{sample}", sample)


def check_prompt_lengths(
    dataset: Dataset, tokenizer: Any, max_length: float, chat_template_kwargs: Mapping[str, Any] | None = None
) -> int:
    """Check that every prompt fits, tokenized as TRL does it.

    Prompts are the column `prompt`, texts or messages, and may have `max_length` tokens: the context of the model less the
    completion. `chat_template_kwargs` are passed to `apply_chat_template`. Returns the tokens of the longest prompt; raises
    `DataError`, which names the row, for one that is too long, that has no token, or that the chat template refuses.
    """
    lengths: list[int] = []
    settings = {"add_generation_prompt": True, **(chat_template_kwargs or {})}
    for start in range(0, len(dataset), 1000):
        prompts = dataset[start : start + 1000]["prompt"]
        if isinstance(prompts[0], str):
            encoded = tokenizer(text=prompts)
        else:
            try:
                encoded = tokenizer.apply_chat_template(prompts, tokenize=True, return_dict=True, **settings)
            except Exception:  # whatever a template raises
                refuse_unrendered([[(prompt, settings)] for prompt in dataset["prompt"]], tokenizer)
                raise
        lengths.extend(len(ids) for ids in encoded["input_ids"])
    if 0 in lengths:
        raise DataError(f"row {lengths.index(0)}: the prompt has no token; drop such rows")
    longest = max(lengths, default=0)
    if longest > max_length:
        too_long = sum(length > max_length for length in lengths)
        raise DataError(
            f"row {lengths.index(longest)}: the prompt has {longest} tokens, but only {max_length} fit beside the "
            f"completion ({too_long} of {len(lengths)} prompts are too long); shorten the completion, drop these rows, or "
            "take a model with a longer context"
        )
    return longest
