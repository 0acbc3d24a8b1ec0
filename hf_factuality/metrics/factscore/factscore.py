"""FActScore: the share of a response's atomic facts that a knowledge source supports."""

import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{min2023factscore,
    title={{FActScore}: Fine-grained Atomic Evaluation of Factual Precision in Long Form Text Generation},
    author={Min, Sewon and Krishna, Kalpesh and Lyu, Xinxi and Lewis, Mike and Yih, Wen-tau and Koh, Pang Wei and Iyyer,
        Mohit and Zettlemoyer, Luke and Hajishirzi, Hannaneh},
    booktitle={EMNLP},
    year={2023}
}
"""
_INPUTS = """
    gamma (`float`, *optional*, defaults to 10): length penalty exp(1 - gamma / n) for responses of n <= gamma facts, as in
        the released code; 0 is the paper's score.
    abstention (`str` or function, *optional*): rule for responses that decline: "generic", "perplexity_ai", "veriscore",
        or a function of the text. By default, as in the released code, only responses without facts count as such.
    deduplicate (`bool`, *optional*, defaults to `False`): count claims of the same words once per response.

Parts: init_score (without penalty), respond_ratio, num_facts_per_response, empty (blank responses).
"""


class Factscore(module.FactualityMetric):
    """FActScore (arXiv 2305.14251)."""

    texts = claims.INPUTS + _INPUTS, _CITATION, "https://arxiv.org/abs/2305.14251"
