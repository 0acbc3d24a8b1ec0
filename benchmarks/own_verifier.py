"""A judge trained by `hf-factuality train verifier`, beside the embedded ones, on the same claims.

    python benchmarks/own_verifier.py --data ../shared/data --model MODEL --work runs/own --out own_verifier.json

It writes the training files to `--work` (passages: the knowledge of every second HotpotQA row, which is the half that takes no
part in other figures; WiCE's training spans), trains by `recipes/verifier/minilm-l6.yaml` on one core, unless `--work` holds the
trained model already, and measures both judges on:

- WiCE claim-dev, supported against the rest, each cited page as one passage;
- 600 claims made by the same edits from the other half of the HotpotQA rows;
- tests/cases/judging/development.jsonl;
- with `--held_out`, tests/cases/judging/held_out.jsonl, of which only sums are printed.

What it prints are the tables of docs/verifier-quality.md, "A verifier of one's own".
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

from hf_factuality.cli.train import run_training
from hf_factuality.data import read_labelled_claims
from hf_factuality.data.reading import read_parts
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.io.rows import read_rows
from hf_factuality.methods.verifier.data import SUPPORTED, synthetic_claims
from hf_factuality.methods.verifier.trainer import figure
from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, load_verifier


CASES = Path(__file__).resolve().parent.parent / "tests" / "cases" / "judging"
SHOWN = ("auroc", "balanced_accuracy", "ece")


def train(data: Path, work: Path, model: str, more: list[str]) -> Path:
    """Write the files, train, and return the folder of the verifier."""
    out = work / "verifier"
    if (out / "verifier_config.json").exists():
        return out
    work.mkdir(parents=True, exist_ok=True)
    rows = [row for _, row in read_rows(data / "fspo/hotpot-2k-train.parquet")][0::2]
    passages = work / "passages.jsonl"
    passages.write_text("".join(json.dumps({"text": row["knowledge"]}) + "\n" for row in rows), encoding="utf-8")
    words = ["--config", "recipes/verifier/minilm-l6.yaml", "--model_name_or_path", model, "--output_dir", str(out),
             "--train_files", str(data / "wice/non_supported_tokens-train.jsonl"), "--passage_files", str(passages),
             "--eval_files", str(data / "wice/claim-dev.jsonl"), "--use_cpu", "true"]  # fmt: skip
    started = time.perf_counter()
    run_training("verifier", [*words, *more])
    print(f"training and measuring took {time.perf_counter() - started:.0f} s")
    return out


def measure(judge, path: Path) -> dict:
    """Figures of a judge on a file of labelled claims, in all and per kind."""
    rows = read_labelled_claims(read_parts(str(path), None, None, ""))
    started = time.perf_counter()
    found = judge.judge([JudgeInput(row["claim"], tuple(row["evidence"])) for row in rows])
    seconds = time.perf_counter() - started
    items, kinds = [], defaultdict(list)
    names = [row.get("kind") for _, row in read_rows(path) if row["label"] is not None]
    for row, one, kind in zip(rows, found, names, strict=True):
        if one.label is None:
            continue
        said = one.label is Label.SUPPORTED
        items.append((float(said) if one.score is None else one.score, row["label"] == SUPPORTED, said))
        kinds[kind].append(items[-1])
    interval = bootstrap_interval(items, lambda drawn: figure("auroc", drawn), resamples=1000, seed=0)
    false = [said for _, truth, said in items if not truth]
    return {
        "judged": len(items), "of": len(rows), **{name: figure(name, items) for name in (*SHOWN, "accuracy")},
        "auroc_interval": interval, "false_called_supported": sum(false) / len(false), "claims_per_second": len(rows) / seconds,
        "kinds": {
            kind: {"n": len(own), "accuracy": figure("accuracy", own),
                   "false_called_supported": sum(said for _, truth, said in own if not truth),
                   "false": sum(not truth for _, truth, _ in own)}
            for kind, own in sorted(kinds.items(), key=lambda pair: str(pair[0])) if kind
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--model", default="sentence-transformers/all-MiniLM-L6-v2", help="id or folder of the encoder"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/own_verifier"))
    parser.add_argument("--held_out", action="store_true", help="measure on the pairs that nobody tunes on, too")
    parser.add_argument("--skip_wice", action="store_true", help="leave out WiCE, which takes minutes")
    parser.add_argument("--out", type=Path)
    args, more = parser.parse_known_args()
    folder = train(args.data, args.work, args.model, more)
    names = {"lexical": "lexical", "small (the default)": "small", "own": f"pipeline:{folder}"}
    judges = {shown: load_verifier(name).judge for shown, name in names.items()}
    files = {"WiCE claim-dev": args.data / "wice/claim-dev.jsonl", "development pairs": CASES / "development.jsonl"}
    knowledge = [row["knowledge"] for _, row in read_rows(args.data / "fspo/hotpot-2k-train.parquet")][1::2]
    files["claims by edits"] = args.work / "by_edits.jsonl"
    rows = synthetic_claims(knowledge, 600, seed=1, max_words=22)
    files["claims by edits"].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if args.skip_wice:
        files.pop("WiCE claim-dev")
    if args.held_out:
        files["held-out pairs"] = CASES / "held_out.jsonl"
    found = {file: {name: measure(judge, path) for name, judge in judges.items()} for file, path in files.items()}
    print(
        "| claims | judge | judged | AUROC | balanced accuracy | false ones called supported | ECE | claims a second |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for file, own in found.items():
        for name, it in own.items():
            low, high = it["auroc_interval"]
            print(f"| {file} | {name} | {it['judged']} of {it['of']} | {it['auroc']:.3f} [{low:.3f}, {high:.3f}] | "
                  f"{it['balanced_accuracy']:.3f} | {it['false_called_supported']:.3f} | {it['ece']:.3f} | "
                  f"{it['claims_per_second']:.0f} |")  # fmt: skip
    for file, own in found.items():
        kinds = next(iter(own.values()))["kinds"]
        if len(kinds) < 2:
            continue
        print(
            f"\n| {file}, kind | n | "
            + " | ".join(f"accuracy, {name} | false ones called supported, {name}" for name in own)
            + " |"
        )
        print("|---|---|" + "---|---|" * len(own))
        for kind, first in kinds.items():
            cells = [
                f"{it['kinds'][kind]['accuracy']:.2f} | {it['kinds'][kind]['false_called_supported']} of {first['false']}"
                for it in own.values()
            ]
            print(f"| {kind} | {first['n']} | " + " | ".join(cells) + " |")
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
