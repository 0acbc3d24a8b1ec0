"""F1 of found hallucinations: which responses have any, and which characters are, as RAGTruth measures it."""

import hf_factuality.metrics._module as module


_CITATION = """
@inproceedings{niu2024ragtruth, title={{RAGTruth}: A Hallucination Corpus for Developing Trustworthy Retrieval-Augmented
    Language Models}, author={Niu, Cheng and others}, booktitle={ACL}, year={2024}}
"""
_INPUTS = """
Args:
    predictions (`list`): per response the spans that are called hallucinated, as `[start, end]` in characters (an empty list:
        none); or the response as text, which the verifier judges; or a `Verification`, whose spans that are neither supported
        nor without a fact are hallucinated; or `None`.
    references (`list`): the spans that are hallucinated, as `[start, end]` or dictionaries with `start` and `end`; or `None`
        (unknown, left out); or a dictionary with `spans`, and if wanted `domain`, `group` (responses to one source) and, for a
        verifier, `evidence` and `question`.
    verifier (`str` or object, *optional*, defaults to `"small"`): who judges responses that come as text.
    extractor, judge, questions, label_table, timeout, return_spans: as of `factscore`.

The score is the F1 of the responses with a hallucination, a response being called so if any span of it is. Parts: precision,
recall; span_f1 over the characters of all responses together, with its interval, span_precision and span_recall;
balanced_accuracy, hallucinated, domains. Intervals draw groups of responses. There is no F1 where nothing is hallucinated.
"""


class HallucinationF1(module.FactualityMetric):
    """F1 of hallucination detection (arXiv 2401.00396)."""

    texts = _INPUTS, _CITATION, "https://arxiv.org/abs/2401.00396"
