"""The ablations of Mask-DPO's paper that a closed world can show, at one learning rate and the same number of steps."""

from _mask_dpo import DPO, MAX_TOKENS, arm, biographies, other_model, some
from harness import BIOGRAPHY_FIGURES, Experiment


EXPERIMENT = Experiment(
    title="Mask-DPO's ablations in the closed world",
    arms={
        "DPO": arm(**DPO),
        "Mask-DPO": arm(),
        "... mask on the preferred side only": arm(rejected_labels=["all"]),
        "... mask on the other side only": arm(chosen_labels=["all"]),
        "Mask-DPO, a third of the topics": arm(some(people=1 / 3)),
        "Mask-DPO, two thirds of the topics": arm(some(people=2 / 3)),
        "Mask-DPO, 1 pair per topic": arm(some(pairs_per_person=1)),
        "Mask-DPO, 2 pairs per topic": arm(some(pairs_per_person=2)),
        "DPO, off-policy": arm(sampled_by=other_model, **DPO),
        "Mask-DPO, off-policy": arm(sampled_by=other_model),
    },
    baseline="Mask-DPO",
    steps=60,
    conditions={"0.0003": 0.0003},
    test_sets=biographies,
    figures=BIOGRAPHY_FIGURES,
    max_new_tokens=MAX_TOKENS,
    published={
        "base": "49.2", "DPO": "68.4", "Mask-DPO": "77.5", "Mask-DPO, off-policy": "59.4",
        "Mask-DPO, a third of the topics": "65.0", "Mask-DPO, two thirds of the topics": "71.6",
        "Mask-DPO, 1 pair per topic": "69.0 (question)", "Mask-DPO, 2 pairs per topic": "73.0 (questions)",
    },
    published_what="published: ANAH score, Llama3.1-8B-Instruct",
)  # fmt: skip
