"""Which learning rate the two policies have in `tax`: of three each, the one with the largest gain on seed 0.

The gain is the primary figure of the aligned task: decided precision of biographies, accuracy of two hops. Of rates within
.01 of each other the lower one. Nothing else is tuned: KL, LoRA and stopping early are tried at several strengths, all of
which are reported.
"""

from _tax import MODEL, STEPS, WORLD, bilingual_base, measure, policy, test_sets
from harness import Experiment


EXPERIMENT = Experiment(
    title="The alignment tax: learning rates of the policies",
    arms={f"learning rate {rate:g}": policy(learning_rate=rate) for rate in (2e-4, 5e-4, 1e-3)},
    conditions={name: name for name in STEPS},
    baseline="learning rate 0.0002",
    steps=40,
    world=WORLD,
    model=MODEL,
    base=bilingual_base,
    modes={"greedy": 0.0},
    test_sets=test_sets,
    measure=measure,
    figures=(
        "gain",
        "kept",
        "biographies",
        "correct",
        "wrong",
        "two_hops",
        "single_facts",
        "chinese",
        "chinese_questions",
        "perplexity",
        "perplexity_zh",
    ),  # fmt: skip
    max_new_tokens=110,
)
