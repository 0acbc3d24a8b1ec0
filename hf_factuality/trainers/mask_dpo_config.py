"""Configuration of [`MaskDPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import DPOConfig

from hf_factuality.functional.preference import FREE_OF_HALLUCINATION, HALLUCINATED, OUTSIDE_RULES
from hf_factuality.spans import Label


ALL = "all"
# The losses for which TRL reads `label_smoothing`.
_SMOOTHED = {"robust", "exo_pair", "aot", "aot_unpaired"}
_NAMES = [label.value for label in Label]


@dataclass
class MaskDPOConfig(DPOConfig):
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
        metadata={
            "help": "Labels whose spans of the rejected completion count; ['all'] puts no mask on this side. Default: "
            "the paper's hallucinated sentences."
        },
    )
    tokens_outside: str = field(
        default="drop",
        metadata={
            "help": "Tokens outside every span: 'drop' (the paper), 'after_last' (the released code: those after the "
            "last span count) or 'keep'.",
            "choices": list(OUTSIDE_RULES),
        },
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("chosen_labels", "rejected_labels"):
            setattr(self, name, _checked_labels(name, getattr(self, name)))
        if self.tokens_outside not in OUTSIDE_RULES:
            raise ValueError(f"tokens_outside={self.tokens_outside!r} is unknown; choose one of {list(OUTSIDE_RULES)}")
        if self.max_length is not None and self.max_length < 2:
            raise ValueError(f"max_length={self.max_length!r} leaves no token to learn from; use 2 or more, or None")
        if self.truncation_mode not in ("keep_start", "keep_end"):
            raise ValueError(f"truncation_mode={self.truncation_mode!r} is unknown; choose 'keep_start' or 'keep_end'")
        if self.padding_free:
            raise ValueError(
                "padding_free=True is not supported: TRL 1.16 has no padding-free DPO and would pad in silence; set it "
                "to False"
            )
        if self.use_weighting:
            raise ValueError(
                "use_weighting=True is not supported: WPO weighs a pair by the policy's probability of the whole "
                "completions, and over the kept tokens TRL would compute that of their fragments; set it to False"
            )
        if self.label_smoothing and not _SMOOTHED.intersection(self.loss_type):
            raise ValueError(
                f"label_smoothing={self.label_smoothing!r} has no effect: TRL reads it for {sorted(_SMOOTHED)} only, not for "
                f"loss_type={self.loss_type!r}; set it to 0, or loss_type='robust'"
            )
        if self.pad_token is not None:
            raise ValueError(
                f"pad_token={self.pad_token!r} is not supported (TRL deprecates it); set `pad_token` of the tokenizer and "
                "pass that as `processing_class`"
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
