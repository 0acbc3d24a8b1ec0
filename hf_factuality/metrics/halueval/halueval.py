"""HaluEval: how often a model tells a hallucinated answer from a right one."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{li2023halueval,
    title={{HaluEval}: A Large-Scale Hallucination Evaluation Benchmark for Large Language Models},
    author={Li, Junyi and Cheng, Xiaoxue and Zhao, Wayne Xin and Nie, Jian-Yun and Wen, Ji-Rong},
    booktitle={EMNLP},
    year={2023}
}
"""
_INPUTS = """
Args:
    predictions (`list`): without a verifier, the model's answers to "does it contain hallucination?": text that
        says yes or no ("Yes, there is no doubt"; not "I cannot say yes"), `True` or `False`, or `None`; or a dictionary with its answers about both candidates
        (`right`, `hallucinated`), of which the seed chooses one. With a verifier, which is then what is evaluated: the
        candidate that it checks, or a row of the dataset (`right_answer` and `hallucinated_answer`, `knowledge`,
        `question`; dialogue and summarization rows too), of which the seed chooses one.
    references (`list`, *optional*): whether the candidate that was shown is hallucinated: `True`/`False`, "Yes"/"No",
        or a dictionary with `hallucinated` and, for a verifier, `knowledge` and `question`. Without references the
        candidates were chosen by `hf_factuality.functional.metrics.seeded_choices(n, seed)`, and `seed` must be given.
    seed (`int`, *optional*, defaults to 0): of the choice between the candidates, and of the interval.
    verifier (`str` or object, *optional*): as `hf_factuality.load_verifier` takes it. A candidate is hallucinated if one
        of its claims is not supported. By default, none is used.
    judge (`str`, *optional*): where the answers come from; "published prompts" makes the result comparable if every answer
        was read and accuracy_released is the same number.
    timeout (`float`, *optional*), return_spans (`bool`, *optional*): of the verifier.

Parts: accuracy_hallucinated, accuracy_right, accuracy_both_candidates (where there are answers about both),
accuracy_released (answers read as released: "Yes" or "No" anywhere; what cannot be read is wrong), shown_hallucinated.
"""


class Halueval(module.FactualityMetric):
    """HaluEval accuracy (arXiv 2305.11747)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2305.11747"
