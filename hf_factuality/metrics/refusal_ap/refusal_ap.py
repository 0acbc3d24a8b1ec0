"""R-Tuning's AP score: whether a model is surer of the answers that are right."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{zhang2024rtuning,
    title={{R-Tuning}: Instructing Large Language Models to Say `{I} Don't Know'},
    author={Zhang, Hanning and Diao, Shizhe and Lin, Yong and Fung, Yi and Lian, Qing and Wang, Xingyao and Chen, Yangyi
        and Ji, Heng and Zhang, Tong},
    booktitle={NAACL},
    year={2024}
}
"""
_INPUTS = """
Args:
    predictions (`list`): per question, a dictionary with `p_pred` (geometric mean of the answer's token probabilities)
        and `p_sure` (P(sure) / (P(sure) + P(unsure)) after "I am"), whose mean ranks the answers; or a number to rank them
        by. `None`: unknown.
    references (`list`): whether each answer is correct: `True`/`False`, 1/0, or `None`.
    judge (`str`, *optional*): where the numbers come from; "published prompts" makes the result comparable if every answer
        has both probabilities.

The score is the average precision; `None` if no answer is correct. Parts: accuracy (of all answers), accuracy_answered
and answer_rate (those with p_sure > 0.5, which the model gives willingly), n_correct, n_answered. With `return_scores` the
scores are what the answers are ranked by.
"""


class RefusalAp(module.FactualityMetric):
    """R-Tuning's AP score (arXiv 2311.09677)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2311.09677"
