"""Configuration of [`MaskDPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import DPOConfig

from hf_factuality.functional.preference import FREE_OF_HALLUCINATION, HALLUCINATED, OUTSIDE_RULES
from hf_factuality.spans import Label
from hf_factuality.trainers._settings import Precision, refuse_settings, require_choice, setting


ALL = "all"
# The losses for which TRL reads `label_smoothing`.
_SMOOTHED = {"robust", "exo_pair", "aot", "aot_unpaired"}
_NAMES = [label.value for label in Label]


@dataclass
class MaskDPOConfig(Precision, DPOConfig):
    r"""
    [`~trl.DPOConfig`] plus which tokens count; the defaults are the objective of Mask-DPO's paper.

    Parameters:
        chosen_labels (`list[str]`, *optional*, defaults to `["supported", "hedged_supported", "no_fact"]`):
            Labels whose spans of the preferred completion count: the paper's sentences without hallucination. `["all"]`
            puts no mask on this side: every token counts, as in DPO.
        rejected_labels (`list[str]`, *optional*, defaults to `["unverifiable", "hedged_contradicted", "contradicted"]`):
            The same for the other completion: the paper's hallucinated sentences.
        tokens_outside (`str`, *optional*, defaults to `"drop"`):
            Tokens outside every span (what the chat template adds, end-of-sequence, white space between sentences):
            `"drop"` leaves them out, as the sums of the paper do; `"after_last"` counts those after the last span, on
            both sides, as the released code does; `"keep"` counts them all.
    """

    chosen_labels: list[str] = field(
        default_factory=lambda: [label.value for label in FREE_OF_HALLUCINATION],
        metadata={
            "help": "Labels whose spans of the preferred completion count; ['all'] puts no mask on this side. Default: "
            "the paper's sentences without hallucination."
        },
    )
    rejected_labels: list[str] = field(
        default_factory=lambda: [label.value for label in HALLUCINATED],
        metadata={"help": "The same for the rejected completion. Default: the paper's hallucinated sentences."},
    )
    tokens_outside: str = setting(
        "drop",
        "Tokens outside every span: 'drop' (the paper), 'after_last' (the released code: those after the last span "
        "count) or 'keep'.",
        OUTSIDE_RULES,
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("chosen_labels", "rejected_labels"):
            setattr(self, name, _checked_labels(name, getattr(self, name)))
        require_choice(self, tokens_outside=OUTSIDE_RULES, truncation_mode=("keep_start", "keep_end"))
        smoothed = _SMOOTHED.intersection(self.loss_type)
        refuse_settings(
            self,
            max_length=self.max_length is not None
            and self.max_length < 2
            and "leaves no token to learn from; use 2 or more, or None",
            padding_free=self.padding_free and "is ignored by DPO of TRL 1.16, which pads in silence; set it to False",
            use_weighting=self.use_weighting
            and "(WPO) weighs a pair by whole completions, of which fragments are kept; set it to False",
            label_smoothing=self.label_smoothing
            and not smoothed
            and f"has no effect with loss_type={self.loss_type!r}; set it to 0, or take one of {sorted(_SMOOTHED)}",
            pad_token=self.pad_token is not None
            and "is deprecated by TRL; set `pad_token` of the tokenizer, and pass that as `processing_class`",
        )


def _checked_labels(name: str, labels: list[str] | str) -> list[str]:
    labels = [labels] if isinstance(labels, str) else labels
    labels = [label.value if isinstance(label, Label) else label for label in labels]
    unknown = [label for label in labels if label not in (*_NAMES, ALL)]
    if unknown:
        raise ValueError(f"{name} holds {unknown[0]!r}, which is no label; choose from {_NAMES}, or ['{ALL}']")
    if not labels:
        raise ValueError(f"{name} is empty, so that every pair would be dropped; choose from {_NAMES}, or ['{ALL}']")
    if ALL in labels and len(labels) > 1:
        raise ValueError(f"{name}={labels!r}: '{ALL}' stands alone, it counts what no label covers as well")
    return labels
