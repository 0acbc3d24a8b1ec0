"""Completions that go on from the faithful part of another one: FaithRL's resampling from truncated prefixes."""

from __future__ import annotations

from typing import Any

from hf_factuality.methods.faithrl.formula import faithful_prefix
from hf_factuality.trainers.base import PolicyRollout


class FaithfulPrefixRollout(PolicyRollout):
    """A `rollout_func` of [`FactGRPOTrainer`]: of each pair of completions the second goes on from the faithful part of the first.

    After FaithRL (arXiv 2602.05897). Half of a group's completions are sampled as usual and judged. Where one has an unfaithful step
    (a sentence of a negative label), another completion begins with its text up to there, and the policy writes the rest. So the
    group holds two ways to go on from one prefix, of which one is known to be unfaithful. The prefix carries no loss in the second
    completion (`env_mask` 0); in the first it is paid as always. Where nothing is unfaithful, or the first step is, the
    second completion is sampled from the prompt.

    The paper puts prefixes into a later batch as prompts of their own, and its released code does not train on them. That they stay
    in the group that they come from, so that a batch keeps its size, is ours.

    The first completions are judged twice, once alone and once with the batch. A continuation has at most
    `max_completion_length` tokens after its prefix. In evaluation nothing is resampled.

    Raises:
        `ValueError`: no verifier, or an odd number of completions per prompt or of rows per process.
    """

    card_method = "faithful_prefixes"

    def check(self, args: Any, labelled: bool) -> None:
        if not labelled:
            raise ValueError("FaithfulPrefixRollout goes on where a verifier finds a false sentence; pass a verifier")
        if args.num_generations % 2:
            raise ValueError(
                f"num_generations={args.num_generations}: FaithfulPrefixRollout pairs completions; set it to an even number"
            )
        if (rows := args.per_device_train_batch_size * args.steps_per_generation) % 2:
            raise ValueError(
                f"{rows} completions per process (per_device_train_batch_size * steps_per_generation): FaithfulPrefixRollout pairs "
                "them; set it to an even number"
            )

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
        if not trainer.model.training:
            ids, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, trainer.num_generations_eval)
            return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}
        firsts = range(0, len(prompts), 2)
        first, first_logprobs = trainer._generate_single_turn(prompt_ids[::2], None, {}, 1)
        kept = [
            _kept(ids, tokens.offsets, faithful_prefix(units, trainer.label_values))
            for ids, (tokens, units) in zip(first, trainer.judged_so_far(first, firsts), strict=True)
        ]
        asked = [[*ids, *prefix] for ids, prefix in zip(prompt_ids[1::2], kept, strict=True)]
        second, second_logprobs = trainer._generate_single_turn(asked, None, {}, 1)
        # The log-probabilities of a prefix are not read: it carries no loss.
        whole = [[*prefix, *ids] for prefix, ids in zip(kept, second, strict=True)]
        masks = [[0] * len(prefix) + [1] * len(ids) for prefix, ids in zip(kept, second, strict=True)]
        trainer._log_sums({"faithrl/continued": (sum(map(bool, kept)), len(kept))})
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": _in_turn(first, whole),
            "logprobs": first_logprobs
            and _in_turn(
                first_logprobs, [[0.0] * len(p) + list(q) for p, q in zip(kept, second_logprobs, strict=True)]
            ),
            "env_mask": _in_turn([[1] * len(ids) for ids in first], masks),
        }


def _kept(ids: list[int], offsets: list[tuple[int, int]], end: int | None) -> list[int]:
    """The tokens before character `end`; none for `None`."""
    if end is None:
        return []
    return ids[: next((place for place, (_, stop) in enumerate(offsets) if stop > end), len(ids))]


def _in_turn(first: list[Any], second: list[Any]) -> list[Any]:
    return [one for pair in zip(first, second, strict=True) for one in pair]
