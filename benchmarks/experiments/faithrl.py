"""FaithRL: rewards of every step, and completions that go on from faithful prefixes, beside FSPO."""

from _fspo import arm, questions
from harness import Experiment

from hf_factuality.methods.faithrl.formula import FAITHRL
from hf_factuality.trainers import FaithfulPrefixRollout


EXPERIMENT = Experiment(
    title="FaithRL in the closed world: closed-book questions that need two facts",
    arms={
        "GRPO, answer + factuality": arm(credit="none"),
        "FSPO, paper": arm(),
        "FaithRL's step rewards": arm(formula=FAITHRL),
        "FaithRL's step rewards + faithful prefixes": arm(formula=FAITHRL, rollout=FaithfulPrefixRollout),
        "FSPO, paper + faithful prefixes": arm(rollout=FaithfulPrefixRollout),
    },
    baseline="FaithRL's step rewards",
    test_sets=questions,
)
