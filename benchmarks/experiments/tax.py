"""The alignment tax, and what lowers it: averages with the model before, learned ratios, KL, LoRA, stopping early."""

from _tax import BETAS, MODEL, STEPS, WORLD, ama, bilingual_base, early, kl, measure, policy, test_sets, uniform
from harness import Experiment


EXPERIMENT = Experiment(
    title="The alignment tax in the closed world",
    arms={
        "policy": policy(),
        **{f"average, alpha {alpha}": uniform(alpha) for alpha in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)},
        **{f"AMA, K = {k}, mean {alpha}": ama(k, alpha) for alpha in (0.2, 0.5) for k in (3, 6, 9)},
        **{f"KL, {name}": kl(name) for name in BETAS},
        "LoRA": policy(lora=True),
        "LoRA, 3 x the rate": policy(lora=True, faster=3),
        **{f"stopped at {share}": early(share) for share in (0.25, 0.5)},
    },
    conditions={name: name for name in STEPS},
    baseline="policy",
    steps=40,
    world=WORLD,
    model=MODEL,
    base=bilingual_base,
    modes={"greedy": 0.0},
    front=("gain", "kept"),
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
