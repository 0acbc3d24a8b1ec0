"""A model that checks and revises its own answers: what do data, preferences and RL teach it, and does revising help?"""

from _corrections import TOKENS, arms, measured
from harness import Experiment


EXPERIMENT = Experiment(
    title="Self-correction in the closed world",
    arms=arms({"sft": 5e-4, "dpo": 1e-4, "rl": 3e-4}),
    baseline="form",
    steps=60,
    test_sets=lambda run: {"questions": run.world.questions("test", 1000)},
    measure=measured,
    figures=(
        "final", "turn_1", "difference", "corrected", "spoilt", "verdict_accuracy", "no_verdict", "revised",
    ),
    max_new_tokens=TOKENS,
)  # fmt: skip
