"""Sequence-level importance sampling for advantages that differ from token to token."""

from __future__ import annotations

from typing import Any

from hf_factuality.functional.sequence_ratio import gspo_token_reference


class SequenceRatios:
    """GSPO-token where `importance_sampling_level="sequence"` meets advantages of shape (B, T).

    The parent's ratio of a completion is one number, whose gradient is the mean over the tokens: each token would learn
    from the mean advantage. Here the parent computes at its level "token", against log-probabilities that make every
    token's ratio that of its completion. Advantages of shape (B,) are left to the parent.
    """

    _ratio_inputs: dict[str, Any] | None = None

    def _compute_loss(self, model, inputs):
        if self.importance_sampling_level != "sequence" or inputs["advantages"].dim() == 1:
            return super()._compute_loss(model, inputs)
        self._ratio_inputs = inputs = dict(inputs)
        self.importance_sampling_level = "token"
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.importance_sampling_level, self._ratio_inputs = "sequence", None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._ratio_inputs
        # The parent reads the old ones after this pass; where there are none it takes the new ones, and all ratios are 1.
        if inputs is not None and inputs.get("old_per_token_logps") is not None:
            inputs["old_per_token_logps"] = gspo_token_reference(
                output[0], inputs["old_per_token_logps"], inputs["completion_mask"]
            )
        return output
