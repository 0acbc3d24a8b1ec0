"""Chains of 8 facts with less to learn from: two samples per prompt, or answer rewards of which a fifth is wrong."""

from dataclasses import replace

from fspo_chain import EXPERIMENT


EXPERIMENT = replace(
    EXPERIMENT,
    title="FSPO on chains of 8 facts, with few samples or wrong answer rewards",
    conditions={
        "2 samples per prompt": {"hops": 8, "samples": 2},
        "a fifth of the answer rewards wrong": {"hops": 8, "wrong_answers": 0.2},
    },
)
