"""Configuration of [`FactGRPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import GRPOConfig

from hf_factuality.functional.credit import Credit, CreditFunction, credit_name, find_credit
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.trainers._overlap import CHUNKS, require_chunks
from hf_factuality.trainers._settings import (
    Precision,
    is_positive,
    is_weight,
    refuse_settings,
    require,
    require_choice,
    setting,
)


# What `variant` stands for: the paper, and what the published code does instead (methods differ, so both are named).
VARIANTS = {
    "paper": {"factuality_reward_weight": 1.0, "label_values": "ternary", "outside_factuality": 0},
    "paper_format": {"factuality_reward_weight": 1.0, "label_values": "ternary", "outside_factuality": 0},
    "released": {"factuality_reward_weight": 0.0, "label_values": "binary", "outside_factuality": 1},
}


@dataclass
class FactGRPOConfig(Precision, GRPOConfig):
    r"""
    [`~trl.GRPOConfig`] plus what happens with the labelled spans; all `GRPOConfig` fields keep their meaning.

    The defaults are the objective of FSPO (arXiv 2505.24630): answer reward plus mean sentence factuality (Eq. 10), the
    sign of the advantage adjusted per sentence of the reasoning (Eq. 11).

    Parameters:
        variant (`str`, *optional*, defaults to `"paper"`):
            `"paper"`, or `"released"` for what the published FSPO code does: the factuality term is logged but not
            added to the reward, every sentence is +1 (supported) or -1 (anything else), and tokens outside the
            sentences count as +1. `"paper_format"` is the paper with the format check of the released code: a completion
            without reasoning, with text outside its blocks, or in which not each of `<think> </think> <answer> </answer>`
            stands exactly once in this order, earns the -1 of false reasoning; by the paper's formula one without reasoning
            earns 0, the empty sum. It sets the three fields below that are left at `None`.
        factuality_reward_weight (`float`, *optional*):
            Weight of the mean sentence factuality in the reward; `None` takes the variant's (1 or 0).
        label_values (`str`, *optional*):
            `"ternary"` (supported +1, unverifiable or fact-free 0, contradicted -1) or `"binary"` (supported +1, else
            -1); `None` takes the variant's.
        outside_factuality (`int`, *optional*):
            Factuality of the tokens outside every sentence of a checked completion, 0 or 1; `None` takes the variant's.
            With 1, the tokens of a wrong answer get a positive advantage.
        credit (`str`, *optional*, defaults to `"flip"`):
            How token factuality changes the advantage: `"flip"` (FSPO), `"additive"` (`A + credit_scale * f`),
            `"scaled"` (`A * (1 + credit_scale * sign(A) * f)`) or `"none"` (the reward term alone); or a name that reads
            what each statement earns, of `CREDITS` (docs/credit.md); or `"package.module:name"` of a function or a
            [`~hf_factuality.functional.Credit`] of your own. Where the evidence also supports sentences beside the
            question, `"flip"` pays for these (docs/closed-world.md). A function of your own goes to the trainer.
        credit_scale (`float`, *optional*, defaults to `1.0`):
            Strength of `"additive"`, `"scaled"`, `"own"`; share of `"to_go"` beside the completion's advantage; lambda
            of `"gae"` and `"signed_gae"`. `"flip"` and `"process"` have none.
        verify_scope (`str`, *optional*, defaults to `"think"`):
            What is verified: `"think"`, what all `<think>` blocks together hold ([`~hf_factuality.reading.scope_ranges`]),
            `"answer"`, what stands outside of them, or `"completion"`, everything.
        evidence_column (`str`, *optional*, defaults to `"evidence"`):
            Dataset column with the passages to check against (str, list of str, or empty). Rows without any train as
            plain GRPO, unless the verifier needs none. The policy does not see this column.
        question_column (`str`, *optional*, defaults to `"question"`):
            Dataset column with the question, shown to the verifier if it is there.
        verifier_timeout (`float`, *optional*, defaults to `300.0`):
            Seconds that the verifier may take per chunk of `verifier_batch_size` completions, before the rest of the
            chunk counts as not judged. Keep twice as much below the time-out of the process group.
        verifier_batch_size (`int`, *optional*, defaults to `64`):
            Completions per call of the verifier: what one hanging completion costs at most.
        generation_chunks (`int`, *optional*, defaults to `1`):
            Parts in which completions that are finished are verified while others are generated; for verifiers
            on a server (docs/overlap.md). 1: after all are generated.
    """

    variant: str = setting(
        "paper",
        "Variant of the method: 'paper', 'paper_format' (the paper, and -1 for a completion that breaks the format) or 'released' (what FSPO's "
        "published code does).",
        VARIANTS,
    )
    factuality_reward_weight: float | None = setting(
        None, "Weight of the mean sentence factuality in the reward. None takes the variant's: 1 or 0."
    )
    label_values: str | None = setting(
        None, "'ternary' (+1, 0, -1) or 'binary' (+1 supported, -1 else). None takes the variant's."
    )
    outside_factuality: int | None = setting(
        None, "Factuality of tokens outside every sentence, 0 or 1. None takes the variant's."
    )
    credit: str = setting(
        "flip",
        "How labels change the advantage: 'flip' (FSPO), 'additive', 'scaled' or 'none'; or by rewards (docs/credit.md); "
        "or 'package.module:name' of a function of your own.",
    )
    credit_scale: float = setting(1.0, "Strength of the 'additive', 'scaled' and 'own' credit; share of 'to_go'.")
    verify_scope: str = setting(
        "think", "What is verified: 'think' (all think blocks together), 'answer' (the rest) or 'completion'.", SCOPES
    )
    evidence_column: str = setting("evidence", "Column with the evidence; rows without any train as plain GRPO.")
    question_column: str = setting("question", "Column with the question, for the verifier, if it is there.")
    verifier_timeout: float = setting(300.0, "Seconds per chunk of completions before these count as not judged.")
    verifier_batch_size: int = setting(64, "Completions per call of the verifier.")
    generation_chunks: int = setting(1, CHUNKS)

    def __post_init__(self):
        super().__post_init__()
        require_choice(self, variant=VARIANTS, verify_scope=SCOPES)
        if self.variant == "paper_format" and self.verify_scope != "think":
            raise ValueError(f"variant='paper_format' needs verify_scope='think', not {self.verify_scope!r}")
        for name, value in VARIANTS[self.variant].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        require_choice(self, label_values=("ternary", "binary"), outside_factuality=(0, 1))
        require(self, "factuality_reward_weight", is_weight, "a finite number, at least 0: less would pay falsehoods")
        require(self, "credit_scale", is_positive, "a finite positive number")
        if not isinstance(self.credit, str):  # settings are plain values
            raise ValueError(f"credit={self.credit!r}: give its 'package.module:name', or pass it to the trainer")
        self.use_credit()
        require(self, "verifier_timeout", is_positive, "a finite positive number of seconds")
        require(self, "verifier_batch_size", lambda value: value >= 1, "at least 1")
        require_chunks(self)

    def use_credit(self, credit: str | CreditFunction | Credit | None = None) -> CreditFunction | Credit:
        """What the trainer is to shape advantages with, in place of the field, which gets its name."""
        given = self.credit if credit is None else credit
        found, self.credit = find_credit(given), credit_name(given)
        if isinstance(found, Credit) and self.credit_scale > found.max_scale:
            raise ValueError(
                f"credit_scale={self.credit_scale!r} is above {found.max_scale:g}; lower it for credit={self.credit!r}"
            )
        if not isinstance(found, Credit) or found.by_token:
            self.refuse_token_advantages(f"credit={self.credit!r}")
        return found

    def refuse_token_advantages(self, what: str) -> None:
        """What treats a completion as one takes it apart, or weighs it otherwise, once each token has an advantage."""
        sequence = self.importance_sampling_level == "sequence"
        corrected = sequence and self.use_vllm and self.vllm_importance_sampling_correction
        by_token = corrected and self.vllm_importance_sampling_mode.startswith("token")
        why = f"does not go with {what}, which gives every token an advantage of its own"
        within = f"{why}, within importance_sampling_level='sequence'; set it to"
        refuse_settings(
            self,
            loss_type=self.loss_type == "vespo" and f"{why}; set it to 'dapo', or leave that out",
            off_policy_mask_threshold=self.off_policy_mask_threshold is not None and f"{why}; set it to None",
            use_bias_correction_kl=sequence and self.beta != 0 and self.use_bias_correction_kl and f"{within} False",
            top_entropy_quantile=sequence and self.top_entropy_quantile < 1 and f"{within} 1.0",
            vllm_importance_sampling_mode=by_token and f"{within} 'sequence_mask'",
        )
