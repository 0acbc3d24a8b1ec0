"""Where a reward is paid and against what: worked answers of 4 and 8 facts, paid for the answer and for each fact."""

from _credit import chain_arm, chain_ppo
from _fspo import max_tokens, questions
from fspo_chain import EXPERIMENT as CHAINS
from harness import QUESTION_FIGURES, Experiment


def held_out(run):
    return {"held-out": questions(run)["held-out"]}


EXPERIMENT = Experiment(
    title="Credit for a chain of facts",
    arms={
        "PPO, token": chain_ppo("token", learning_rate=2e-4, critic_learning_rate=3e-4),
        "PPO, response": chain_ppo("response", learning_rate=2e-4, critic_learning_rate=3e-4),
        "GRPO, summed reward": chain_arm("none"),
        "FSPO": chain_arm("flip"),
        "additive": chain_arm("additive", credit_scale=0.5),
        "scaled": chain_arm("scaled"),
        "process": chain_arm("process"),
        "to_go": chain_arm("to_go"),
        "to_go_statement": chain_arm("to_go_statement"),
        "own": chain_arm("own", credit_scale=0.5),
        "own_centred": chain_arm("own_centred", credit_scale=0.5),
    },
    baseline="GRPO, summed reward",
    conditions={str(n): {"hops": n} for n in (4, 8)},
    world=CHAINS.world,
    model=CHAINS.model,
    modes={"T=1": 1.0},
    test_sets=held_out,
    figures=("reward", *(figure for figure in QUESTION_FIGURES if figure != "reward")),
    max_new_tokens=max_tokens,
)
