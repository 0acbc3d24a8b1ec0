"""Balanced accuracy of a judge: whether claims are supported by their evidence, as LLM-AggreFact and SummaC measure it."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{tang2024minicheck, title={{MiniCheck}: Efficient Fact-Checking of {LLM}s on Grounding Documents},
    author={Tang, Liyan and Laban, Philippe and Durrett, Greg}, booktitle={EMNLP}, year={2024}}
"""
_INPUTS = """
Args:
    predictions (`list`): per claim whether the judge calls it supported (`True` or `False`); or the claim as text, which the
        verifier judges; or its labelled parts, a `Verification`, or `None`, as the other metrics over claims take them. A claim
        is called supported if all its parts are.
    references (`list`): whether it is supported: `True`/`False`, 1/0, "supported"/"not_supported", or `None` (unknown, left
        out); or a dictionary with `supported`, and if wanted `domain` (the dataset), `group` (claims that share a document) and,
        for a verifier, `evidence` and `question`.
    verifier (`str` or object, *optional*, defaults to `"small"`): who judges claims that come as text.
    extractor, judge, questions, label_table, timeout, return_spans: as of `factscore`.

The score is the mean over the domains of the balanced accuracy: the mean of the shares of supported and of other claims that are
called so. Its interval draws groups of claims. Parts: accuracy, kappa, false_called_supported (share of the claims without
support that are called supported), supported, domains.
"""


class BalancedAccuracy(module.FactualityMetric):
    """Balanced accuracy of verdicts (arXiv 2404.10774)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2404.10774"
