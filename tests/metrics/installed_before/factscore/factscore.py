"""FActScore: the share of a response's atomic facts that a knowledge source supports."""

import hf_factuality.functional.scoring as scoring
import hf_factuality.metrics._claims as claims
import hf_factuality.metrics._common as common


_CITATION = """
@inproceedings{min2023factscore,
    title={{FActScore}: Fine-grained Atomic Evaluation of Factual Precision in Long Form Text Generation},
    author={Min, Sewon and Krishna, Kalpesh and Lyu, Xinxi and Lewis, Mike and Yih, Wen-tau and Koh, Pang Wei and Iyyer,
        Mohit and Zettlemoyer, Luke and Hajishirzi, Hannaneh},
    booktitle={EMNLP},
    year={2023}
}
"""
_INPUTS = (
    claims.INPUTS
    + """
    gamma (`float`, *optional*, defaults to 10): length penalty exp(1 - gamma / n) for responses of n <= gamma facts, as in
        the released code; 0 is the paper's score.
    abstention (`str` or function, *optional*): rule for responses that decline: "generic", "perplexity_ai", "veriscore",
        or a function of the text. By default, as in the released code, only responses without facts count as such.
    deduplicate (`bool`, *optional*, defaults to `False`): count equal claims of a response once.

Parts: init_score (without penalty), respond_ratio, num_facts_per_response, empty (blank responses).
"""
)
_PUBLISHED = (
    "human",
    "retrieval+ChatGPT",
    "retrieval+ChatGPT+npm",
    "retrieval+llama",
    "retrieval+llama+npm",
    "npm",
)
_PUBLISHED_RULES = (None, "generic", "perplexity_ai")


class Factscore(common.FactualityMetric):
    """FActScore (arXiv 2305.14251)."""

    def _info(self):
        return common.metric_info(__doc__, _INPUTS, _CITATION, "https://arxiv.org/abs/2305.14251")

    def _compute(self, predictions, references, gamma=10.0, abstention=None, deduplicate=False, **options):
        answers = claims.Answers(
            common.decoded(predictions),
            common.decoded(references),
            table="factscore",
            abstention=abstention,
            deduplicate=deduplicate,
            options=options,
        )
        found = scoring.factscore(answers.labels(), gamma)
        parts = {name: found[name] for name in ("init_score", "respond_ratio", "num_facts_per_response")}
        return answers.result(
            "factscore",
            found["score"],
            found["scores"],
            parts={**parts, "empty": answers.empty()},
            left_out={name: found[name] for name in ("abstained", "no_facts", "unjudged")},
            settings={"gamma": gamma, "abstention": abstention, "deduplicate": deduplicate},
            published=_PUBLISHED,
            # The paper's figures have no length penalty.
            released=found["init_score"] if abstention in _PUBLISHED_RULES and not deduplicate else None,
        )
