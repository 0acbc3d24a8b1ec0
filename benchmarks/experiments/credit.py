"""Where a reward is paid and against what: biographies with simple and compound sentences, one reward, equal samples."""

from _credit import BIOGRAPHIES, GRPO, biography_tries, chosen, sampled
from _rlfh import MAX_TOKENS, MODEL, biographies, measured_reward
from harness import BIOGRAPHY_FIGURES, Experiment


# Which of the three tries of each arm, by `credit_tune`.
CHOSEN = {
    GRPO: 1, "FSPO": 1, "additive": 1, "scaled": 1, "process": 1, "own": 1, "to_go": 1, "gae": 1, "signed_gae": 1,
    "PPO, token": 0,
}  # fmt: skip

EXPERIMENT = Experiment(
    title="Credit for the reward of a biography",
    arms=chosen(biography_tries(), CHOSEN),
    baseline=GRPO,
    steps=30,
    world=BIOGRAPHIES,
    model=MODEL,
    modes={"T=1": 1.0},
    test_sets=sampled(biographies),
    measure=measured_reward,
    figures=("reward", "precision", *BIOGRAPHY_FIGURES),
    max_new_tokens=MAX_TOKENS,
)
