"""Quality of every judge on public labels: WiCE claims, HaluEval answers, and the words of WiCE without support.

    python benchmarks/verifier_quality.py --data ../shared/data --train --random
    python benchmarks/verifier_quality.py --data ../shared/data --nli MODEL_ID --hhem --minicheck --device cuda
    python benchmarks/verifier_quality.py --data ../shared/data --llm MODEL --base_url http://localhost:8000/v1

The lexical judge and trivial floors always run. `--train` makes a small NLI model from nothing (see `_nli_small.py`) and
the ensembles of it and the lexical judge; `--random` adds HHEM and MiniCheck with random weights, which must come out near
chance. Any other model is named by its id or folder.

Thresholds and calibrations are fitted on WiCE *train* sub-claims and HotpotQA answers that the small model did not see;
WiCE dev and HaluEval take no part. An interval is the 95 % percentile interval of a bootstrap over claims, or over the
questions of HaluEval, whose two answers belong together.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _nli_small
from _judge_figures import (
    Case,
    Remembering,
    difference,
    document,
    evaluate,
    left_out,
    lexical_words,
    span_figures,
    span_floors,
    whole_claim,
    wice_tokens,
)
from lexical_verifier import read_jsonl, read_parquet, wice_train

from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.ensemble import CalibratedJudge, MajorityJudge
from hf_factuality.verifiers.judges.lexical.judge import LexicalJudge


WICE, HALUEVAL = "WiCE", "HaluEval"
# HaluEval's hallucinated answers are longer than its right ones; up to so many words of difference count as alike.
LIKE_LENGTH = 2
# What the second AUROC of a table is about.
SUBSETS = {WICE: "without partial", HALUEVAL: "answers of like length"}


# -- data -------------------------------------------------------------------------------------------------------------


def wice_dev(data: Path) -> list[Case]:
    """All development claims; partially supported counts as not supported, and keeps its kind."""
    rows = read_jsonl(data / "wice/claim-dev.jsonl")
    return [
        Case(
            JudgeInput(row["claim"], document(row["evidence"])),
            row["label"] == "supported",
            i,
            row["label"],
            row["label"] != "partially_supported",
        )
        for i, row in enumerate(rows)
    ]


def halueval(data: Path, questions: int, seed: int = 0) -> list[Case]:
    """Right and hallucinated answer of a seeded choice of questions; the claim is question and answer in a row."""
    columns = ["knowledge", "question", "right_answer", "hallucinated_answer"]
    rows = list(enumerate(read_parquet(data / "fspo/halueval-train.parquet", columns)))
    chosen = (
        rows if questions >= len(rows) else sorted(random.Random(seed).sample(rows, questions), key=lambda r: r[0])
    )
    return [
        Case(
            JudgeInput(f"{row['question'].rstrip('?')} {row[answer].strip()}", (row["knowledge"],), row["question"]),
            answer == "right_answer",
            i,
            answer,
            abs(len(row["right_answer"].split()) - len(row["hallucinated_answer"].split())) <= LIKE_LENGTH,
        )
        for i, row in chosen
        for answer in ("right_answer", "hallucinated_answer")
    ]


def held_out(data: Path) -> dict[str, list[Case]]:
    """Claims to fit thresholds and calibrations on, for each benchmark; none was seen by the small NLI model."""
    rows = _nli_small.split(data)
    articles = {tuple(row["evidence"]) for row in rows["wice_held_out"]}
    subclaims = [(claim, evidence, bool(truth)) for claim, evidence, truth in wice_train(data) if evidence in articles]
    answers = _nli_small.answer_pairs(rows["hotpot_held_out"])
    return {
        WICE: [Case(JudgeInput(c, document(e)), t, i, str(t)) for i, (c, e, t) in enumerate(subclaims)],
        HALUEVAL: [Case(JudgeInput(c, (e,)), t, i // 2, str(t)) for i, (c, e, t) in enumerate(answers)],
    }


# -- floors -----------------------------------------------------------------------------------------------------------


class Floor:
    """Judge that looks at nothing but `measure(claim, evidence)`, in [0, 1]; supported from `threshold` on."""

    def __init__(self, measure: Callable[[str, Sequence[str]], float], threshold: float = 0.5):
        self.measure, self.threshold = measure, threshold

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        scores = [self.measure(item.claim, item.evidence) for item in inputs]
        return [Judgement(Label.SUPPORTED if s >= self.threshold else Label.UNVERIFIABLE, s) for s in scores]


def shortness(claim: str, evidence: Sequence[str]) -> float:
    """One half for a claim of 20 words, more for a shorter one."""
    return 20 / (20 + len(claim.split()))


def word_share(claim: str, evidence: Sequence[str]) -> float:
    """Share of the claim's distinct words, lower case, that occur in the evidence."""
    ours, theirs = set(re.findall(r"\w+", claim.lower())), set(re.findall(r"\w+", " ".join(evidence).lower()))
    return len(ours & theirs) / max(len(ours), 1)


# -- judges -----------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of the table. Served judges see fewer questions of HaluEval, and no claims with a token left out."""

    judge: Remembering
    served: bool = False
    model: bool = True


