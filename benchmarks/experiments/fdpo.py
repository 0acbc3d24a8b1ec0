"""F-DPO against Mask-DPO and DPO on the same pairs of biographies, at two learning rates."""

from _fdpo import fdpo
from _mask_dpo import DPO, MAX_TOKENS, arm, biographies
from harness import BIOGRAPHY_FIGURES, Experiment
from trade_off import TradeOff


EXPERIMENT = Experiment(
    title="F-DPO in the closed world: biographies of people who are in no pair",
    arms={"DPO": arm(**DPO), "Mask-DPO": arm(), "F-DPO": fdpo(factuality_margin=10.0)},
    baseline="Mask-DPO",
    steps=60,
    conditions={name: float(name) for name in ("0.0002", "0.0003")},
    base_once=True,
    trade_off=TradeOff("wrong", "correct"),
    test_sets=biographies,
    figures=BIOGRAPHY_FIGURES,
    max_new_tokens=MAX_TOKENS,
)
