"""Quality and speed of the lexical verifier on public data, and the fit of its weights.

    python benchmarks/lexical_verifier.py --data ../shared/data --out lexical.json
    python benchmarks/lexical_verifier.py --data ../shared/data --sources DIR
    python benchmarks/lexical_verifier.py --data ../shared/data --fit

What is reported:

- area under the ROC curve of the score on the WiCE development claims, supported against the rest, with a bootstrap
  interval, and the labels by class;
- labels on HotpotQA and 2WikiMultiHopQA knowledge: a sentence (supported), the same with one number or name exchanged
  (contradicted), a sentence of another row (unverifiable), and the precision and recall of CONTRADICTED on them;
- area under the ROC curve on HaluEval, right against hallucinated answers (the claim is the question followed by the
  answer, which is no sentence: the lexical judge is weak here);
- with `--sources`, the folder that `small_verifier.py` takes, labels on FEVER symmetric and Fool Me Twice: how many claims that
  are true are called contradicted, and false;
- claims a second on one core, each with ten evidence sentences of its own and cold caches, in groups of eight that
  share them, each with ten passages of about 60 words of its own and cold caches, and in groups of eight that share these.

`--fit` prints the logistic weights that `hf_factuality/verifiers/judges/lexical/judge.py` holds as constants. It reads the
WiCE *train* sub-claims and one half of the HotpotQA rows; the figures above come from WiCE *dev*, the other half, and
HaluEval, which took no part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from _small_facts import NOT_SAID, SUPPORTED
from _small_pairs import read_pairs

from hf_factuality.reading import completion
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.lexical import judge as lexical
from hf_factuality.verifiers.judges.lexical import text as lexical_text
from hf_factuality.verifiers.judges.lexical.alignment import Differences
from hf_factuality.verifiers.judges.lexical.analysis import analyse
from hf_factuality.verifiers.judges.lexical.judge import FEATURES, LexicalJudge, english_features, lexical_features


PAIRS = Path(__file__).resolve().parent.parent / "tests" / "cases" / "judging"
# (claim, evidence, target)
Row = tuple[str, tuple[str, ...], float]


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Probability that a positive scores above a negative, ties counting one half, from the sum of ranks.

    Args:
        scores (`Sequence[float]`):
            One per item.
        labels (`Sequence[bool]`):
            Whether the item is positive.

    Raises:
        `ValueError`: one of the two classes is empty.
    """
    values, positive = np.asarray(scores, dtype=float), np.asarray(labels, dtype=bool)
    count = int(positive.sum())
    if not 0 < count < len(positive):
        raise ValueError(f"need both classes, got {count} positives of {len(positive)}")
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(sizes) - (sizes - 1) / 2  # ranks from 1; tied items share their mean rank
    return float((mean_rank[group][positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def bootstrap_interval(
    scores: Sequence[float], labels: Sequence[bool], draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of `auroc` over rows drawn with replacement."""
    values, positive = np.asarray(scores, dtype=float), np.asarray(labels, dtype=bool)
    generator = np.random.default_rng(seed)
    found = []
    while len(found) < draws:
        index = generator.integers(len(values), size=len(values))
        if 0 < positive[index].sum() < len(index):
            found.append(auroc(values[index], positive[index]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


# -- data -------------------------------------------------------------------------------------------------------------


def read_jsonl(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_parquet(path: Path, columns: list[str]) -> list[dict]:
    from pyarrow import parquet

    return parquet.read_table(path, columns=columns).to_pylist()


def wice_train(data: Path, seed: int = 0) -> list[Row]:
    """WiCE train sub-claims, in pairs of one length.

    Annotators marked the tokens without support. Supported: the claim without them. Not supported: the claim without
    as many others. Each pair also comes joined to another one, with the evidence of both, as whole claims state
    several things.
    """
    generator = random.Random(seed)
    singles: list[Row] = []
    for row in read_jsonl(data / "wice/non_supported_tokens-train.jsonl"):
        words, wrong = row["claim_tokens"], row["non_supported_spans"]
        right = [i for i in range(len(words)) if not wrong[i]]
        if len(right) < max(4, sum(wrong) + 3):
            continue
        start = generator.randrange(len(right))
        dropped = {right[(start + i) % len(right)] for i in range(sum(wrong))}
        evidence = tuple(row["evidence"])
        singles.append((" ".join(words[i] for i in right), evidence, 1.0))
        singles.append((" ".join(word for i, word in enumerate(words) if i not in dropped), evidence, 0.0))
    pairs = []
    for i in range(0, len(singles), 2):
        j = (i + 2 * generator.randrange(1, len(singles) // 2)) % len(singles)
        evidence = singles[i][1] + singles[j][1]
        first, second = generator.choice(((1, 1), (1, 0), (0, 1)))  # which of the two is wrong
        pairs.append((f"{singles[i][0]} and {singles[j][0]}", evidence, 1.0))
        pairs.append((f"{singles[i + first][0]} and {singles[j + second][0]}", evidence, 0.0))
    return singles + pairs


_NUMBER = re.compile(r"\b\d{1,4}\b")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*")


def swap_entity(sentence: str, names: Sequence[str], generator: random.Random) -> str | None:
    """The sentence with one number or one name exchanged; `None` if it has neither.

    A number gets another value of the same length; a name, not at the beginning, one of as many words from `names`.
    """
    numbers, found = list(_NUMBER.finditer(sentence)), list(_NAME.finditer(sentence))
    if not numbers and not found:
        return None
    if numbers and (not found or generator.random() < 0.5):
        match = generator.choice(numbers)
        old = int(match.group())
        new = old + generator.choice((-1, 1)) * generator.randrange(1, 12)
        text = str(new if new > 0 and len(str(new)) == len(match.group()) else (old + 1 if old % 10 < 9 else old - 1))
    else:
        match = generator.choice(found)
        words = len(match.group().split())
        fitting = [name for name in names if len(name.split()) == words and name not in sentence]
        if not fitting:
            return None
        text = generator.choice(fitting)
    return sentence[: match.start()] + text + sentence[match.end() :]


def hotpot(data: Path, half: int) -> list[tuple[str, tuple[str, ...], Label]]:
    """Sentences of the knowledge, swapped and foreign ones, from every second row."""
    rows = read_parquet(data / "fspo/hotpot-2k-train.parquet", ["knowledge"])[half::2]
    generator = random.Random(half)
    texts = [row["knowledge"] for row in rows]
    sentences = [[text[a:b] for a, b in sentence_offsets(text) if b - a >= 20] for text in texts]
    names = sorted({match.group() for text in texts for match in _NAME.finditer(text)})
    result = []
    for i, text in enumerate(texts):
        if not sentences[i]:
            continue
        sentence = generator.choice(sentences[i])
        result.append((sentence, (text,), Label.SUPPORTED))
        swapped = swap_entity(generator.choice(sentences[i]), names, generator)
        if swapped is not None and swapped not in text:
            result.append((swapped, (text,), Label.CONTRADICTED))
        foreign = sentences[(i + generator.randrange(1, len(texts))) % len(texts)]
        if foreign and texts[i] not in foreign:
            result.append((generator.choice(foreign), (text,), Label.UNVERIFIABLE))
    return result


def halueval(data: Path) -> list[Row]:
    """Question and right answer against question and hallucinated answer."""
    columns = ["knowledge", "question", "right_answer", "hallucinated_answer"]
    rows = read_parquet(data / "fspo/halueval-train.parquet", columns)
    return [
        (f"{row['question'].rstrip('?')} {row[answer].strip()}", (row["knowledge"],), target)
        for row in rows
        for answer, target in (("right_answer", 1.0), ("hallucinated_answer", 0.0))
    ]


# -- fit --------------------------------------------------------------------------------------------------------------


def fit_logistic(features: np.ndarray, targets: np.ndarray, weights: np.ndarray, ridge: float = 1e-3) -> np.ndarray:
    """Weighted logistic regression by Newton's method; returns the coefficients, intercept last (not penalised)."""
    design = np.hstack([features, np.ones((len(features), 1))])
    penalty = np.diag([ridge] * features.shape[1] + [0.0]) * weights.sum()
    beta = np.zeros(design.shape[1])
    for _ in range(50):
        probability = 1 / (1 + np.exp(-design @ beta))
        gradient = design.T @ (weights * (targets - probability)) - penalty @ beta
        hessian = (design * (weights * probability * (1 - probability))[:, None]).T @ design + penalty
        step = np.linalg.solve(hessian, gradient)
        beta += step
        if np.abs(step).max() < 1e-8:
            break
    return beta


def fit(data: Path) -> np.ndarray:
    """Fit on WiCE train and HotpotQA, which count alike, and in each the two classes alike."""
    parts: list[list[Row]] = [
        [row for seed in range(4) for row in wice_train(data, seed)],
        [(claim, evidence, float(label is Label.SUPPORTED)) for claim, evidence, label in hotpot(data, 0)],
    ]
    features, targets, weights = [], [], []
    for part in parts:
        count = Counter(target for *_, target in part)
        for claim, evidence, target in part:
            features.append(lexical_features(claim, evidence)[0])
            targets.append(target)
            weights.append(0.5 / count[target])
    total = np.array(weights) * 1000
    return fit_logistic(np.array(features), np.array(targets), total)


ENGLISH = (*FEATURES, *Differences._fields)
# How much each source counts in the weights for short claims and in those for long ones.
SHARES = {"pairs": (0.6, 0.0), "foreign": (0.2, 0.0), "hotpot": (0.1, 0.1), "wice": (0.1, 0.9)}
# The logit that a short claim has to overcome: to call a false claim supported is worse than to leave a true one open.
CAUTION = (1.0, 0.0)


def pairs(path: Path = PAIRS / "development.jsonl") -> list[Row]:
    """The pairs of a claim and its evidence that were written for building the judge."""
    return [
        (row["claim"], (row["evidence"],) if isinstance(row["evidence"], str) else tuple(row["evidence"]),
         float(row["label"] == "supported"))
        for row in read_jsonl(path) if row.get("language", "en") == "en"
    ]  # fmt: skip


_RUN = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")


def foreign(rows: list[Row]) -> list[Row]:
    """Claims with the evidence of other claims, as they are and with a name that the other evidence has."""
    found = []
    for i, (claim, _, _) in enumerate(rows):
        evidence = rows[(i + len(rows) // 2) % len(rows)][1]
        found.append((claim, evidence, 0.0))
        theirs = _RUN.findall(evidence[0])[1:]
        ours = [run for run in _RUN.finditer(claim) if run.start() or " " in run.group()]
        if theirs and ours:
            found.append((claim[: ours[0].start()] + theirs[0] + claim[ours[0].end() :], evidence, 0.0))
    return found


def values_of(claim: str, evidence: tuple[str, ...]) -> list[float]:
    """The values named by `ENGLISH`."""
    found = english_features(claim, evidence)
    return [found[name] for name in ENGLISH]


def fit_signed(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray, signs: np.ndarray, ridge: float = 0.005
) -> tuple[np.ndarray, float]:
    """Weighted logistic regression whose coefficients keep to their signs, by projected gradient descent.

    What is known beforehand need not be learnt: no difference speaks for a claim. A few hundred pairs would else say so.
    """
    scale = features.std(0) + 1e-6
    scaled, weights = features / scale, weights / weights.mean()
    beta, intercept = np.zeros(features.shape[1]), 0.0
    for _ in range(3000):
        error = weights * (1 / (1 + np.exp(-(scaled @ beta + intercept))) - targets)
        beta = beta - 0.3 * (error @ scaled / len(targets) + ridge * beta)
        beta[signs * beta < 0] = 0.0
        intercept -= 0.3 * float(error.mean())
    return beta / scale, intercept


def fit_english(data: Path) -> list[tuple[dict[str, float], float]]:
    """The weights for short English claims, and those for long ones, each with its intercept."""
    own = pairs()
    rows = {
        "pairs": own,
        # A claim with the evidence of another one, once as it is and once with a name of that evidence, as what a model
        # invents about somebody is; and each true one once more, so that both classes are there.
        "foreign": [*foreign(own), *(row for row in own if row[2])],
        "hotpot": [(claim, evidence, float(label is Label.SUPPORTED)) for claim, evidence, label in hotpot(data, 0)][:2000],
        "wice": [row for seed in range(2) for row in wice_train(data, seed)],
    }  # fmt: skip
    features = {name: np.array([values_of(claim, evidence) for claim, evidence, _ in rows[name]]) for name in rows}
    targets = {name: np.array([target for *_, target in rows[name]]) for name in rows}
    signs = np.array([1.0 if name in FEATURES[:-1] else -1.0 for name in ENGLISH])
    found = []
    for head in range(2):
        weights = [
            SHARES[name][head] * np.where(targets[name] == 1, 0.5 / targets[name].mean(), 0.5 / (1 - targets[name].mean()))
            / len(targets[name])
            for name in rows
        ]  # fmt: skip
        beta, intercept = fit_signed(
            np.vstack([*features.values()]), np.concatenate([*targets.values()]), np.concatenate(weights), signs
        )
        found.append(({name: round(float(b), 2) for name, b in zip(ENGLISH, beta, strict=True) if abs(b) >= 0.005},
                      round(intercept - CAUTION[head], 2)))  # fmt: skip
    return found


# -- figures ----------------------------------------------------------------------------------------------------------


def confusion(cases: Sequence[tuple[str, tuple[str, ...], str]], judge: LexicalJudge) -> tuple[dict, list[float]]:
    """Counts of the judge's labels by true label, and the scores (0 where the judge gives none)."""
    verdicts = judge.judge([JudgeInput(claim, evidence) for claim, evidence, _ in cases])
    table: dict[str, Counter] = {}
    for (_, _, truth), verdict in zip(cases, verdicts, strict=True):
        table.setdefault(truth, Counter())[verdict.label.value] += 1
    return {truth: dict(row) for truth, row in table.items()}, [verdict.score or 0.0 for verdict in verdicts]


def clear_caches() -> None:
    for cached in (
        lexical._index,
        lexical._passage,
        lexical_text._token,
        analyse,
        completion._read_passage,
        completion.passage_sentences,
    ):
        cached.cache_clear()
    lexical_text._piece_terms.clear()


def claims_a_second(inputs: list[JudgeInput], repeats: int = 3) -> float:
    """Best of `repeats` runs of one call, every cache of the judge empty at its start.

    Processor time: the judge runs on one thread, and other processes on the machine do not count.
    """
    best = float("inf")
    for _ in range(repeats):
        clear_caches()
        start = time.process_time()
        LexicalJudge().judge(inputs)
        best = min(best, time.process_time() - start)
    return len(inputs) / best


PASSAGE_WORDS = 50
"""A passage ends with the sentence that brings it to so many words: about 60."""


def passages_of(sentences: Sequence[str]) -> list[list[str]]:
    """Consecutive sentences as passages."""
    found: list[list[str]] = [[]]
    for sentence in sentences:
        found[-1].append(sentence)
        if sum(len(one.split()) for one in found[-1]) >= PASSAGE_WORDS:
            found.append([])
    return found[:-1]


def speed(data: Path) -> dict[str, float]:
    """Claims a second; ten sentences, or passages, of HotpotQA rows are the evidence of a claim."""
    rows = read_parquet(data / "fspo/hotpot-2k-train.parquet", ["knowledge"])
    sentences = [row["knowledge"][a:b] for row in rows for a, b in sentence_offsets(row["knowledge"])]
    blocks = [tuple(sentences[i : i + 10]) for i in range(0, len(sentences) - 9, 10)][:1000]
    names = sorted({match.group() for sentence in sentences for match in _NAME.finditer(sentence)})
    generator = random.Random(0)
    distinct = [JudgeInput(swap_entity(block[3], names, generator) or block[3], block) for block in blocks]
    shared = [JudgeInput(sentence, block) for block in blocks for sentence in block[:8]]
    words = sum(len(sentence.split()) for block in blocks for sentence in block) / len(blocks)
    passages = passages_of(sentences)
    long = [
        JudgeInput(swap_entity(passages[i + 3][0], names, generator) or passages[i + 3][0],
                   tuple(" ".join(passage) for passage in passages[i : i + 10]))
        for i in range(0, len(passages) - 9, 10)
    ]  # fmt: skip
    answers = [
        JudgeInput(swap_entity(passages[i + number][0], names, generator) or passages[i + number][0], long[i // 10].evidence)
        for i in range(0, len(passages) - 9, 10) for number in range(8)
    ]  # fmt: skip
    return {
        "distinct_evidence_cold": claims_a_second(distinct),
        "groups_of_eight_cold": claims_a_second(shared),
        "distinct_passages_cold": claims_a_second(long),
        "passages_groups_of_eight_cold": claims_a_second(answers),
        "words_per_evidence": words,
        "words_per_passage": sum(len(text.split()) for item in long for text in item.evidence) / (10 * len(long)),
    }


def people_wrote(sources: Path) -> dict[str, list[tuple[str, tuple[str, ...], str]]]:
    """Claims of FEVER symmetric and Fool Me Twice with their evidence, true and false ones."""
    tables: dict[str, list[tuple[str, tuple[str, ...], str]]] = {"fever": [], "fm2": []}
    for evidence, claim, label, source in read_pairs(sources):
        if source in tables and label != NOT_SAID:
            tables[source].append((claim, (evidence,), "true" if label == SUPPORTED else "false"))
    return tables


def evaluate(data: Path, sources: Path | None = None, log: Callable[[str], None] = print) -> dict:
    """All figures, printed as Markdown."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    judge = LexicalJudge()
    wice = [(row["claim"], tuple(row["evidence"]), row["label"]) for row in read_jsonl(data / "wice/claim-dev.jsonl")]
    wice_table, scores = confusion(wice, judge)
    truth = [label == "supported" for *_, label in wice]
    area, (low, high) = auroc(scores, truth), bootstrap_interval(scores, truth)
    cases = [(claim, evidence, label.value) for claim, evidence, label in hotpot(data, 1)]
    hotpot_table, _ = confusion(cases, judge)
    called = sum(row.get("contradicted", 0) for row in hotpot_table.values())
    hit = hotpot_table["contradicted"].get("contradicted", 0)
    answers = [(claim, evidence, "right" if target else "hallucinated") for claim, evidence, target in halueval(data)]
    halueval_table, ranked = confusion(answers, judge)
    tables = {"WiCE dev": wice_table, "HotpotQA / 2Wiki": hotpot_table, "HaluEval": halueval_table}
    for name, rows in people_wrote(sources).items() if sources else ():
        tables[name], _ = confusion(rows, judge)
    result = {
        "tables": tables,
        "wice_dev": {"auroc": area, "low": low, "high": high, "rows": len(wice)},
        "hotpot": {
            "precision": hit / called if called else None,
            "recall": hit / sum(hotpot_table["contradicted"].values()),
        },
        "halueval": {
            "auroc": auroc(ranked, [truth == "right" for *_, truth in answers]),
        },
        "speed": speed(data),
    }
    log("| figure | value |\n|---|---|")
    log(f"| WiCE dev, supported against the rest, AUROC [95 %] | {area:.3f} [{low:.3f}, {high:.3f}] |")
    log(f"| exchanged number or name: precision of CONTRADICTED | {result['hotpot']['precision'] or 0:.3f} |")
    log(f"| exchanged number or name: recall of CONTRADICTED | {result['hotpot']['recall']:.3f} |")
    log(f"| HaluEval, right against hallucinated answer, AUROC | {result['halueval']['auroc']:.3f} |")
    log(f"| claims a second, distinct evidence, cold caches | {result['speed']['distinct_evidence_cold']:,.0f} |")
    log(f"| claims a second, ten passages of {result['speed']['words_per_passage']:.0f} words of its own, cold caches | {result['speed']['distinct_passages_cold']:,.0f} |")  # fmt: skip
    log(f"| claims a second, groups of 8 share ten such passages, cold caches | {result['speed']['passages_groups_of_eight_cold']:,.0f} |")  # fmt: skip
    log(f"| claims a second, groups of 8 share evidence | {result['speed']['groups_of_eight_cold']:,.0f} |")
    names = [label.value for label in Label]
    for title, table in tables.items():
        log(f"\n| {title}: true \\ judged | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for label, row in sorted(table.items()):
            log(f"| {label} | {' | '.join(str(row.get(name, 0)) for name in names)} |")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with wice/ and fspo/")
    parser.add_argument("--sources", type=Path, help="folder with FeverSymmetric/ and fool-me-twice/")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    parser.add_argument("--fit", action="store_true", help="fit the weights on the training halves and print them")
    arguments = parser.parse_args()
    if arguments.fit:
        *weights, intercept = fit(arguments.data)
        print("FEATURES =", FEATURES)
        print("WEIGHTS =", tuple(round(float(weight), 2) for weight in weights))
        print("INTERCEPT =", round(float(intercept), 2))
        for name, (weights, intercept) in zip(("SHORT", "LONG"), fit_english(arguments.data), strict=True):
            print(name, "=", weights)
            print(f"{name}_INTERCEPT =", intercept)
        return
    result = evaluate(arguments.data, arguments.sources)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