def single_judges(arguments: argparse.Namespace) -> tuple[dict[str, Entry], dict[str, Any] | None]:
    """Floors, the lexical judge and the models that were asked for, and what the training of the small one says."""
    entries = {
        "floor: always supported": Entry(Remembering(Floor(lambda claim, evidence: 1.0)), model=False),
        "floor: short claims": Entry(Remembering(Floor(shortness)), model=False),
        "floor: share of words found": Entry(Remembering(Floor(word_share, 1.0)), model=False),
        "lexical": Entry(Remembering(LexicalJudge()), model=False),
    }
    training, folder = None, Path(arguments.work)
    if arguments.train:
        training = _nli_small.train_nli(
            arguments.data, folder / "nli", steps=arguments.steps, log=partial(print, flush=True)
        )
    models = [*([str(folder / "nli")] if arguments.train else []), *arguments.nli]
    if models or arguments.hhem or arguments.minicheck or arguments.random:
        from hf_factuality.verifiers.judges.hhem import HHEMJudge
        from hf_factuality.verifiers.judges.minicheck import MiniCheckJudge
        from hf_factuality.verifiers.judges.nli import NLIJudge

        for i, model in enumerate(models):
            name = f"NLI, {'trained here' if arguments.train and not i else model}"
            entries[name] = Entry(Remembering(NLIJudge(model, device=arguments.device)))
        if arguments.hhem:
            judge = HHEMJudge(arguments.hhem, foundation=arguments.foundation, device=arguments.device)
            entries[f"HHEM, {arguments.hhem}"] = Entry(Remembering(judge))
        if arguments.minicheck:
            judge = MiniCheckJudge(arguments.minicheck, device=arguments.device)
            entries[f"MiniCheck, {arguments.minicheck}"] = Entry(Remembering(judge))
        if arguments.random:
            texts = [row["knowledge"] for row in _nli_small.split(arguments.data)["hotpot_train"]]
            paths = _nli_small.save_random_t5(texts, folder / "random")
            hhem = HHEMJudge(paths["hhem"], foundation=paths["foundation"], device=arguments.device)
            entries["HHEM, random weights"] = Entry(Remembering(hhem))
            judge = MiniCheckJudge(paths["minicheck"], device=arguments.device)
            entries["MiniCheck, random weights"] = Entry(Remembering(judge))
    if arguments.llm or arguments.anah:
        from hf_factuality.generation.client import ChatClient
        from hf_factuality.verifiers.judges.anah import ANAHJudge
        from hf_factuality.verifiers.judges.llm import LLMJudge

        for kind, make, model in (("LLM", LLMJudge, arguments.llm), ("ANAH", ANAHJudge, arguments.anah)):
            if model:
                judge = make(ChatClient(arguments.base_url, model, concurrency=arguments.concurrency))
                entries[f"{kind}, {model}"] = Entry(Remembering(judge), served=True)
    return entries, training


