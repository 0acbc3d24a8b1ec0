"""Where the sign rule could matter: one scalar pays for chains of 2 to 8 sentences, each of which may be false."""

from _fspo import arm, max_tokens, questions
from harness import Experiment

from hf_factuality.worlds import WorldConfig, WorldModelConfig


EXPERIMENT = Experiment(
    title="FSPO over the length of the chain",
    arms={"GRPO, answer + factuality": arm(credit="none"), "FSPO, paper": arm()},
    baseline="GRPO, answer + factuality",
    conditions={str(n): {"hops": n} for n in (2, 4, 8)},
    test_sets=questions,
    max_new_tokens=max_tokens,
    # Every sentence of a worked answer may be hearsay, and half of the hearsay is false.
    world=WorldConfig(max_hops=8, hop_sloppy=0.3, num_people=300, num_attributes=0, popularity_exponent=1.0),
    model=WorldModelConfig(questions=0.7, short_answers=0.0, steps=2000),
)
