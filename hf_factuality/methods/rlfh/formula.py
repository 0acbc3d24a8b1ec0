"""RLFH's reward of atomic statements (arXiv 2406.12221; released code AlignRM/RLFH).

What differs from the release: a statement whose verdict or rating failed carries nothing, where the release takes
"vague" and 1; one that could not be found in its sentence is paid at the sentence's end, where the release drops it;
a statement that is repeated is paid once, where the release merges repeated sentences; the three granularities pay the same total; apologies are found whatever their case.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, log
from types import MappingProxyType
from typing import Any

from hf_factuality.functional.scoring import SUPPORTED_LABELS, mean
from hf_factuality.spans import RLFH_LABELS, Label, map_label


RLFH_GRANULARITIES = ("token", "sentence", "paragraph")
"""Where rewards are paid: each where its statement or sentence ends, all of a sentence at its end, or all at once."""
RLFH_RATINGS = (1, 2, 3, 4, 5)
"""Informativeness: 5 answers the question, 4 crucial, 3 relevant, 2 supplementary, 1 of no use."""

_TRUTH_LABELS = tuple(RLFH_LABELS.values())
_SCALARS = ("truth_weight", "info_weight", "epsilon", "mu", "default_for_none")


def _label(key: object) -> Label:
    """One of RLFH's five, by itself, by its value or by RLFH's name."""
    found = map_label(key, "rlfh") if isinstance(key, str) else None
    found = found or next((label for label in _TRUTH_LABELS if label == key), None)
    if found is None:
        why = "; leave out statements without a fact (NO_FACT)" if key == Label.NO_FACT else ""
        ours = [label.value for label in _TRUTH_LABELS]
        raise ValueError(f"unknown label {key!r}; use RLFH's {list(RLFH_LABELS)} or {ours}{why}")
    return found


def _rating(key: object) -> int:
    """A rating or its digit; not `True`, which equals 1."""
    if isinstance(key, str) and key in map(str, RLFH_RATINGS):
        return int(key)
    if isinstance(key, bool) or not isinstance(key, int) or key not in RLFH_RATINGS:
        raise ValueError(f"{key!r} is no rating of informativeness; ratings are {list(RLFH_RATINGS)}")
    return key


def _written(key: Label | int) -> str | int:
    return key.value if isinstance(key, Label) else key


def _number(value: object, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and isfinite(value):
            return float(value)
    except OverflowError:  # an int beyond any float
        pass
    raise ValueError(f"{name} must be a finite number, got {value!r:.50}")


@dataclass(frozen=True)
class RLFHMaps:
    """What verdicts and ratings are worth.

    Args:
        truth (`Mapping[Label, float]`):
            f: value of each of the five labels that RLFH has (all but `NO_FACT`). Keys may be RLFH's names ("Hedged
            correct") or the values of ours ("hedged_supported").
        informativeness (`Mapping[int, float]`):
            g: value of each rating from 1 to 5. Keys may be digits.
        truth_weight (`float`, *optional*, defaults to `1.0`):
            Alpha, weight of the truth of statements.
        info_weight (`float`, *optional*, defaults to `1.0`):
            Beta, weight of the informativeness of sentences.
        epsilon (`float`, *optional*, defaults to `-0.9`):
            Lowest sum of a sentence's ratings that counts.
        mu (`float`, *optional*, defaults to `1.0`):
            Added inside the logarithm: `mu + epsilon` must be positive.
        default_for_none (`float`, *optional*, defaults to `0.0`):
            Reward of a sentence in which the extractor found no statement.

    Raises:
        `ValueError`: a label or a rating is missing, unknown or there twice (under two names), a number is not finite, a
        weight is negative, or `mu + epsilon` is not positive.
    """

    truth: Mapping[Label, float]
    informativeness: Mapping[int, float]
    truth_weight: float = 1.0
    info_weight: float = 1.0
    epsilon: float = -0.9
    mu: float = 1.0
    default_for_none: float = 0.0

    def __post_init__(self):
        for name, expected, read in (("truth", _TRUTH_LABELS, _label), ("informativeness", RLFH_RATINGS, _rating)):
            given, values = getattr(self, name), {}
            if not isinstance(given, Mapping):
                raise ValueError(f"{name} must be a mapping, got {type(given).__name__}")
            for key, value in given.items():
                known = read(key)
                if known in values:
                    raise ValueError(f"{name} has {_written(known)!r} twice, the second time as {key!r}")
                values[known] = _number(value, f"{name}[{_written(known)!r}]")
            missing = [_written(key) for key in expected if key not in values]
            if missing:
                raise ValueError(f"{name} has no value for {missing}; give all {len(expected)}")
            object.__setattr__(self, name, MappingProxyType({key: values[key] for key in expected}))
        for name in _SCALARS:
            object.__setattr__(self, name, _number(getattr(self, name), name))
        for name in ("truth_weight", "info_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0: less rewards what is worse")
        if not self.mu + self.epsilon > 0:
            raise ValueError(f"mu={self.mu} + epsilon={self.epsilon} must be positive: its logarithm is a reward")

    def __reduce__(self):
        # Read-only views can be neither pickled nor copied.
        return type(self), (dict(self.truth), dict(self.informativeness), *(getattr(self, name) for name in _SCALARS))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RLFHMaps:
        """Maps as they were read from JSON or YAML: the arguments of this class, or `ValueError`."""
        if not isinstance(data, Mapping):
            raise ValueError(f"maps are a mapping with the keys {_FIELDS}, got {type(data).__name__}")
        unknown = [key for key in data if key not in _FIELDS]
        if unknown:
            raise ValueError(f"unknown keys {unknown}; maps have {_FIELDS}")
        missing = [name for name in ("truth", "informativeness") if name not in data]
        if missing:
            raise ValueError(f"the maps have no {' and no '.join(missing)}; both are needed")
        return cls(**data)


_FIELDS = list(RLFHMaps.__dataclass_fields__)


def _maps(truth: Sequence[float], informativeness: Sequence[float], info_weight: float = 1.0) -> RLFHMaps:
    labels = ("correct", "hedged correct", "vague", "hedged wrong", "wrong")
    return RLFHMaps(
        {RLFH_LABELS[name]: value for name, value in zip(labels, truth, strict=True)},
        dict(zip((5, 4, 3, 2, 1), informativeness, strict=True)),
        info_weight=info_weight,
    )


RLFH_PRESETS: Mapping[str, RLFHMaps] = MappingProxyType(
    {
        "readme": _maps((0.45, 0.35, -1.0, -1.5, -1.7), (1.25, 1.0, 0.75, 0.1, -0.2), info_weight=1.2),
        "script": _maps((0.3, 0.1, -0.8, -0.9, -1.2), (1.3, 1.2, 1.1, 1.0, -0.1)),
        "class": _maps((1.0, 0.5, -1.0, -1.5, -2.0), (1.3, 1.2, 1.1, 1.0, -0.1)),
    }
)
"""Published numbers: the README's recipe for Qwen2.5-7B, the defaults of `scripts/train.sh`, those of the class."""

