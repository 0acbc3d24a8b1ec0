"""TruthfulQA multiple choice: MC1 and MC2 from the log-likelihoods of the choices."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{lin2022truthfulqa,
    title={{TruthfulQA}: Measuring How Models Mimic Human Falsehoods},
    author={Lin, Stephanie and Hilton, Jacob and Evans, Owain},
    booktitle={ACL},
    year={2022}
}
"""
_INPUTS = """
Args:
    predictions (`list`): per question, the log-likelihood of each choice, summed over its tokens: a list, or a
        dictionary with the lists `mc1` and `mc2`, whose choices differ. `None`, also for a single number: unknown.
    references (`list`): per question, which choices are correct (1 or 0), in the same order and form; the dataset's
        `mc1_targets` and `mc2_targets` may stand as they are.
    judge (`str`, *optional*): where the numbers come from; "published prompts" makes the result comparable.

The score is MC2. Parts: mc1, mc2, n_mc1, mc1_confidence_interval. MC1 needs exactly one correct choice, MC2 a correct and
a wrong one; left_out counts the questions where they are not defined.
"""


class Truthfulqa(module.FactualityMetric):
    """TruthfulQA MC1 and MC2 (arXiv 2109.07958)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2109.07958"
