"""Where a reward is paid and against what: biographies with simple and compound sentences, one reward, equal samples."""

from _credit import BIOGRAPHIES, biography_arm
from _rlfh import MAX_TOKENS, MODEL, biographies, measured_reward, ppo
from harness import BIOGRAPHY_FIGURES, Experiment


EXPERIMENT = Experiment(
    title="Credit for the reward of a biography",
    arms={
        "PPO, token": ppo("token", 3e-4),
        "PPO, sentence": ppo("sentence", 3e-4),
        "PPO, response": ppo("paragraph", 3e-4),
        "GRPO, summed reward": biography_arm(learning_rate=3e-4),
        "FSPO": biography_arm("flip", learning_rate=3e-4),
        "additive": biography_arm("additive", learning_rate=3e-4),
        "scaled": biography_arm("scaled", learning_rate=3e-4),
        "process": biography_arm("process", learning_rate=3e-4),
        "to_go": biography_arm("to_go", learning_rate=3e-4),
        "to_go_statement": biography_arm("to_go_statement", learning_rate=3e-4),
        "own": biography_arm("own", learning_rate=3e-4, credit_scale=0.5),
        "own_centred": biography_arm("own_centred", learning_rate=3e-4, credit_scale=0.5),
    },
    baseline="GRPO, summed reward",
    steps=60,
    world=BIOGRAPHIES,
    model=MODEL,
    modes={"T=1": 1.0},
    test_sets=biographies,
    measure=measured_reward,
    figures=("reward", "precision", *BIOGRAPHY_FIGURES),
    max_new_tokens=MAX_TOKENS,
)