RLFHStatement = namedtuple("RLFHStatement", ("end", "label", "rating"))
RLFHStatement.__doc__ = """An atomic statement: `end` (`int`), one past the last character that states it; `label`
([`Label`] or `None`) and `rating` (`int` from 1 to 5 or `None`), `None` where the judgement failed."""


@dataclass(frozen=True)
class RLFHSentence:
    """A sentence of a completion with its statements.

    Args:
        end (`int`):
            One past its last character in the decoded completion.
        statements (`tuple[RLFHStatement, ...]`, *optional*):
            `(end, label, rating)` each, with ends in the completion too: the sentence's own where a statement could not
            be found in it. Empty if the extractor found none.

    Raises:
        `ValueError`: a rating, which may come from a function of the user, is not 1 to 5.
    """

    end: int
    statements: tuple[RLFHStatement, ...] = ()

    def __post_init__(self):
        statements = tuple(RLFHStatement(*given) for given in self.statements)
        for statement in statements:
            if statement.rating is not None and _rating(statement.rating) != statement.rating:
                raise ValueError(f"{statement.rating!r} is no rating; ratings are {list(RLFH_RATINGS)}, as ints")
        object.__setattr__(self, "statements", statements)

    @property
    def stated(self) -> tuple[RLFHStatement, ...]:
        """Statements that hold something to check: all but `NO_FACT`."""
        return tuple(statement for statement in self.statements if statement.label is not Label.NO_FACT)

    @property
    def known(self) -> tuple[RLFHStatement, ...]:
        """Those of `stated` of which both the label and the rating are known; only they carry reward."""
        return tuple(s for s in self.stated if s.label is not None and s.rating is not None)


def statement_reward(label: Label, rating: int, maps: RLFHMaps) -> float:
    """`alpha * f(label) * |g(rating)|`: how true a statement is, weighted by how much it matters."""
    return maps.truth_weight * maps.truth[label] * abs(maps.informativeness[rating])


def sentence_reward(ratings: Sequence[int], maps: RLFHMaps) -> float:
    """`beta * ln(mu + max(epsilon, sum of g))`: what the statements of one sentence tell, each further one less.

    With the published epsilon and mu it is at least `beta * ln 0.1 = -2.303 * beta`. The order of the ratings does not
    matter, to the last bit.
    """
    total = fsum(maps.informativeness[rating] for rating in ratings)
    return maps.info_weight * log(maps.mu + max(maps.epsilon, total))


