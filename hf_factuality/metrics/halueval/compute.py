"""The accuracy of HaluEval: verdicts "does it contain hallucination?" and which of two candidates was shown; `halueval.py`
describes the inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import detection_accuracy, seeded_choices
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._claims import ClaimOptions, JudgedAnswers, verdict_of_claims
from hf_factuality.metrics._common import is_published, make_result, named, read_options


_TRUTHS = {"yes": True, "no": False, "hallucinated": True, "right": False}
_WORDS = re.compile(r"\b(?:[Yy][Ee][Ss]|[Nn][Oo])\b(?!-\w)")  # IGNORECASE would read "yeſ"
_NOUN = re.compile(r"[^\S\n]+(?!(?:because|since|as)\b)\w", re.IGNORECASE)  # on its line: an explanation may follow
# What makes something else of a yes or no: earlier in its sentence, or right behind it.
_BEFORE = re.compile(r"\b(?:not|cannot|never|neither|nor|whether|if|unless|without)\b|n['’]t\b", re.IGNORECASE)
_AFTER = re.compile(
    r"\s*/|[\"'”’*]*[^\S\n]+(?:if|when|unless|or|and|is|was|would|can|cannot|doubt|idea|one)\b", re.IGNORECASE
)
_JUDGES = ("published prompts",)
_EVIDENCE = ("knowledge", "document", "dialogue_history", "evidence")


def read_verdict(value: Any) -> bool | None:
    """The verdict of a bool, or of text that says yes or no; `None` of neither, both, or what is taken back ("I cannot say
    yes"). The "no" of "no doubt" is not said, unless the answer begins with it ("No hallucination")."""
    if not isinstance(value, str):
        return value if isinstance(value, bool) else None
    start = re.match(r"[\W_]*", value).end()
    said = [
        word
        for word in _WORDS.finditer(value)
        if word[0].lower() == "yes" or word.start() == start or not _NOUN.match(value, word.end())
    ]
    if len({word[0].lower() for word in said}) != 1:
        return None
    before = re.split(r"[.!?\n]", value[: said[0].start()])[-1]
    taken_back = _BEFORE.search(before) or _AFTER.match(value, said[0].end())
    return None if taken_back else said[0][0].lower() == "yes"


def read_verdict_as_released(value: Any) -> bool | None:
    """[`read_verdict`] by the released rule: `Yes` or `No` as a part of any word ("None", "Now"), in this case only."""
    if not isinstance(value, str):
        return value if isinstance(value, bool) else None
    yes, no = "Yes" in value.replace(".", ""), "No" in value.replace(".", "")
    return yes if yes != no else None


def _truth(value: Any, place: str) -> bool | None:
    if isinstance(value, dict):
        value = value.get("hallucinated")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTHS:
        return _TRUTHS[value.strip().lower()]
    raise DataError(f"{place} must say whether the candidate is hallucinated: True or False, Yes or No, got {value!r}")


def _candidate(row: Mapping[str, Any], side: str, place: str) -> Any:
    keys = [key for key in row if key == side or key.startswith(f"{side}_")]
    if len(keys) != 1:
        raise DataError(f"{place} needs one key `{side}` or `{side}_...`; it has {sorted(row)}")
    return row[keys[0]]


def halueval(
    predictions: Sequence[Any], references: Sequence[Any], *, verifier: Any = None, **options: Any
) -> dict[str, Any]:
    """Result of the metric `halueval`."""
    given = read_options(ClaimOptions, options)
    drawn = seeded_choices(len(predictions), given.seed)
    shown, truths, evidence, both = [], [], [], []
    for row, (item, reference) in enumerate(zip(predictions, references, strict=True)):
        source = reference if isinstance(reference, dict) else {}
        if isinstance(item, dict):
            candidates = [_candidate(item, side, f"prediction {row}") for side in ("right", "hallucinated")]
            both.append(candidates)
            item, truth, source = candidates[drawn[row]], drawn[row], {**source, **item}
        elif reference is None and "seed" not in options:
            raise DataError(
                f"reference {row} must say whether the candidate is hallucinated, or pass the `seed` of `seeded_choices`"
            )
        else:
            truth = drawn[row] if reference is None else _truth(reference, f"reference {row}")
        shown.append(item)
        truths.append(truth)
        known = next((source[key] for key in _EVIDENCE if key in source), None)
        evidence.append({"evidence": known, "question": source.get("question")})
    parts: dict[str, Any] = {}
    if verifier is None:
        answers, problems = None, ["missing" if item is None else None for item in shown]
        verdicts = [read_verdict(item) for item in shown]
        released = [read_verdict_as_released(item) for item in shown]
        if both and len(both) == len(predictions):
            pairs = [detection_accuracy([read_verdict(item) for item in pair], [False, True]) for pair in both]
            parts["accuracy_both_candidates"] = mean([value for pair in pairs for value in pair["correct"]])
        extractor, judge = None, named(given.judge)
    else:
        answers = JudgedAnswers(shown, evidence, table=None, options={**options, "verifier": verifier})
        problems = [answer.problem for answer in answers.items]
        verdicts = released = [verdict_of_claims(answer) for answer in answers.items]
        extractor, judge = answers.who()
    left_out = {"missing": 0, "no_evidence": 0, "verifier_failed": 0, "no_reference": 0, "unjudged": 0}
    for verdict, truth, problem in zip(verdicts, truths, problems, strict=True):
        if truth is None or verdict is None:
            left_out["no_reference" if truth is None else problem or "unjudged"] += 1
    found = detection_accuracy(verdicts, truths)
    parts |= {name: found[name] for name in ("accuracy_hallucinated", "accuracy_right")}
    parts["accuracy_released"] = detection_accuracy(released, truths)["accuracy_released"]
    parts["shown_hallucinated"] = sum(truth is True for truth in truths)
    result = make_result(
        "halueval",
        found["accuracy"],
        scores=found["correct"],
        parts=parts,
        left_out={"responses": left_out},
        settings={"seed": given.seed},
        extractor=extractor,
        judge=judge,
        released=parts["accuracy_released"] if verifier is None and is_published(given.judge, _JUDGES) else None,
        options=given,
    )
    if given.return_spans and answers is not None:
        result["spans"] = answers.spans()
    return result
