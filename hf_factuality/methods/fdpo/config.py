"""Configuration of [`FDPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import DPOConfig

from hf_factuality.trainers._settings import Precision, is_weight, refuse_settings, require, require_choice, setting


# TRL's losses that read the pair through beta times the log-ratio, where the margin is subtracted.
_READ_MARGIN = {"sigmoid", "hinge", "exo_pair", "robust", "discopop"}
_WITHOUT_REFERENCE = {"sft"}


@dataclass
class FDPOConfig(Precision, DPOConfig):
    r"""
    [`~trl.DPOConfig`] plus the margin and the flip of F-DPO.

    Parameters:
        factuality_margin (`float`, *optional*, defaults to `10.0`):
            lambda: by how many nats more the log-ratio of the preferred completion must exceed that of the rejected one
            where only the latter is hallucinated. It is multiplied by `beta` with the log-ratio. The released
            configuration tries 0 to 100. `0.0` leaves the label flip alone.
        flip_pairs (`bool`, *optional*, defaults to `True`):
            Exchange the completions of a pair of which only the chosen one is hallucinated. `False` keeps them, and the
            margin of such a pair is then minus lambda, as in the formula.
    """

    factuality_margin: float = setting(
        10.0,
        "lambda: by how many nats more the log-ratio of the preferred completion must exceed that of the rejected one "
        "where only the latter is hallucinated; 0 leaves the label flip alone.",
    )
    flip_pairs: bool = setting(
        True, "Exchange the completions of a pair of which only the chosen one is hallucinated."
    )

    def __post_init__(self):
        super().__post_init__()
        require(self, "factuality_margin", is_weight, "a finite number, 0 or more")
        require_choice(self, truncation_mode=("keep_start", "keep_end"))
        losses, demands = set(self.loss_type), self.factuality_margin > 0
        unfit = losses - _READ_MARGIN - _WITHOUT_REFERENCE or not losses & _READ_MARGIN
        refuse_settings(
            self,
            loss_type=demands
            and unfit
            and f"has no place for the margin; take one of {sorted(_READ_MARGIN)}, or set factuality_margin to 0",
            f_divergence_type=demands
            and self.f_divergence_type != "reverse_kl"
            and "would bend the margin; use 'reverse_kl', or set factuality_margin to 0",
            padding_free=self.padding_free and "is ignored by DPO of TRL 1.16, which pads in silence; set it to False",
            pad_token=self.pad_token is not None
            and "is deprecated by TRL; set `pad_token` of the tokenizer, and pass that as `processing_class`",
        )
