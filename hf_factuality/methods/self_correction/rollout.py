"""Completions of two turns for RL: the policy answers, is asked to revise, and answers again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hf_factuality.methods.self_correction.formula import REVISE
from hf_factuality.reading.marks import self_verdict
from hf_factuality.trainers.base import PolicyRollout


_HERE = "a turn of the assistant"
TURNS = "turns"
"""Column in which reward functions get the texts of the turns."""


def found_wrong(text: str) -> bool:
    """Whether a first turn ends in the verdict `[VERIFY] wrong`."""
    return self_verdict(text) is False


class CorrectionRollout(PolicyRollout):
    """A `rollout_func` of [`FactGRPOTrainer`] and `trl.GRPOTrainer`: answers that are revised where they are found wrong.

    A completion is the first turn, the words for the user as the chat template writes them, and the second turn. The policy
    did not write the words in between: they carry no loss (`env_mask` 0). Reward functions get the texts of the turns in the
    column `turns` (`list[list[str]]`), see [`~hf_factuality.rewards.CorrectionReward`]. Each turn has at most
    `max_completion_length` tokens, and a completion both.

    Args:
        request (`str`, *optional*, defaults to [`REVISE`](hf_factuality.methods.self_correction.formula.REVISE)):
            What the user says after the first turn.
        revised (`Callable[[str], bool]`, *optional*):
            Whether a first turn is revised, by its text; by default, where it ends in the verdict `[VERIFY] wrong`. For
            `lambda text: True` all are, as in intrinsic self-correction.

    Raises:
        `ValueError`: `request` is blank; in training, prompts that are not conversations, or a chat template that does not
            write a turn of the assistant as it is.
    """

    columns, revises = (TURNS,), True

    def __init__(self, request: str = REVISE, revised: Callable[[str], bool] = found_wrong):
        if not request.strip():
            raise ValueError(f"request must be a text that is not blank, got {request!r}")
        self.request, self.revised = request, revised

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        if isinstance(prompts[0], str):
            raise ValueError(f"two turns need prompts of messages, got the text {prompts[0]!r:.80}")
        tokenizer = trainer._tokenizer
        number = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
        first, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, number)
        texts = tokenizer.batch_decode(first, skip_special_tokens=True)
        rows = [place for place, text in enumerate(texts) if self.revised(text)]
        found = {
            "prompt_ids": prompt_ids, "completion_ids": list(first), "logprobs": logprobs and list(logprobs),
            "env_mask": [[1] * len(ids) for ids in first], TURNS: [[text] for text in texts],
        }  # fmt: skip
        # All processes generate as many rows: FSDP, ZeRO-3 and vLLM's server wait for each other.
        most = int(trainer.accelerator.gather(torch.tensor([len(rows)], device=trainer.accelerator.device)).max())
        if not most:
            return found
        words = self._words(tokenizer, trainer)
        between = [words[1:] if first[row][-1:] == words[:1] else words for row in rows]
        asked = [[*prompt_ids[row], *first[row], *ids] for row, ids in zip(rows, between, strict=True)]
        asked += [prompt_ids[0]] * (most - len(rows))
        second, second_logprobs = trainer._generate_single_turn(asked, None, {}, 1)
        for place, (row, ids) in enumerate(zip(rows, between, strict=True)):
            found["completion_ids"][row] = [*first[row], *ids, *second[place]]
            found["env_mask"][row] = [1] * len(first[row]) + [0] * len(ids) + [1] * len(second[place])
            found[TURNS][row].append(tokenizer.decode(second[place], skip_special_tokens=True))
            if logprobs:
                found["logprobs"][row] = [*logprobs[row], *[0.0] * len(ids), *second_logprobs[place]]
        return found

    def _words(self, tokenizer: Any, trainer: Any) -> list[int]:
        """Ids of what the template writes from the end of a turn to the beginning of the next one."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _HERE}]
        messages.append({"role": "user", "content": self.request})
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, chat_template=trainer.chat_template,
            **(trainer.chat_template_kwargs or {}),
        )  # fmt: skip
        _, found, after = text.partition(_HERE)
        if not found or self.request not in after:
            raise ValueError("the chat template leaves out a turn before the last; two turns cannot be put together")
        return tokenizer(after, add_special_tokens=False)["input_ids"]
