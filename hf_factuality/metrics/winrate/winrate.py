"""Win rate: how often a pairwise judge prefers the answers to a baseline's, over both orders."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{zheng2023judging,
    title={Judging {LLM}-as-a-Judge with {MT-Bench} and {Chatbot Arena}},
    author={Zheng, Lianmin and Chiang, Wei-Lin and Sheng, Ying and Zhuang, Siyuan and Wu, Zhanghao and Zhuang, Yonghao
        and Lin, Zi and Li, Zhuohan and Li, Dacheng and Xing, Eric P. and Zhang, Hao and Gonzalez, Joseph E. and
        Stoica, Ion},
    booktitle={NeurIPS Datasets and Benchmarks},
    year={2023}
}
"""
_INPUTS = """
Args:
    predictions (`list`): per question, two verdicts: which answer is better ("A", the one shown first, "B", or "tie"),
        with the candidate's shown first, then with the baseline's shown first; anything else is an unknown verdict. Or
        the candidate's text, for `pair_judge`.
    references (`list`, *optional*): the baseline's texts, for `pair_judge`.
    pair_judge (object, *optional*): a `hf_factuality.metrics.PairJudge`.
    questions (`list[str]`, *optional*): shown to it.
    judge (`str`, *optional*): who made verdicts that came with the predictions.

A pair scores the mean of its two orders (win 1, tie 1/2, loss 0); one with an unknown order is left out. Parts:
consistent_win_rate and consistent_loss_rate (won, lost in both orders), tie_rate (the others), agreement (same outcome in
both orders), first_position_rate (decided verdicts for the answer shown first; 1/2 without position bias). Never
comparable: a win rate depends on the baseline, the judge and its prompt.
"""


class Winrate(module.FactualityMetric):
    """Pairwise win rate with both orders, as in MT-bench (arXiv 2306.05685)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2306.05685"