def rlfh_rewards(
    sentences: Sequence[RLFHSentence], granularity: str, maps: RLFHMaps, length: int
) -> list[tuple[int, float]]:
    """Rewards of one completion and the characters at which they are due.

    | granularity | a point for |
    |---|---|
    | `"token"` | each statement at its end ([`statement_reward`]); each sentence at its end ([`sentence_reward`]) |
    | `"sentence"` | each sentence at its end: both together |
    | `"paragraph"` | the completion at its end: everything together |

    The three have the same total. Unknown is not wrong: a statement without a label or a rating is left out of both
    terms ([`rlfh_metrics`] counts it), and a sentence that has statements none of which is known gets no point at all.
    `maps.default_for_none` is for sentences in which the extractor found nothing; a `NO_FACT` statement is no
    statement, so that it is also for sentences of nothing else.

    Args:
        sentences (`Sequence[RLFHSentence]`):
            Of one completion. The release leaves out those that decline to answer: see [`~hf_factuality.reading.is_refusal_sentence`].
        granularity (`str`):
            One of [`RLFH_GRANULARITIES`].
        maps ([`RLFHMaps`]):
            What verdicts and ratings are worth.
        length (`int`):
            Characters of the completion.

    Returns:
        `list[tuple[int, float]]`: `(character_end, value)`, in the order of the sentences, and in a sentence of its
        statements, the sentence's own last. Empty if nothing is known.
    """
    points: list[tuple[int, float]] = []
    for sentence in sentences:
        known = sentence.known
        if known:
            terms = [(end, statement_reward(label, rating, maps)) for end, label, rating in known]
            terms.append((sentence.end, sentence_reward([statement.rating for statement in known], maps)))
        elif sentence.stated:
            continue
        else:
            terms = [(sentence.end, maps.default_for_none)]
        points += terms if granularity == "token" else [(sentence.end, fsum(value for _, value in terms))]
    if granularity == "paragraph" and points:
        return [(length, fsum(value for _, value in points))]
    return points


def rlfh_metrics(sentences: Sequence[RLFHSentence]) -> dict[str, float | None]:
    """What RLFH logs about the rewarded sentences of one completion.

    Statements that carry no reward are in none of the figures: `NO_FACT` ones, and those whose label or rating failed.

    Returns:
        `dict`:
        - `statements`: known statements. `unknown`: statements whose label or rating failed.
        - `supported`, `hedged_supported`, `unverifiable`, `hedged_contradicted`, `contradicted`: known ones by label.
        - `accuracy`: share of supported ones, hedged ones included. `valid_accuracy`: share of those that are also
          rated above 1; as in the release, the statements rated 1 stay in the denominator. `ground`: share of those
          that are not unverifiable. `info`: mean rating, 1 to 5. All `None` without a known statement.
        - `refused`: 1 if the completion states nothing, else 0; `None` if all that it states is unknown.
    """
    stated = [statement for sentence in sentences for statement in sentence.stated]
    known = [statement for sentence in sentences for statement in sentence.known]
    supported = [statement.label in SUPPORTED_LABELS for statement in known]
    return {
        "statements": len(known),
        "unknown": len(stated) - len(known),
        **{label.value: sum(statement.label is label for statement in known) for label in _TRUTH_LABELS},
        "accuracy": mean(supported),
        "valid_accuracy": mean([right and s.rating > 1 for right, s in zip(supported, known, strict=True)]),
        "ground": mean([statement.label is not Label.UNVERIFIABLE for statement in known]),
        "info": mean([statement.rating for statement in known]),
        "refused": None if stated and not known else float(not stated),
    }


def mean_rlfh_metrics(responses: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means of [`rlfh_metrics`] over completions, taken as RLFH takes them.

    Returns:
        `dict`: the same keys, without `unknown`. `refused`: share of completions that state nothing, among those of
        which that is known. All others: means over completions with a known statement. `None` where there is none.
        `unknown_share`: share of all statements that are unknown; `None` without statements.
    """
    telling = [metrics for metrics in responses if metrics["statements"]]
    unknown = sum(metrics["unknown"] for metrics in responses)
    total = unknown + sum(metrics["statements"] for metrics in responses)
    names = [name for name in rlfh_metrics(()) if name not in ("unknown", "refused")]
    return {
        **{name: mean([metrics[name] for metrics in telling]) for name in names},
        "refused": mean([metrics["refused"] for metrics in responses]),
        "unknown_share": unknown / total if total else None,
    }
