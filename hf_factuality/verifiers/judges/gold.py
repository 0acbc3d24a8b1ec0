"""Judge of a whole answer by its gold answers, which are its evidence; and the scorers that compare the two, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from hf_factuality.functional.answers import (
    contained_match,
    contains_answer,
    exact_match,
    halueval_match,
    hotpot_f1,
    squad_match,
)
from hf_factuality.reading.completion import read
from hf_factuality.reading.marks import final_answer
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers._math import gsm8k_match, math_match, require_math
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline


Scorer = Callable[[str, Sequence[str]], "float | None"]
"""Scores one final answer against its gold answers (at least one); `None` where the gold answers are unusable."""

RULES: Mapping[str, Scorer] = MappingProxyType(
    {
        "exact": exact_match,
        "hotpot_f1": hotpot_f1,
        "halueval": halueval_match,
        "contains": contains_answer,
        "contained": contained_match,
        "math": math_match,
        "gsm8k": gsm8k_match,
    }
)
"""Rule -> scorer, for data of one's own."""
SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        **RULES,
        "HotpotQA": hotpot_f1,
        "2WikiMultiHopQA": hotpot_f1,
        "HaluEval": halueval_match,
        "MATH": math_match,
        "GSM8K": gsm8k_match,
        "world": exact_match,
        "SQuAD": squad_match,
    }
)
"""`data_source` -> scorer: those of published data, and each of [`RULES`] by its name. `"world"` is the rule of this library,
[`~hf_factuality.functional.answers.same_answer`], `"contains"` R-Tuning's; `"contained"`
looks for the words of a gold answer, as `evaluate(match="contained")` does."""
SCORERS_HELP = f"how rows of your own data_source are scored: SOURCE=RULE[,SOURCE=RULE], a RULE of {', '.join(RULES)}, or a known source"
"""For the help of commands."""


def named_scorers(given: Mapping[str, str | Scorer] | Sequence[str] | None) -> dict[str, Scorer]:
    """Scorers of data sources that are not among [`SCORERS`], or are scored otherwise.

    Args:
        given (`Mapping[str, str | Scorer]` or `Sequence[str]`, *optional*):
            Source to a name of [`SCORERS`] or a function; or texts as flags have them, each `"SOURCE=RULE"` or several with
            commas.

    Returns:
        `dict[str, Scorer]`: source -> scorer.

    Raises:
        `ValueError`: a text is not of this form, a name is none of [`SCORERS`], or a source has two. `TypeError`: a scorer is
        neither a name nor callable.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else []
    if not isinstance(given, Mapping):
        for part in (part for text in given or () for part in text.split(",")):
            source, equals, rule = (it.strip() for it in part.rpartition("="))
            if not (source and equals and rule):
                raise ValueError(
                    f"a scorer of a data source is SOURCE=RULE, such as my_trivia=hotpot_f1; got {part!r}"
                )
            pairs.append((source, rule))
    found: dict[str, Scorer] = {}
    for source, rule in pairs:
        if isinstance(rule, str) and rule not in SCORERS:
            raise ValueError(f"unknown rule {rule!r} of data source {source!r}; choose one of {sorted(SCORERS)}")
        if not isinstance(rule, str) and not callable(rule):
            raise TypeError(f"the scorer of data source {source!r} must be a name or callable, got {rule!r}")
        if source in found:
            raise ValueError(f"data source {source!r} has two scorers; give one")
        found[source] = SCORERS[rule] if isinstance(rule, str) else rule
    return found


def refuse_unused(scorers: Iterable[str], sources: Iterable[str | None]) -> None:
    """`ValueError` for a source that is given a rule and that no row has: a slip in its name would leave its rows to another
    rule, without a word."""
    found = {source for source in sources if source is not None}
    if unused := {*scorers} - found:
        raise ValueError(f"`scorers`: no row has the data_source {min(unused)!r}; they have {sorted(found) or 'none'}")


@dataclass(frozen=True)
class AnswerExtractor:
    """Extractor of the whole completion as one span, whose claim is the final answer ([`~hf_factuality.reading.final_answer`]).

    One that declines is never right: it is labelled `CONTRADICTED`, and no judge is asked.
    """

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        return [[self._span(item.completion)] if item.completion.strip() else [] for item in inputs]

    @staticmethod
    def _span(text: str) -> LabeledSpan:
        label = Label.CONTRADICTED if read(text).declines else None
        return LabeledSpan(0, len(text), label, 0.0 if label else None, claim=final_answer(text) or "")


@dataclass(frozen=True)
class GoldJudge:
    """Labels an answer `SUPPORTED` if its score against the gold answers is .5 or more, else `CONTRADICTED`.

    Implements [`~hf_factuality.verifiers.base.Judge`]; the evidence is the gold answers, each a passage. No label without
    them, and where they are unusable for the scorer (unknown is not wrong).

    Args:
        scorer (`str`, *optional*, defaults to `"contains"`):
            A name of `SCORERS`.
        scorers (`Mapping[str, str]` or `Sequence[str]`, *optional*):
            For rows with these sources in the column `data_source`, their rules instead; see [`named_scorers`].

    Raises:
        `ValueError`: a scorer is unknown. `ImportError`: it needs `math-verify`, which is not installed.
    """

    scorer: str = "contains"
    evidence_as_given = True  # "[1, 5]" is a gold answer, and no citation
    scorers: Mapping[str, str] | Sequence[str] | None = field(default=None, hash=False)

    def __post_init__(self):
        if self.scorer not in SCORERS:
            raise ValueError(f"unknown scorer {self.scorer!r}; choose one of {sorted(SCORERS)}")
        by_source = named_scorers(self.scorers)
        object.__setattr__(self, "_by_source", by_source)
        if {SCORERS[self.scorer], *by_source.values()} & {math_match, gsm8k_match}:
            require_math()

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`Judgement`] per answer, in order, with the score."""
        found = []
        for item in inputs:
            golds = [gold for gold in item.evidence if gold.strip()]
            scorer = self._by_source.get((item.row or {}).get("data_source"), SCORERS[self.scorer])
            score = None if not golds else scorer(item.claim, golds) if item.claim.strip() else 0.0
            label = None if score is None else Label.SUPPORTED if score >= 0.5 else Label.CONTRADICTED
            found.append(Judgement(label, score))
        return found


class GoldVerifier(VerifierPipeline):
    """The whole completion, judged by [`GoldJudge`], whose arguments are its own."""

    def __init__(self, scorer: str = "contains", scorers: Mapping[str, str] | Sequence[str] | None = None):
        super().__init__(AnswerExtractor(), GoldJudge(scorer, scorers))
