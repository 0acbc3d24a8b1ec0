"""Rewards of long answers, each with its own answer to saying little: what do they win, and by what?"""

from dataclasses import replace

from _long_form import MAX_TOKENS, arms, measured
from _rlfh import MODEL, WORLD, biographies
from harness import Experiment


EXPERIMENT = Experiment(
    title="Rewards of long answers in the closed world",
    arms=arms(5e-4),
    baseline="precision",
    steps=12,
    world=replace(WORLD, compound=0.3),
    model=MODEL,
    test_sets=biographies,
    measure=measured,
    front=("correct", "precision"),
    figures=(
        "precision", "correct", "decided_precision", "wrong", "recall", "relevance", "tokens", "repetition", "off_subject",
        "no_claim", "empty", "fact_free", "unparsable",
    ),
    max_new_tokens=MAX_TOKENS,
)  # fmt: skip
