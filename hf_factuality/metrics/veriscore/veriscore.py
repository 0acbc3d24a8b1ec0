"""VeriScore: F1 of supported verifiable claims, with as many wanted as the median response of the domain makes."""

import hf_factuality.functional.scoring as scoring
import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._common as common


_CITATION = """
@inproceedings{song2024veriscore,
    title={{VeriScore}: Evaluating the factuality of verifiable claims in long-form text generation},
    author={Song, Yixiao and Kim, Yekyung and Iyyer, Mohit},
    booktitle={Findings of EMNLP},
    year={2024}
}
"""
_INPUTS = (
    claims.INPUTS
    + """
    domains (`list[str]`, *optional*): domain of each prediction, instead of `domain` in the predictions.
    k (`float` or `dict[str, float]`, *optional*): K of all domains, or of each. By default, the median number of claims
        of these predictions; published scores take it over all models that were compared, so pass K to compare.
    abstention (`str` or function, *optional*, defaults to "veriscore"): rule for responses that decline, which are left
        out.
    deduplicate (`bool`, *optional*, defaults to `True`): count equal claims of a response once.

Parts: precision, recall, facts (claims per response), k and domain_scores by domain, no_claims (responses that
make no claim and score 0), empty.
"""
)
_PUBLISHED = ("human", "gpt-4-0125-preview", "gpt-4o", "SYX/llama3_based_claim_verifier")


class Veriscore(common.FactualityMetric):
    """VeriScore (arXiv 2406.19276)."""

    def _info(self):
        return common.metric_info(__doc__, _INPUTS, _CITATION, "https://arxiv.org/abs/2406.19276")

    def _compute(
        self, predictions, references, k=None, domains=None, abstention="veriscore", deduplicate=True, **options
    ):
        answers = claims.Answers(
            common.decoded(predictions),
            common.decoded(references),
            table="veriscore",
            abstention=abstention,
            deduplicate=deduplicate,
            options=options,
        )
        found = scoring.veriscore(answers.labels(), answers.domains(domains), k)
        as_published = k is not None and abstention == "veriscore" and deduplicate
        parts = {name: found[name] for name in ("precision", "recall", "facts", "k", "domain_scores", "no_claims")}
        return answers.result(
            "veriscore",
            found["score"],
            found["f1s"],
            parts={**parts, "empty": answers.empty()},
            left_out={name: found[name] for name in ("abstained", "unjudged", "no_k")},
            settings={"k": k, "abstention": abstention, "deduplicate": deduplicate},
            published=_PUBLISHED,
            released=found["score"] if as_published and not found["no_claims"] else None,  # the release divides by 0
        )
