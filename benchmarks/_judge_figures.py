"""Figures of `verifier_quality.py`: how well verdicts fit labels, and which words of a claim lack support."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lexical_verifier import auroc, read_jsonl

from hf_factuality.functional.agreement import Confusion
from hf_factuality.functional.calibration import best_threshold
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Judge, JudgeInput, Judgement
from hf_factuality.verifiers.judges.lexical.judge import unsupported_words


DRAWS = 1000
SUPPORTED = (Label.SUPPORTED, Label.HEDGED_SUPPORTED)


class Case(NamedTuple):
    """A claim with its truth; cases of one `group` are drawn together, `subset` ones have a second AUROC."""

    item: JudgeInput
    supported: bool
    group: int
    kind: str
    subset: bool = False


def document(evidence: Sequence[str]) -> tuple[str, ...]:
    """WiCE's evidence sentences as one passage, a line each: judges with a window fill it with whole sentences."""
    return ("\n".join(evidence),)


class Remembering:
    """Asks a judge about each claim once; the ensembles and the spans ask again."""

    def __init__(self, judge: Judge):
        self.inner, self.known, self.seconds = judge, {}, 0.0

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        new = list(dict.fromkeys(item for item in inputs if item not in self.known))
        start = time.perf_counter()
        self.known.update(zip(new, self.inner.judge(new) if new else [], strict=True))
        self.seconds += time.perf_counter() - start
        return [self.known[item] for item in inputs]


def score(verdict: Judgement) -> float:
    """Score of a known verdict; a label without one is certain."""
    return verdict.score if verdict.score is not None else float(verdict.label in SUPPORTED)


def interval(figure: Callable[[np.ndarray], float], groups: np.ndarray, valid: Callable[[np.ndarray], bool]) -> list:
    """95 % percentile interval of `figure(row indices)` over groups drawn with replacement."""
    generator = np.random.default_rng(0)
    _, number = np.unique(groups, return_inverse=True)
    count, rows, found = number.max() + 1, np.arange(len(groups)), []
    while len(found) < DRAWS:
        times = np.bincount(generator.integers(count, size=count), minlength=count)
        index = np.repeat(rows, times[number])
        if valid(index):
            found.append(figure(index))
    return [float(value) for value in np.percentile(found, [2.5, 97.5])]


def with_interval(figure: Callable[[np.ndarray], float], groups: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    def valid(index: np.ndarray) -> bool:
        return 0 < truth[index].sum() < len(index)

    rows = np.arange(len(groups))
    if not valid(rows):  # one class only
        return {"value": None, "interval": None}
    return {"value": figure(rows), "interval": interval(figure, groups, valid)}


def evaluate(judge: Remembering, cases: Sequence[Case], fitting: Sequence[Case] | None) -> dict[str, Any]:
    """Figures of one judge on one benchmark; claims without a verdict are left out, and counted.

    Args:
        judge (`Remembering`):
            The judge.
        cases (`Sequence[Case]`):
            The benchmark.
        fitting (`Sequence[Case]`, *optional*):
            Training data for the second threshold; `None`: there is none.
    """
    verdicts = judge.judge([case.item for case in cases])
    known = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if verdict.label is not None]
    kinds: dict[str, Counter] = {}
    for case, verdict in zip(cases, verdicts, strict=True):
        kinds.setdefault(case.kind, Counter())[verdict.label.value if verdict.label else "unknown"] += 1
    found = {
        "n": len(cases),
        "judged": len(known),
        "labels": {kind: dict(counts) for kind, counts in kinds.items()},
        "auroc": None,
    }
    if not known:
        return found
    truth = np.array([case.supported for case, _ in known])
    groups = np.array([case.group for case, _ in known])
    scores = np.array([score(verdict) for _, verdict in known])
    called = np.array([verdict.label in SUPPORTED for _, verdict in known])
    found["auroc"] = with_interval(lambda i: auroc(scores[i], truth[i]), groups, truth)
    found["default"] = with_interval(lambda i: Confusion.of(called[i], truth[i]).mean_recall(), groups, truth)
    part = np.array([case.subset for case, _ in known])
    if part.any():
        found["subset_judged"] = int(part.sum())
        found["subset_auroc"] = with_interval(
            lambda i: auroc(scores[part][i], truth[part][i]), groups[part], truth[part]
        )
    if fitting is not None:
        pairs = [
            (score(verdict), case.supported)
            for case, verdict in zip(fitting, judge.judge([case.item for case in fitting]), strict=True)
            if verdict.label is not None
        ]
        if len({target for _, target in pairs}) == 2:
            limit = best_threshold(*zip(*pairs, strict=True))
            passed = scores >= limit
            found["fitted"] = with_interval(lambda i: Confusion.of(passed[i], truth[i]).mean_recall(), groups, truth)
            found["threshold"], found["fitted_on"] = limit, len(pairs)
    return found


def difference(first: Remembering, second: Remembering, cases: Sequence[Case]) -> dict[str, Any]:
    """AUROC of the first judge minus that of the second on the claims that both judged, by paired draws."""
    inputs = [case.item for case in cases]
    rows = [
        (score(a), score(b), case.supported, case.group)
        for case, a, b in zip(cases, first.judge(inputs), second.judge(inputs), strict=True)
        if a.label is not None and b.label is not None
    ]
    a, b, truth, groups = (np.array(column) for column in zip(*rows, strict=True))
    return with_interval(lambda i: auroc(a[i], truth[i]) - auroc(b[i], truth[i]), groups, truth)


# -- words without support --------------------------------------------------------------------------------------------


class Tokens(NamedTuple):
    """A partially supported sub-claim: its tokens as characters, and which of them have no support."""

    item: JudgeInput
    offsets: tuple[tuple[int, int], ...]
    wrong: np.ndarray


