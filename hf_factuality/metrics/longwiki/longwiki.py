"""LongWiki of HalluLens: precision, recall@32 and F1 of long answers about Wikipedia pages, and false refusals."""

import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{bang2025hallulens,
    title={{HalluLens}: {LLM} Hallucination Benchmark},
    author={Bang, Yejin and Ji, Ziwei and Schelten, Alan and Hartshorn, Anthony and Fowler, Tara and Zhang, Cheng and
        Cancedda, Nicola and Fung, Pascale},
    booktitle={ACL},
    year={2025}
}
"""
_INPUTS = """
    k (`float`, *optional*, defaults to 32): number of supported claims that is enough.
    abstention (`str` or function, *optional*): rule for responses that refuse. The paper asks a judge: pass its verdict
        as `abstained` of a prediction.
    deduplicate (`bool`, *optional*, defaults to `True`): count claims of the same words once per response, as released.

Parts: precision, recall, f1 (the score), false_refusal_rate, median_claims, facts (mean), empty. All but the rate are
over responses that do not refuse; one without claims counts as a refusal.
"""


class Longwiki(module.FactualityMetric):
    """LongWiki of HalluLens (arXiv 2504.17550)."""

    texts = claims.INPUTS + _INPUTS, _CITATION, "https://arxiv.org/abs/2504.17550"
