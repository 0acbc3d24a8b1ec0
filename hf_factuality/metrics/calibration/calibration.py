"""Whether the confidence that answers state is how often they are right: ECE, Brier score, AUROC, risk and coverage."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{guo2017calibration, title={On Calibration of Modern Neural Networks}, booktitle={ICML}, year={2017},
    author={Guo, Chuan and Pleiss, Geoff and Sun, Yu and Weinberger, Kilian Q.}}
"""
_INPUTS = """
Args:
    predictions (`list`): per answer the probability in [0, 1] that it is right, as stated or predicted; `None` without.
    references (`list`): whether it is right: "correct" (or `True`), "wrong" (or `False`); "refused" (it abstains),
        "answered" and `None` (unknown) are left out.
    bins (`int`, *optional*, defaults to 10): of the expected calibration error.
    judge (`str`, *optional*): who judged.

The score is the expected calibration error (ECE) over bins of equal width; lower is better; no interval, since it is biased
upwards in resamples. Parts: ece_mass (bins of equally many answers, those of one confidence together), brier with its interval,
auroc (ties count half), aurc (mean risk over all coverages, arXiv 1805.08206; ties in any order), accuracy, mean_confidence;
reliability and reliability_mass (per bin count, mean confidence, accuracy), risk_coverage (100 points). Scores: the confidences.
"""


class Calibration(module.FactualityMetric):
    """Calibration of stated confidence (arXiv 1706.04599)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/1706.04599"
