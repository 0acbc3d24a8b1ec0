"""How often a model is right, wrong and silent, and TruthRL's truthfulness score of the three."""

import hf_factuality.metrics._module as module


_CITATION = """
@misc{truthrl2025, title={{TruthRL}: Incentivizing Truthful {LLMs} via Reinforcement Learning}, year={2025},
    eprint={2509.25760}, archivePrefix={arXiv}}
"""
_INPUTS = """
Args:
    predictions (`list`): what became of each answer: "correct" (or `True`), "wrong" (or `False`), "refused" (it abstains),
        "answered" (it does not, and whether it is right is not known), or `None` (could not be judged).
    references (`list`, *optional*): per question whether it has an answer, or one that the model knows: `True`, `False` (it
        should abstain) or `None`; or a dictionary with that as `answerable`, and a `domain`.
    weights (`tuple`, *optional*, defaults to `(1, 0, 1)`): w1, w2 and w3 of the truthfulness score.
    score (`str`, *optional*, defaults to `"truthfulness"`): or "f1", of abstention.
    judge (`str`, *optional*): who judged.

The score is w1 accuracy + w2 abstention rate - w3 hallucination rate, in [-1, 1] by default; `None` if some are "answered".
Parts: accuracy, abstention_rate, hallucination_rate (wrong), of all responses; accuracy_answered; f_score (harmonic mean of both
accuracies, arXiv 2411.04368); omniscience_index (100 (correct - wrong) / n, arXiv 2511.13029); false_abstention_rate, of what
has an answer; precision, recall, f1 of abstention (arXiv 2506.09038), `None` if all have one; numbers; domains, of each the same.
"""


class Abstention(module.FactualityMetric):
    """Rates of correct, abstained and hallucinated answers (TruthRL, arXiv 2509.25760)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2509.25760"
