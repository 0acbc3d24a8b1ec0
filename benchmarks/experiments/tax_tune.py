"""Which learning rate the two policies have in `tax`: of five each, the one with the largest gain on seed 0.

The gain is the primary figure of the aligned task: true less false facts of a biography, FSPO's reward of two-hop questions. Of
rates within .01 of each other the lower one. Nothing else is tuned: KL, LoRA and stopping early have one strength each.
"""

from _tax import FIGURES, MODEL, STEPS, WORLD, bilingual_base, measure, policy, test_sets
from harness import Experiment


EXPERIMENT = Experiment(
    title="The alignment tax: learning rates of the policies",
    arms={f"learning rate {rate:g}": policy(learning_rate=rate) for rate in (2e-5, 5e-5, 2e-4, 5e-4, 1e-3)},
    conditions={name: name for name in STEPS},
    baseline="learning rate 2e-05",
    steps=40,
    world=WORLD,
    model=MODEL,
    base=bilingual_base,
    modes={"T=1": 1.0},
    test_sets=test_sets,
    measure=measure,
    figures=FIGURES,
    max_new_tokens=110,
)
