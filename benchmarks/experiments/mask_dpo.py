"""Mask-DPO against DPO on the same pairs of biographies, over the learning rate."""

from _mask_dpo import DPO, MAX_TOKENS, arm, biographies
from harness import BIOGRAPHY_FIGURES, Experiment
from trade_off import TradeOff


EXPERIMENT = Experiment(
    title="Mask-DPO in the closed world: biographies of people who are in no pair",
    arms={"DPO": arm(**DPO), "Mask-DPO": arm()},
    baseline="DPO",
    steps=60,
    conditions={name: float(name) for name in ("0.0001", "0.0002", "0.0003", "0.0005")},
    base_once=True,
    trade_off=TradeOff("wrong", "correct"),
    test_sets=biographies,
    figures=BIOGRAPHY_FIGURES,
    max_new_tokens=MAX_TOKENS,
    published={"base": "49.2", "DPO": "68.4", "Mask-DPO": "77.5"},
    published_what="published: ANAH score, Llama3.1-8B-Instruct",
)
