"""HalluQA: the share of answers to adversarial Chinese questions without hallucination."""

import hf_factuality.metrics._module as module


_CITATION = """
@article{cheng2023halluqa,
    title={Evaluating Hallucinations in {Chinese} Large Language Models},
    author={Cheng, Qinyuan and Sun, Tianxiang and Zhang, Wenwei and Wang, Siyin and Liu, Xiangyang and Zhang, Mozhi and
        He, Junliang and Huang, Mianqiu and Yin, Zhangyue and Chen, Kai and Qiu, Xipeng},
    journal={arXiv:2310.03368},
    year={2023}
}
"""
_INPUTS = """
Args:
    predictions (`list`): one per question: the judge's votes on "is it a hallucination?" (a list of 是/否, yes/no or
        `True`/`False`; an unread vote is `None`), one verdict (`True`, `False`), a dictionary with `votes` or
        `hallucinated` and the answer's `text`, or only the text, which the verifier then checks against the reference
        answers. An empty answer is a hallucination, as released.
    references (`list`, *optional*): for the verifier, the correct answers: a string, a list of strings, or a dictionary
        with `evidence` and `question`. Text without votes is a hallucination if one of its claims is not supported; an
        answer without a claim is left out.
    verifier (`str` or object, *optional*, defaults to `"small"`): touched only if an answer comes without votes.
    judge (`str`, *optional*): who voted; the paper's is "gpt-4-0613", with five votes per answer.
    questions (`list[str]`, *optional*), timeout (`float`, *optional*), return_spans (`bool`, *optional*): of the
        verifier.

An answer counts by what more than half of its votes say. Parts: hallucinated and empty (numbers of answers),
rate_released (an answer whose votes could not all be read is no success).
"""


class Halluqa(module.FactualityMetric):
    """HalluQA's non-hallucination rate (arXiv 2310.03368)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2310.03368"
