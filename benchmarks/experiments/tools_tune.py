"""Learning rates of the experiment `tools`, on seed 0."""

from _tools import FIGURES, arms, measured, policy, test_sets
from harness import Experiment


EXPERIMENT = Experiment(
    title="Learning rates of rollouts with a search",
    arms=arms(),
    baseline="outcome",
    steps=30,
    conditions={"0.001": 1e-3, "0.003": 3e-3},
    base=policy,
    base_once=True,
    modes={"T=1": 1.0},
    test_sets=test_sets,
    measure=measured,
    figures=FIGURES,
    max_new_tokens=8,
)