def wice_tokens(data: Path, part: str, articles: set[tuple[str, ...]] | None = None) -> list[Tokens]:
    """Rows of `non_supported_tokens-{part}.jsonl`, those of `articles` only if given."""
    result = []
    for row in read_jsonl(data / f"wice/non_supported_tokens-{part}.jsonl"):
        if articles is not None and tuple(row["evidence"]) not in articles:
            continue
        offsets, position = [], 0
        for token in row["claim_tokens"]:
            position = row["claim"].index(token, position)
            offsets.append((position, position + len(token)))
            position += len(token)
        item = JudgeInput(row["claim"], document(row["evidence"]))
        result.append(Tokens(item, tuple(offsets), np.array(row["non_supported_spans"])))
    return result


def lexical_words(rows: Sequence[Tokens]) -> list[np.ndarray]:
    """Tokens inside the runs of `unsupported_words`."""
    found = []
    for row in rows:
        runs = unsupported_words(row.item.claim, row.item.evidence)
        found.append(np.array([any(a < end and start < b for a, b in runs) for start, end in row.offsets]))
    return found


def whole_claim(judge: Judge, rows: Sequence[Tokens]) -> list[np.ndarray | None]:
    """All tokens of a claim that is not called supported, none of one that is; `None` where there is no verdict."""
    verdicts = judge.judge([row.item for row in rows])
    return [
        None if verdict.label is None else np.full(len(row.wrong), verdict.label not in SUPPORTED)
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


def rises(judge: Judge, rows: Sequence[Tokens], narrow: bool) -> list[np.ndarray | None]:
    """How much the score of support rises if a token is left out, for each token; `None` where a verdict is missing.

    With `narrow` a claim without a token is judged by the one window that decided on the whole claim.
    """
    verdicts = judge.judge([row.item for row in rows])
    evidence = [
        (verdict.evidence,) if narrow and verdict.evidence else row.item.evidence
        for row, verdict in zip(rows, verdicts, strict=True)
    ]
    shortened = [
        [JudgeInput(row.item.claim[:a] + row.item.claim[b:].lstrip(), texts) for a, b in row.offsets]
        for row, texts in zip(rows, evidence, strict=True)
    ]
    verdicts = iter(
        judge.judge([item for row, group in zip(rows, shortened, strict=True) for item in (row.item, *group)])
    )
    found: list[np.ndarray | None] = []
    for row in rows:
        own = [next(verdicts) for _ in range(len(row.offsets) + 1)]
        if any(verdict.label is None for verdict in own):
            found.append(None)
        else:
            found.append(np.array([score(verdict) for verdict in own[1:]]) - score(own[0]))
    return found


def left_out(judge: Judge, rows: Sequence[Tokens], fitting: Sequence[Tokens], narrow: bool) -> list[np.ndarray | None]:
    """Tokens whose removal raises the score by more than a margin; the margin has the best F1 on `fitting`."""
    seen = [(rise, row) for rise, row in zip(rises(judge, fitting, narrow), fitting, strict=True) if rise is not None]
    values = np.concatenate([rise for rise, _ in seen]) if seen else np.zeros(1)
    options = np.unique(np.quantile(values, np.linspace(0, 0.98, 50)))
    best = max(
        options, key=lambda option: f1(counts([r > option for r, _ in seen], [row for _, row in seen]).sum(0)[:3])
    )
    return [None if rise is None else rise > best for rise in rises(judge, rows, narrow)]


def counts(found: Sequence[np.ndarray], rows: Sequence[Tokens]) -> np.ndarray:
    """Per claim, hits, false alarms and misses, in tokens and then in characters; shape (claims, 6)."""
    result = []
    for said, row in zip(found, rows, strict=True):
        length = np.array([end - start for start, end in row.offsets])
        parts = (said & row.wrong, said & ~row.wrong, ~said & row.wrong)
        result.append([part.sum() for part in parts] + [(part * length).sum() for part in parts])
    return np.array(result)


def f1(summed: np.ndarray) -> float:
    hits, alarms, misses = summed
    return float(2 * hits / max(2 * hits + alarms + misses, 1))


def span_figures(found: Sequence[np.ndarray | None], rows: Sequence[Tokens]) -> dict[str, Any]:
    """Precision, recall and F1 of the tokens of all claims together, and F1 of their characters."""
    known = [(said, row) for said, row in zip(found, rows, strict=True) if said is not None]
    result: dict[str, Any] = {"n": len(rows), "judged": len(known), "f1": None}
    if known:
        table = counts([said for said, _ in known], [row for _, row in known])
        hits, alarms, misses = table.sum(0)[:3]
        groups = np.arange(len(table))
        result |= {
            "precision": float(hits / (hits + alarms)) if hits + alarms else None,
            "recall": float(hits / (hits + misses)),
            "f1": f1(table.sum(0)[:3]),
            "interval": interval(lambda i: f1(table[i].sum(0)[:3]), groups, lambda i: True),
            "characters": f1(table.sum(0)[3:]),
        }
    return result


def span_floors(rows: Sequence[Tokens], fitting: Sequence[Tokens]) -> dict[str, list[np.ndarray]]:
    """All tokens, none, and as many at random as have no support in training data."""
    share = float(np.concatenate([row.wrong for row in fitting]).mean())
    generator = np.random.default_rng(0)
    return {
        "every word": [np.ones(len(row.wrong), dtype=bool) for row in rows],
        "no word": [np.zeros(len(row.wrong), dtype=bool) for row in rows],
        f"random, {share:.0%} of the words": [generator.random(len(row.wrong)) < share for row in rows],
        "second half of the claim": [np.arange(len(row.wrong)) >= len(row.wrong) / 2 for row in rows],
    }
