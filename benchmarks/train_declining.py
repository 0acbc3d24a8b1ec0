"""Trains the model of `hf_factuality.reading.learned`, which tells whether an answer declines, on the labelled texts of the tests.

    PYTHONPATH=. python benchmarks/train_declining.py [--out FILE] [--data ../shared/data] [--wordnet /usr/share/wordnet]

Plain statements, none of which declines, are the example sentences of WordNet 3.0 (Debian: the package wordnet-base).

Prints precision and recall over folds, where each text is judged by a model that did not see it, and on the texts that are held
out. With `--data`, also how many answers of HaluEval, names of ParaRel and sentences of Wikipedia (from HaluEval) are said to
decline. `declining_unseen.json` is not read. The same texts give the same file.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lexical_verifier import read_jsonl, read_parquet
from safetensors.numpy import save_file

from hf_factuality.reading import learned, read
from hf_factuality.reading.declining import model_features
from tests.reading.cases import unmarked


CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"
NGRAMS, CLASSES = 1 << learned.NGRAM_BITS, 1 << learned.CLASS_BITS
RULES = 6
STRENGTH = 5.0
"""Of the data against the penalty on the weights."""
FOLDS = 8
HARD = 3832
"""Texts of `declining_hard.jsonl`, which come first."""
JOINED = ((False, False, 50), (True, False, 30), (True, True, 30))
"""Whether the first and the second text of a pair decline, and how many such pairs there are of a language."""
PLAIN = 8000
"""Example sentences of WordNet that are read."""
NEAR = re.compile(r"\b(I|we|know|knows|tell|say|answer|idea|clue|sure|sorry|unable|information)\b", re.IGNORECASE)
THRESHOLD = 0.6
"""Probability of declining above which a text declines."""


class Text(NamedTuple):
    """A text with its label; `sure` if somebody checked it, and then the rules were mended on it."""

    text: str
    declines: bool
    sure: bool


def training_texts() -> list[Text]:
    """All labelled texts but those that are held out or unseen, each once."""
    found: list[Text] = []
    for name in ("declining_hard", "declining_written"):
        for line in (CASES / "reading" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.append(Text(row["text"], row["label"] != "answers", False))
    for name in ("declining_more", "declining", "whole"):
        rows = json.loads((CASES / "reading" / f"{name}.json").read_text(encoding="utf-8"))
        found += [Text(unmarked(row["text"])[0], row["declines"], True) for row in rows if "declines" in row]
    for part in json.loads((CASES / "declining.json").read_text(encoding="utf-8")).values():
        found += [Text(text, kind == "declines", True) for kind in ("declines", "answers") for text in part[kind]]
    # Texts that were labelled for something else: none of them declines.
    for name in ("markup", "citations", "confidence", "answers", "whole"):
        for row in json.loads((CASES / "reading" / f"{name}.json").read_text(encoding="utf-8")):
            if "declines" not in row:
                for text in (unmarked(row["text"])[0], *row.get("says", ())):
                    found.append(Text(text, False, True))
    # Plain statements about the world, without a name, with "not" and "cannot": none of them declines.
    for line in (CASES / "judging" / "development.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found += [
            Text(row["claim"], False, False),
            *(Text(it.says, False, False) for it in read(row["evidence"]).sentences),
        ]
    for claim, evidence, *_ in json.loads((CASES / "lexical.json").read_text(encoding="utf-8"))["meaning"]:
        found += [Text(claim, False, False), Text(evidence, False, False)]
    return list({one.text: one for one in found}.values())


def joined_texts() -> list[Text]:
    """Texts of the same language, one behind the other: what commits to an answer anywhere does not decline."""
    by_language: dict[tuple[str, bool], list[str]] = {}
    for name in ("declining_hard", "declining_written"):
        for line in (CASES / "reading" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["text"][-1] in ".!?。！？।" and "\n" not in row["text"]:
                by_language.setdefault((row["language"], row["label"] != "answers"), []).append(row["text"])
    random = np.random.default_rng(1)
    found = []
    for language in dict.fromkeys(language for language, _ in by_language):
        for first, second, count in JOINED:
            for _ in range(count):
                pair = [str(random.choice(by_language[language, declines])) for declines in (first, second)]
                between = "" if language in ("zh", "ja") else " "
                found.append(Text(between.join(pair), first and second, False))
    return found


def plain_statements(wordnet: Path) -> list[Text]:
    """Example sentences of WordNet ("he died of cancer"), half of them with a capital letter and a full stop.

    Most short statements name nothing that a rule could hold on to, and the labelled texts have few of them.
    """
    found = []
    for name in ("noun", "verb", "adj", "adv"):
        for line in (wordnet / f"data.{name}").read_text(encoding="utf-8").splitlines():
            for example in re.findall(r'"([^"]+)"', line.partition("|")[2]):
                if len(example.split()) >= 4:
                    found.append(example.strip())
    found = sorted(set(found))
    chosen = np.random.default_rng(2).permutation(len(found))[:PLAIN]
    texts = [found[number] for number in sorted(chosen)]
    texts = [
        text[0].upper() + text[1:] + "." * (text[-1] not in ".!?") if number % 2 else text
        for number, text in enumerate(texts)
    ]
    # Some of the examples decline or come close to it ("I can't tell you").
    return [Text(text, False, False) for text in texts if not model_features([text])[0] and not NEAR.search(text)]


class Rows(NamedTuple):
    """Texts as a matrix: one row each, which is empty where the model says nothing."""

    matrix: torch.Tensor
    rules: np.ndarray
    by_rules: np.ndarray
    judged: np.ndarray
    declines: np.ndarray


def rows_of(texts: Sequence[Text]) -> Rows:
    crows, columns, values = [0], [], []
    rules, by_rules, judged = np.zeros((len(texts), RULES)), np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    for number, one in enumerate(texts):
        by_rules[number], found = model_features([it.says for it in read(one.text).sentences])
        if found is not None:
            judged[number], rules[number] = True, found.rules
            parts = [np.array(part, dtype=np.int64) for part in found[:3]]
            parts[2] += NGRAMS
            columns.append(np.concatenate(parts))
            values.append(np.concatenate([np.full(len(part), len(part) ** -0.5) for part in parts]))
        crows.append(crows[-1] + (len(columns[-1]) if found is not None else 0))
    matrix = torch.sparse_csr_tensor(
        torch.tensor(crows),
        torch.from_numpy(np.concatenate(columns)),
        torch.from_numpy(np.concatenate(values)),
        size=(len(texts), NGRAMS + CLASSES),
    )
    return Rows(matrix, rules, by_rules, judged, np.array([one.declines for one in texts]))


def logistic(
    product: Callable[[torch.Tensor], torch.Tensor],
    transposed: Callable[[torch.Tensor], torch.Tensor],
    size: int,
    declines: np.ndarray,
    weight: np.ndarray,
    penalty: float,
) -> torch.Tensor:
    """Weights and, last, the intercept that minimise the weighted log loss plus half the penalty times their squares."""
    weights = torch.zeros(size + 1, dtype=torch.float64, requires_grad=True)
    wanted, each = torch.from_numpy(declines.astype(float)), torch.from_numpy(weight)
    optimizer = torch.optim.LBFGS([weights], max_iter=300, history_size=10, line_search_fn="strong_wolfe",
                                  tolerance_grad=1e-4, tolerance_change=1e-9)  # fmt: skip

    def closure() -> torch.Tensor:
        with torch.no_grad():
            odds = product(weights[:-1]) + weights[-1]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted, each, reduction="sum")
            errors = each * (odds.sigmoid() - wanted)
            weights.grad = torch.cat([transposed(errors), errors.sum()[None]]) + penalty * weights
            return loss + penalty / 2 * weights.square().sum()

    optimizer.step(closure)
    return weights.detach()


def fit(rows: Rows, train: np.ndarray, weight: np.ndarray) -> torch.Tensor:
    """The model without the rules, on the rows that are for training; the others weigh nothing."""
    kept = np.where(train & rows.judged, weight, 0.0)
    matrix = rows.matrix
    transposed = matrix.to_sparse_coo().t().to_sparse_csr()
    return logistic(
        lambda it: matrix @ it, lambda it: transposed @ it, NGRAMS + CLASSES, rows.declines, kept, 1 / STRENGTH
    )


def odds_of(rows: Rows, weights: torch.Tensor) -> np.ndarray:
    return (rows.matrix @ weights[:-1] + weights[-1]).numpy()


def precision_and_recall(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    right = int((found & wanted).sum())
    print(f"{name}: precision {right / found.sum():.3f}, recall {right / wanted.sum():.3f} of {len(wanted)}")


def false_alarms(data: Path) -> None:
    """How many texts that state something are said to decline, by the rules and by the model."""
    rows = read_parquet(data / "fspo/halueval-train.parquet", ["right_answer", "knowledge"])
    names = {row["obj_label"] for path in sorted(data.glob("pararel/facts/*.jsonl")) for row in read_jsonl(path)}
    for name, texts in {
        "answers of HaluEval": [str(row["right_answer"]) for row in rows],
        "names of ParaRel": sorted(names),
        "sentences of Wikipedia": [text for row in rows[:700] for text in row["knowledge"].split(". ")],
    }.items():
        by_rules = [model_features([it.says for it in read(text).sentences])[0] for text in texts]
        added = sum(read(text).declines and not before for text, before in zip(texts, by_rules, strict=True))
        print(
            f"{name}: {len(texts)}, of which the rules say that {sum(by_rules)} decline, and the model of {added} more"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=learned.WEIGHTS)
    parser.add_argument("--data", type=Path, help="A folder with HaluEval and ParaRel.")
    parser.add_argument(
        "--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="Folder with data.noun and the like."
    )
    args = parser.parse_args()
    out = args.out
    alone, pairs = training_texts(), [*joined_texts(), *plain_statements(args.wordnet)]
    texts = alone + pairs
    rows = rows_of(texts)
    sure = np.array([one.sure for one in texts])
    joined = np.arange(len(texts)) >= len(alone)
    weight = np.where(sure, 2.0, np.where(joined, 0.5, 1.0))

    # Folds: the weight of the rules is learnt where neither they nor the model saw the texts.
    tested = ~sure & ~joined
    fold = np.random.default_rng(0).permutation(len(texts)) % FOLDS
    odds = np.zeros(len(texts))
    for number in range(FOLDS):
        held = (fold == number) & tested
        odds[held] = odds_of(rows, fit(rows, ~held & ~joined, weight))[held]
    fair = tested & rows.judged
    both = torch.from_numpy(np.column_stack([odds, rows.rules]))
    mixed = logistic(lambda it: both @ it, lambda it: both.T @ it, 1 + RULES, rows.declines, fair.astype(float), 0.1)
    logit = np.log(THRESHOLD / (1 - THRESHOLD))
    found = np.where(rows.judged, (both @ mixed[:-1] + mixed[-1]).numpy() > logit, rows.by_rules)
    print("of the model alone and of each rule:", [round(it, 2) for it in mixed.tolist()])
    precision_and_recall("rules", rows.by_rules[tested], rows.declines[tested])
    precision_and_recall(f"rules and model, {FOLDS} folds", found[tested], rows.declines[tested])
    hard = tested & (np.arange(len(texts)) < HARD)
    precision_and_recall("of these, the hard texts", found[hard], rows.declines[hard])

    weights = fit(rows, np.ones(len(texts), bool), weight)
    tables, scales = {}, {}
    for name, part in (("ngrams", weights[:NGRAMS]), ("classes", weights[NGRAMS:-1])):
        scales[name] = float(part.abs().max()) / 127
        tables[name] = torch.round(part / scales[name]).to(torch.int8).numpy()
    model, *of_rules, intercept = mixed.tolist()
    intercept += model * float(weights[-1]) - logit
    scale = [model * scales[name] for name in ("ngrams", "ngrams", "classes")]
    save_file({**tables, "dense": np.array([intercept, *scale, *of_rules], dtype=np.float32)}, out)

    held_out = json.loads((CASES / "reading" / "declining_held_out.json").read_text(encoding="utf-8"))
    learned._weights.cache_clear()
    wanted = np.array([row["declines"] for row in held_out])
    if out == learned.WEIGHTS:
        said = np.array([read(row["text"]).declines for row in held_out])
        precision_and_recall("held out", said, wanted)
    by_rules = rows_of([Text(row["text"], row["declines"], False) for row in held_out]).by_rules
    precision_and_recall("held out, rules alone", by_rules, wanted)
    if args.data:
        false_alarms(args.data)


if __name__ == "__main__":
    main()
