"""Questions with a short answer, or with none: SimpleQA, AA-Omniscience and AbstentionBench.

No file of them was at hand, but code that reads them, and of AbstentionBench what makes its rows (facebookresearch, e291841).
"""

from __future__ import annotations

import re

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.data.benchmarks.prompts import ask
from hf_factuality.data.benchmarks.rows import BenchmarkRow, Unusable


# By style of prompt, the line behind the question; in our own words.
_INSTRUCTIONS = {
    "abstain": "If you do not know the answer, say so instead of guessing.",
    "confidence": "Answer first. Then state, as a number between 0 and 1, how likely your answer is to be correct, in this "
    "form: <confidence>number</confidence>",
}
STYLES = ("chat", *_INSTRUCTIONS, "fspo")
_TOPIC = re.compile(r"""['"]topic['"]:\s*['"]([^'"]+)""")
# Scenario -> beginnings of the names of its datasets, with the category of those that are divided by it; as released.
_SCENARIOS = {
    "answer unknown": "bigbenchknownunknowns kuqfutureunknown kuqunsolvedproblem coconotunknowns coconotunsupported",
    "false premise": "falseqa qaqa kuqfalseassumption coconotfalsepresumptions",
    "stale": "freshqa coconottemporal",
    "subjective": "moralchoice kuqcontroversial coconotsubjective coconothumanizing",
    "underspecified context": "alcuna bbq bigbenchdisambiguate gpqa gsm8k mediq mmlu musique qasper squad2 umwp worldsense",
    "underspecified intent": "situatedqa kuqambiguous coconotincomprehensible",
}
_CATEGORY = re.compile(r'"(?:KUQ|CoCoNot_AbstentionBench)_category":\s*"([^"]*)"')


def build_short_answer(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """A question with its answer; the domain is a column, or what SimpleQA's `metadata` calls the topic."""
    question, answer = row.text("question"), row.text("answer").strip()
    topic = _TOPIC.search(row.optional_text("metadata") or "")
    domain = row.optional_text("domain") or (topic and topic[1])
    return BenchmarkItem(
        row.id, ask(style, question, instruction=_INSTRUCTIONS.get(style)), question, answer=answer, domain=domain
    )


def build_abstention(row: BenchmarkRow, style: str) -> BenchmarkItem:
    """A question that is to be answered, or is not; the domain is the scenario."""
    question, should = row.text("question"), row.values.get("should_abstain")
    if not isinstance(should, bool):
        raise Unusable("should_abstain is neither true nor false")
    answers = row.texts("reference_answers", "\n") if row.values.get("reference_answers") else []
    domain = row.optional_text("scenario") or scenario(row.group, row.optional_text("metadata_json"))
    given = {"answer": answers or None, "domain": domain, "reference": {"answerable": not should}}
    return BenchmarkItem(row.id, ask(style, question, instruction=_INSTRUCTIONS.get(style)), question, **given)


def scenario(dataset: str | None, metadata: str | None = None) -> str | None:
    """AbstentionBench's scenario of a dataset, `"falseqa"` or `"FalseQADataset"`, or of a row's category in its `metadata`.

    A dataset of another name keeps it. `Unusable` for what the published figures leave out.
    """
    category = _CATEGORY.search(metadata or "")
    name = f"{dataset}".lower().removesuffix("dataset") + (category[1].lower() if category else "")
    name = re.sub(r"[\W_]", "", name)
    found = next((it for it, names in _SCENARIOS.items() if name.startswith(tuple(names.split()))), None)
    if found is None and name.startswith(("kuq", "coconot", "selfaware", "nq")):
        raise Unusable("left out of the published figures")
    return found or dataset
