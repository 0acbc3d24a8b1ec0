"""The win rate, of each pair in both orders; `winrate.py` describes the inputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import win_rate
from hf_factuality.io.secrets import redact
from hf_factuality.metrics._common import Options, describe_component, make_result, named, read_options
from hf_factuality.verifiers.base import PairInput, PairJudge, require_method


logger = logging.getLogger(__name__)

_VERDICTS = {"a": "A", "b": "B", "tie": "tie", "c": "tie"}


@dataclass(frozen=True, kw_only=True)
class PairOptions(Options):
    """[`Options`], who compared (`judge`, a name) or what compares (`pair_judge`), and the questions."""

    judge: str | None = None
    pair_judge: PairJudge | None = None
    questions: Sequence[str | None] | None = None


def _compare(judge: PairJudge, pairs: Sequence[PairInput]) -> list[str | None]:
    """Verdicts; a batch that fails is sent again one pair at a time, so that one bad pair costs only itself."""
    try:
        found = judge.compare(pairs) if pairs else []
        if len(found) != len(pairs):
            raise ValueError(f"the judge returned {len(found)} verdicts for {len(pairs)} pairs")
        return list(found)
    except Exception as error:
        if len(pairs) == 1:
            logger.warning(f"a pair could not be judged and is left out: {redact(str(error))}")
            return [None]
    return [verdict for pair in pairs for verdict in _compare(judge, [pair])]


def winrate(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Result of the metric `winrate`."""
    given = read_options(PairOptions, options)
    if given.pair_judge is not None:
        require_method(given.pair_judge, "compare", "pair_judge")  # a failure of `compare` would leave all pairs out
    if given.questions is not None and len(given.questions) != len(predictions):
        raise DataError(f"there are {len(predictions)} predictions and {len(given.questions)} questions")
    verdicts: list[tuple[Any, Any]] = [(None, None)] * len(predictions)
    reasons = {"missing": 0, "one_order": 0, "unjudged": 0}
    waiting: list[int] = []
    for row, (item, reference) in enumerate(zip(predictions, references, strict=True)):
        if isinstance(item, dict) and isinstance(item.get("verdicts"), list):
            item = item["verdicts"]
        if item is None or isinstance(item, str) and reference is None:
            reasons["missing"] += 1
        elif isinstance(item, list):
            if len(item) not in (1, 2):
                raise DataError(f"prediction {row}: verdicts are a list of two, one per order, got {item!r:.100}")
            reasons["one_order"] += len(item) == 1
            verdicts[row] = (item[0], item[1] if len(item) == 2 else None)
        elif isinstance(item, str) and isinstance(reference, str):
            if given.pair_judge is None:
                raise DataError(f"prediction {row} is text: pass `pair_judge` to compare it with its reference")
            waiting.append(row)
        else:
            raise DataError(f"prediction {row} must be text or a list of two verdicts, got {item!r:.100}")
    if waiting:
        questions = given.questions if given.questions is not None else [None] * len(predictions)
        pairs = []
        for row in waiting:
            ours, other = predictions[row], references[row]
            pairs += [PairInput(questions[row], ours, other), PairInput(questions[row], other, ours)]
        found = _compare(given.pair_judge, pairs)
        for row, *both in zip(waiting, found[::2], found[1::2], strict=True):
            verdicts[row] = tuple(both)
    known = [
        tuple(_VERDICTS.get(verdict.strip().lower()) if isinstance(verdict, str) else None for verdict in pair)
        for pair in verdicts
    ]
    scored = win_rate(known)
    reasons["unjudged"] = scored["unjudged"] - reasons["missing"] - reasons["one_order"]
    names = ("consistent_win_rate", "consistent_loss_rate", "tie_rate", "agreement", "first_position_rate")
    return make_result(
        "winrate",
        scored["win_rate"],
        scores=scored["points"],
        parts={name: scored[name] for name in names},
        left_out={"responses": reasons},
        judge=describe_component(given.pair_judge) if waiting else named(given.judge),
        options=given,
    )