def ensembles(entries: dict[str, Entry], fitting: dict[str, list[Case]]) -> dict[str, dict[str, Entry]]:
    """Per benchmark, the lexical judge together with the first NLI model; none without such a model."""
    nli = next((entry.judge for name, entry in entries.items() if name.startswith("NLI")), None)
    if nli is None:
        return {WICE: {}, HALUEVAL: {}}
    judges = [entries["lexical"].judge, nli]
    found = {}
    for benchmark, cases in fitting.items():
        calibrated = CalibratedJudge.fit(judges, [case.item for case in cases], [case.supported for case in cases])
        found[benchmark] = {
            "lexical + NLI, calibrated": Entry(Remembering(calibrated)),
            "lexical + NLI, majority, ties unknown": Entry(Remembering(MajorityJudge(judges))),
            "lexical + NLI, majority, ties unverifiable": Entry(
                Remembering(MajorityJudge(judges, tie="unverifiable"))
            ),
        }
    return found


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    entries, training = single_judges(arguments)
    fitting = held_out(arguments.data)
    tests = {WICE: wice_dev(arguments.data), HALUEVAL: halueval(arguments.data, arguments.questions)}
    few = {WICE: tests[WICE][: arguments.served], HALUEVAL: halueval(arguments.data, arguments.served // 2)}
    together = ensembles(entries, fitting)
    result: dict[str, Any] = {"training": training, "tables": {}, "minus_lexical": {}, "seconds": {}, "settings": {}}
    for benchmark in (WICE, HALUEVAL):
        table, compared = {}, {}
        for name, entry in {**entries, **together[benchmark]}.items():
            cases = few[benchmark] if entry.served else tests[benchmark]
            table[name] = evaluate(entry.judge, cases, None if entry.served else fitting[benchmark])
            if entry.model and table[name]["judged"]:
                compared[name] = difference(entry.judge, entries["lexical"].judge, cases)
            print(benchmark, name, table[name]["auroc"], f"{entry.judge.seconds:.0f} s", flush=True)
        result["tables"][benchmark], result["minus_lexical"][benchmark] = table, compared
    articles = {tuple(row["evidence"]) for row in _nli_small.split(arguments.data)["wice_held_out"]}
    rows, train = wice_tokens(arguments.data, "dev"), wice_tokens(arguments.data, "train", articles)
    spans: dict[str, Any] = {f"floor: {name}": found for name, found in span_floors(rows, train).items()}
    spans["lexical, words that the evidence lacks"] = lexical_words(rows)
    for name, entry in entries.items():
        if not name.startswith("floor"):
            spans[f"{name}, the whole claim"] = whole_claim(
                entry.judge, rows[: arguments.served] if entry.served else rows
            )
            if not entry.served:
                spans[f"{name}, a word left out"] = left_out(entry.judge, rows, train, narrow=entry.model)
    result["spans"] = {name: span_figures(found, rows[: len(found)]) for name, found in spans.items()}
    for name, entry in entries.items():
        result["seconds"][name] = round(entry.judge.seconds, 1)
        if hasattr(entry.judge.inner, "config"):
            result["settings"][name] = entry.judge.inner.config()
    return result


def cell(found: dict[str, Any] | None) -> str:
    if not found or found["value"] is None:
        return "–"
    low, high = found["interval"]
    return f"{found['value']:.3f} [{low:.3f}, {high:.3f}]"


def row_of(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def show(result: dict[str, Any], log: Callable[[str], None] = print):
    """The tables as Markdown."""
    for benchmark, table in result["tables"].items():
        titles = (
            benchmark,
            "judged",
            "AUROC",
            f"AUROC, {SUBSETS[benchmark]}",
            "balanced accuracy",
            "... fitted threshold",
        )
        log(f"\n{row_of(*titles)}\n|{'---|' * len(titles)}")
        for name, row in table.items():
            figures = [cell(row.get(figure)) for figure in ("auroc", "subset_auroc", "default", "fitted")]
            log(row_of(name, f"{row['judged']:,} of {row['n']:,}", *figures))
        log(f"\n{row_of(benchmark, 'AUROC minus that of the lexical judge')}\n|---|---|")
        for name, row in result["minus_lexical"][benchmark].items():
            log(row_of(name, cell(row)))
    titles = ("WiCE, words without support", "judged", "precision", "recall", "F1", "F1 of characters")
    log(f"\n{row_of(*titles)}\n|{'---|' * len(titles)}")
    for name, row in result["spans"].items():
        figures = ["–"] * 4
        if row["f1"] is not None:
            precision = "–" if row["precision"] is None else f"{row['precision']:.3f}"
            whole = cell({"value": row["f1"], "interval": row["interval"]})
            figures = [precision, f"{row['recall']:.3f}", whole, f"{row['characters']:.3f}"]
        log(row_of(name, f"{row['judged']} of {row['n']}", *figures))
    log(f"\nTraining: {result['training']}\nSeconds in judges: {result['seconds']}")


def arguments_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with wice/ and fspo/")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    parser.add_argument("--work", type=Path, default=Path("outputs/verifier_quality"), help="folder for small models")
    parser.add_argument("--train", action="store_true", help="train a small NLI model from nothing and judge with it")
    parser.add_argument("--steps", type=int, default=800, help="training steps of --train")
    parser.add_argument("--random", action="store_true", help="HHEM and MiniCheck with random weights, as a check")
    parser.add_argument("--nli", nargs="+", default=[], metavar="MODEL", help="NLI cross-encoders, by id or folder")
    parser.add_argument(
        "--hhem",
        nargs="?",
        const="vectara/hallucination_evaluation_model",
        metavar="MODEL",
        help="HHEM, by id or folder",
    )
    parser.add_argument("--foundation", default="google/flan-t5-base", help="configuration and tokenizer of --hhem")
    parser.add_argument(
        "--minicheck", nargs="?", const="lytang/MiniCheck-Flan-T5-Large", metavar="MODEL", help="MiniCheck's flan-t5"
    )
    parser.add_argument("--llm", metavar="MODEL", help="LLM judge: name of the model on the server")
    parser.add_argument("--anah", metavar="MODEL", help="ANAH-v2's judge: name of the model on the server")
    parser.add_argument("--base_url", help="server of --llm and --anah, such as http://localhost:8000/v1")
    parser.add_argument("--concurrency", type=int, default=32, help="requests under way at once")
    parser.add_argument(
        "--questions", type=int, default=5000, help="questions of HaluEval, a seeded choice; 5000 is all"
    )
    parser.add_argument("--served", type=int, default=500, help="claims of each benchmark for judges on a server")
    parser.add_argument("--device", help="of the models, such as cuda")
    arguments = parser.parse_args(argv)
    if (arguments.llm or arguments.anah) and not arguments.base_url:
        parser.error("--llm and --anah need --base_url, such as http://localhost:8000/v1")
    for name, least in (("questions", 1), ("served", 2), ("steps", 1), ("concurrency", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    for file in ("wice/claim-dev.jsonl", "fspo/halueval-train.parquet"):
        if not (arguments.data / file).is_file():
            parser.error(f"--data {arguments.data} has no {file}")
    return arguments


def main():
    arguments = arguments_of()
    logging.basicConfig(level=logging.WARNING)
    result = run(arguments)
    show(result)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
