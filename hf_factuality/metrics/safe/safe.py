"""SAFE's F1@K: precision of a response's relevant facts, and recall against K facts that a user wants."""

import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{wei2024longform,
    title={Long-form factuality in large language models},
    author={Wei, Jerry and Yang, Chengrun and Song, Xinying and Lu, Yifeng and Hu, Nathan and Huang, Jie and Tran, Dustin
        and Peng, Daiyi and Liu, Ruibo and Huang, Da and Du, Cosmo and Le, Quoc V.},
    booktitle={NeurIPS},
    year={2024}
}
"""
_INPUTS = """
    k (`float`, *optional*, defaults to 64): number of supported facts that is enough. The released code's default is 100.
    abstention (`str` or function, *optional*): rule for responses that decline; they support nothing and score 0, as do
        responses without facts.
    deduplicate (`bool`, *optional*, defaults to `True`): count claims of the same words once per response. `False` counts them as
        often as they are stated, as released.

Parts: precision (over responses with relevant facts), recall, facts (per response), no_claims (responses without
relevant facts), abstained (those of them that decline), empty.
"""


class Safe(module.FactualityMetric):
    """F1@K of SAFE (arXiv 2403.18802)."""

    texts = claims.INPUTS + _INPUTS, _CITATION, "https://arxiv.org/abs/2403.18802"
