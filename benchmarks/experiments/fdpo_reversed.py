"""F-DPO, Mask-DPO and DPO where three of ten pairs are the wrong way round: what the label flip is for."""

from _fdpo import fdpo, reversed_share
from _mask_dpo import DPO, MAX_TOKENS, arm, biographies
from harness import BIOGRAPHY_FIGURES, Experiment


WRONG = reversed_share(0.3)
EXPERIMENT = Experiment(
    title="F-DPO in the closed world, three of ten pairs the wrong way round",
    arms={
        "DPO": arm(WRONG, **DPO),
        "Mask-DPO": arm(WRONG),
        "F-DPO": fdpo(WRONG, factuality_margin=10.0),
    },
    baseline="DPO",
    steps=60,
    conditions={"0.0003": 0.0003},
    test_sets=biographies,
    figures=BIOGRAPHY_FIGURES,
    max_new_tokens=MAX_TOKENS,
)
