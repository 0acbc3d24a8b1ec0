"""The alignment tax, and what lowers it: averages with the model before, learned ratios, KL, LoRA, stopping early."""

from _tax import FIGURES, MODEL, STEPS, WORLD, ama, bilingual_base, early, kl, measure, policy, test_sets, uniform
from harness import Experiment


EXPERIMENT = Experiment(
    title="The alignment tax in the closed world",
    arms={
        "policy": policy(),
        **{f"average, alpha {alpha}": uniform(alpha) for alpha in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)},
        **{f"AMA, K = {k}, mean 0.3": ama(k, 0.3) for k in (3, 6, 9)},
        "KL": kl(),
        "LoRA": policy(lora=True, faster=3),
        "stopped halfway": early(0.5),
    },
    conditions={name: name for name in STEPS},
    baseline="policy",
    steps=40,
    world=WORLD,
    model=MODEL,
    base=bilingual_base,
    modes={"T=1": 1.0},
    front=("gain", "kept"),
    test_sets=test_sets,
    measure=measure,
    figures=FIGURES,
    max_new_tokens=110,
)
