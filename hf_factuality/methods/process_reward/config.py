"""Configuration of [`ProcessRewardTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from hf_factuality.methods.process_reward.judge import StepExtractor
from hf_factuality.methods.truthfulness.config import TruthfulnessConfig
from hf_factuality.trainers._settings import require, require_choice, setting


@dataclass
class ProcessRewardConfig(TruthfulnessConfig):
    r"""
    [`TruthfulnessConfig`] for a head that reads steps. `template` ends in `{{claim|plain}}`, where the solution stands; `ratio`
    stays `None`, since solutions are read whole; `max_length` is of question and solution.

    Parameters:
        head (`str`, *optional*, defaults to `"new"`):
            `"new"`: a head drawn by the seed. `"label_tokens"`: the two rows of the language model's output layer that belong
            to `label_tokens`, so that the softmax over both is the model's own from the start (ER-PRM).
        label_tokens (`list[str]`, *optional*, defaults to `[" +", " -"]`):
            The good one, then the bad one; each a single token.
        step_tag (`str`, *optional*):
            Text that is put behind each step, and by whose last token the step is judged (ER-PRM: `" ки"`). `None`: the step
            is judged by its own last token.
        step_split (`str`, *optional*, defaults to `"lines"`):
            What the verifier that is saved takes for steps: `"lines"`, `"sentences"`, or what stands between the characters
            given. Training reads the column `steps`.
    """

    ratio: float | None = setting(
        None, "Supported claims per other one in training; None, since solutions are read whole."
    )
    head: str = setting("new", "'new', or 'label_tokens': the rows of two label tokens of the language model.")
    label_tokens: list[str] | None = setting(None, "The good label token and the bad one; None: ' +' and ' -'.")
    step_tag: str | None = setting(None, "Text behind each step by which it is judged; None: its last token.")
    step_split: str = setting("lines", "What ends a step: lines, sentences, or a text.")

    def __post_init__(self):
        super().__post_init__()
        require(self, "ratio", lambda value: value is None, "None: a solution is read whole")
        require_choice(self, head=("new", "label_tokens"))
        self.label_tokens = list(self.label_tokens or (" +", " -"))
        require(self, "label_tokens", lambda value: len({*value}) == len(value) == 2, "two different texts")
        require(self, "step_tag", lambda value: value is None or value.strip(), "a text that is not blank, or None")
        end = "{{claim|plain}}"
        require(self, "template", lambda value: (value or end).endswith(end), f"a text that ends in {end}")
        StepExtractor(self.step_split)
