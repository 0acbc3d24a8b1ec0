"""Which of three settings each arm of `credit_chain` has: the one with the largest reward on chains of 8 facts, seed 0."""

from dataclasses import replace

from _credit import GRPO, chain_tries, tuned
from credit_chain import EXPERIMENT as CREDIT


EXPERIMENT = replace(
    CREDIT, title="Credit for a chain of facts: settings", arms=tuned(chain_tries()), baseline=f"{GRPO} 0",
    conditions={"8": {"hops": 8}},
)  # fmt: skip
