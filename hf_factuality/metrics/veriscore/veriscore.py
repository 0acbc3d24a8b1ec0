"""VeriScore: F1 of supported verifiable claims, with as many wanted as the median response of the domain makes."""

import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{song2024veriscore,
    title={{VeriScore}: Evaluating the factuality of verifiable claims in long-form text generation},
    author={Song, Yixiao and Kim, Yekyung and Iyyer, Mohit},
    booktitle={Findings of EMNLP},
    year={2024}
}
"""
_INPUTS = """
    domains (`list[str]`, *optional*): domain of each prediction, instead of `domain` in the predictions.
    k (`float` or `dict[str, float]`, *optional*): K of all domains, or of each. By default, the median number of claims
        of these predictions; published scores take it over all models that were compared, so pass K to compare.
    abstention (`str` or function, *optional*, defaults to "veriscore"): rule for responses that decline, which are left
        out.
    deduplicate (`bool`, *optional*, defaults to `True`): count claims of the same words once per response.

Parts: precision, recall, facts (claims per response), k and domain_scores by domain, no_claims (responses that
make no claim and score 0), empty.
"""


class Veriscore(module.FactualityMetric):
    """VeriScore (arXiv 2406.19276)."""

    texts = claims.INPUTS + _INPUTS, _CITATION, "https://arxiv.org/abs/2406.19276"
