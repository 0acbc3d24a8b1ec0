"""Rollouts that search: what is paid, and where, for answers, support by what was retrieved, and citations."""

from _tools import FIGURES, arms, measured, policy, test_sets
from harness import Experiment


# Of two tries each, by `tools_tune` on seed 0.
RATES = {}

EXPERIMENT = Experiment(
    title="Rollouts that search",
    arms=arms(RATES),
    baseline="outcome",
    steps=30,
    base=policy,
    modes={"T=1": 1.0},
    test_sets=test_sets,
    measure=measured,
    figures=FIGURES,
    max_new_tokens=8,
)
