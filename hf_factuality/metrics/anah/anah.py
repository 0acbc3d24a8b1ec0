"""ANAH: the share of sentences without hallucination."""

import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{gu2024anahv2,
    title={{ANAH-v2}: Scaling Analytical Hallucination Annotation of Large Language Models},
    author={Gu, Yuzhe and Ji, Ziwei and Zhang, Wenwei and Lyu, Chengqi and Lin, Dahua and Chen, Kai},
    booktitle={NeurIPS},
    year={2024}
}
"""
_INPUTS = """
    abstention (`str` or function, *optional*): rule for responses that decline, which are left out. The released code
        has none.

Claims are the response's sentences here; one without a fact (`nofact`) is no hallucination. Parts: mean_response_score
(mean of the shares per response), released_score (unparsed judgements as no hallucination), correct_facts and
incorrect_facts (supported, and contradictory or unverifiable, sentences per response; 0 where it declines or says nothing),
sentences, empty.
"""


class Anah(module.FactualityMetric):
    """ANAH-v2's score (arXiv 2407.04693)."""

    texts = claims.INPUTS + _INPUTS, _CITATION, "https://arxiv.org/abs/2407.04693"
