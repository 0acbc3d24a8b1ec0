"""RLFH's granularities and GRPO, paid by the same reward for the same number of samples."""

from _rlfh import MAX_TOKENS, MODEL, WORLD, biographies, grpo, measured_reward, ppo
from harness import BIOGRAPHY_FIGURES, Experiment


EXPERIMENT = Experiment(
    title="RLFH in the closed world: where a reward is paid",
    arms={
        "token": ppo("token", 3e-4),
        "sentence": ppo("sentence", 3e-4),
        "response": ppo("paragraph", 3e-4),
        "GRPO, summed reward": grpo(3e-4),
    },
    baseline="response",
    steps=60,
    world=WORLD,
    model=MODEL,
    test_sets=biographies,
    measure=measured_reward,
    figures=(
        "reward",
        "decided_precision",
        "empty",
        *(f for f in BIOGRAPHY_FIGURES if f not in ("decided_precision", "empty")),
    ),
    max_new_tokens=MAX_TOKENS,
    published={"base": "0.638", "token": "0.668", "sentence": "0.655", "response": "0.651"},
    published_what="published: FActScore, Qwen2.5-7B",
)
