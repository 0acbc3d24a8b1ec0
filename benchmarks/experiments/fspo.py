"""FSPO against its parts, on closed-book questions of two facts."""

from _fspo import arm, questions
from harness import Experiment


EXPERIMENT = Experiment(
    title="FSPO in the closed world: closed-book questions that need two facts",
    arms={
        "GRPO, answer": arm(credit="none", factuality_reward_weight=0.0),
        "GRPO, answer + factuality": arm(credit="none"),
        "GRPO, answer + factuality, judge errs 10 %": arm(credit="none", errors=0.1),
        "GRPO, answer + factuality, judge errs 20 %": arm(credit="none", errors=0.2),
        "FSPO, released code": arm(variant="released"),
        "FSPO, released code, judge errs 10 %": arm(variant="released", errors=0.1),
        "FSPO, released code, judge errs 20 %": arm(variant="released", errors=0.2),
        "FSPO, released code, drifting labels": arm(variant="released", drift=True),
        "FSPO, paper": arm(),
        "FSPO, paper, judge errs 10 %": arm(errors=0.1),
        "FSPO, paper, judge errs 20 %": arm(errors=0.2),
        "FSPO, paper, drifting labels": arm(drift=True),
        "FSPO, paper, any true fact supported": arm(relevant_only=False),
    },
    baseline="GRPO, answer + factuality",
    test_sets=questions,
    published={"base": "73.2", "FSPO, paper": "89.5"},
    published_what="published: GSM8K, Qwen2.5-7B",
)
