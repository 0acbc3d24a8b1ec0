"""SAFE's F1@K: precision of a response's relevant facts, and recall against K facts that a user wants."""

import hf_factuality.functional.scoring as scoring
import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._common as common


_CITATION = """
@inproceedings{wei2024longform,
    title={Long-form factuality in large language models},
    author={Wei, Jerry and Yang, Chengrun and Song, Xinying and Lu, Yifeng and Hu, Nathan and Huang, Jie and Tran, Dustin
        and Peng, Daiyi and Liu, Ruibo and Huang, Da and Du, Cosmo and Le, Quoc V.},
    booktitle={NeurIPS},
    year={2024}
}
"""
_INPUTS = (
    claims.INPUTS
    + """
    k (`float`, *optional*, defaults to 64): number of supported facts that is enough. The released code's default is 100.
    abstention (`str` or function, *optional*): rule for responses that decline; they support nothing and score 0, as do
        responses without facts.
    deduplicate (`bool`, *optional*, defaults to `False`): count equal claims of a response once.

Parts: precision (over responses with relevant facts), recall, facts (per response), no_claims (responses without
relevant facts), abstained (those of them that decline), empty.
"""
)
_PUBLISHED = ("human", "gpt-3.5-turbo-0125")
_PUBLISHED_K = (64, 178)  # median and maximum number of facts of the paper's responses


class Safe(common.FactualityMetric):
    """F1@K of SAFE (arXiv 2403.18802)."""

    def _info(self):
        return common.metric_info(__doc__, _INPUTS, _CITATION, "https://arxiv.org/abs/2403.18802")

    def _compute(self, predictions, references, k=64, abstention=None, deduplicate=False, **options):
        answers = claims.Answers(
            common.decoded(predictions),
            common.decoded(references),
            table="safe",
            abstention=abstention,
            deduplicate=deduplicate,
            options=options,
        )
        labels = answers.labels()
        found = scoring.mean_f1_at_k([found or [] for found in labels], [k] * len(labels))
        # The released code has no rule for responses that decline, and counts what they claim.
        ignored = any(answer.abstained and answer.spans for answer in answers.items)
        parts = {name: found[name] for name in ("precision", "recall", "facts", "no_claims")}
        return answers.result(
            "safe",
            found["score"],
            found["f1s"],
            parts={**parts, "abstained": labels.count(None), "empty": answers.empty()},
            left_out={"unjudged": found["unjudged"]},
            settings={"k": k, "abstention": abstention, "deduplicate": deduplicate},
            published=_PUBLISHED,
            released=found["score"] if k in _PUBLISHED_K and not deduplicate and not ignored else None,
        )
