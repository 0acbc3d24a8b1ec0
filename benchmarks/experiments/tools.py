"""Rollouts that search: what is paid, and where, for answers, support by what was retrieved, and citations."""

from _tools import FIGURES, arms, measured, policy, test_sets
from harness import Experiment


# Of 0.001 and 0.003, by `tools_tune` on seed 0 with the arm "outcome"; the others take the same.
RATE = 1e-3

EXPERIMENT = Experiment(
    title="Rollouts that search",
    arms=arms(RATE),
    baseline="outcome",
    steps=45,
    base=policy,
    modes={"T=1": 1.0},
    test_sets=test_sets,
    measure=measured,
    figures=FIGURES,
    max_new_tokens=8,
)
