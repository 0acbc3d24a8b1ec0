"""ANAH: the share of sentences without hallucination."""

import hf_factuality.functional.scoring as scoring
import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._common as common


_CITATION = """
@inproceedings{gu2024anahv2,
    title={{ANAH-v2}: Scaling Analytical Hallucination Annotation of Large Language Models},
    author={Gu, Yuzhe and Ji, Ziwei and Zhang, Wenwei and Lyu, Chengqi and Lin, Dahua and Chen, Kai},
    booktitle={NeurIPS},
    year={2024}
}
"""
_INPUTS = (
    claims.INPUTS
    + """
    abstention (`str` or function, *optional*): rule for responses that decline, which are left out. The released code
        has none.

Claims are the response's sentences here; one without a fact (`nofact`) is no hallucination. Parts: mean_response_score
(mean of the shares per response), released_score (unparsed judgements as no hallucination), correct_facts and
incorrect_facts (supported, and contradictory or unverifiable, sentences per response; 0 where it declines or says nothing),
sentences, empty.
"""
)
_PUBLISHED = ("human", "opencompass/anah-v2")


def _share(counts):
    return sum(count.correct for count in counts) / sum(count.judged for count in counts)


class Anah(common.FactualityMetric):
    """ANAH-v2's score (arXiv 2407.04693)."""

    def _info(self):
        return common.metric_info(__doc__, _INPUTS, _CITATION, "https://arxiv.org/abs/2407.04693")

    def _compute(self, predictions, references, abstention=None, **options):
        answers = claims.Answers(
            common.decoded(predictions),
            common.decoded(references),
            table="anah",
            abstention=abstention,
            options=options,
        )
        labels = answers.labels()
        found = scoring.anah([found or [] for found in labels])
        judged = [count for count in found["counts"] if count.judged]
        abstained = labels.count(None)
        return answers.result(
            "anah",
            found["score"],
            found["response_scores"],
            parts={
                "mean_response_score": found["mean_response_score"],
                "released_score": found["released_score"],
                "correct_facts": found["correct_facts"],
                "incorrect_facts": found["incorrect_facts"],
                "sentences": sum(count.judged for count in judged),
                "empty": answers.empty(),
            },
            left_out={
                "abstained": abstained,
                "no_sentences": found["no_sentences"] - abstained,
                "unjudged": found["unjudged"],
            },
            settings={"abstention": abstention},
            published=_PUBLISHED,
            released=None if abstained else found["released_score"],
            resampled=judged,
            statistic=_share,
        )
