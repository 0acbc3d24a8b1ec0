"""Where a reward is paid and against what: worked answers of 4 and 8 facts, paid for the answer and for each fact."""

from _credit import GRPO, chain_tries, chosen, sampled
from _fspo import max_tokens, questions
from fspo_chain import EXPERIMENT as CHAINS
from harness import QUESTION_FIGURES, Experiment


def held_out(run):
    return {"held-out": questions(run)["held-out"]}


# Which of the three tries of each arm, by `credit_chain_tune`.
CHOSEN = {
    GRPO: 1, "FSPO": 2, "additive": 2, "scaled": 1, "process": 1, "own": 1, "to_go": 2, "gae": 2, "signed_gae": 1,
    "PPO, token": 2,
}  # fmt: skip

EXPERIMENT = Experiment(
    title="Credit for a chain of facts",
    # Two rates were as good as each other for FSPO.
    arms=chosen(chain_tries(), CHOSEN) | {"FSPO, 8e-4": chain_tries()["FSPO"][1]},
    baseline=GRPO,
    steps=10,  # with more, most arms are near the ceiling of 2
    conditions={str(n): {"hops": n} for n in (4, 8)},
    world=CHAINS.world,
    model=CHAINS.model,
    modes={"T=1": 1.0},
    test_sets=sampled(held_out),
    figures=("reward", *(figure for figure in QUESTION_FIGURES if figure != "reward")),
    max_new_tokens=max_tokens,
)
