"""Which of three settings each arm of `credit` has: the one with the largest reward on seed 0."""

from dataclasses import replace

from _credit import GRPO, biography_tries, tuned
from credit import EXPERIMENT as CREDIT


EXPERIMENT = replace(
    CREDIT, title="Credit for the reward of a biography: settings", arms=tuned(biography_tries()), baseline=f"{GRPO} 0"
)
