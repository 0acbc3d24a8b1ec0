"""Data or reward that lets a model decline or say how sure it is: what does it learn, and is it what was asked for?"""

from _abstention import ASKED, MAX_TOKENS, MODEL, WORLD, arms, measured, test_sets
from harness import Experiment


EXPERIMENT = Experiment(
    title="Declining and stated confidence in the closed world",
    arms=arms(3e-4, {"SFT on gold": 1e-4, "R-Tuning, unknown": 1e-4}),
    baseline="binary",
    steps=150,
    world=WORLD,
    model=MODEL,
    test_sets=test_sets,
    measure=measured,
    asked=ASKED,
    figures=(
        "hallucination", "accuracy", "abstention", "false abstention", "accuracy answered", "AP", "ECE", "AUROC", "stated",
        "threshold",
    ),
    max_new_tokens=MAX_TOKENS,
)  # fmt: skip
