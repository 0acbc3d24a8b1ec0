"""What reading a text costs, as a share of what the lexical judge costs on its statements.

    PYTHONPATH=. python benchmarks/reading_cost.py --data ../shared/data

Texts: FActScore's biographies by ChatGPT (180 of them), and the whole answers of `tests/cases/reading`, which are mostly
Markdown. The judge gets each statement of a text with ten evidence sentences of its own, from HotpotQA knowledge, which it
reads too. Every cache is empty at the start of a run. Reading is also timed without asking what declines, which is a module
of its own. Processor time of one thread; the arms alternate, and each counts with its best run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from lexical_verifier import clear_caches, read_jsonl, read_parquet

from hf_factuality.reading import completion, declining, statements
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.lexical.judge import LexicalJudge
from tests.reading.cases import load


EVIDENCE = 10


def texts_by_name(data: Path) -> dict[str, list[str]]:
    biographies = [row["output"] for row in read_jsonl(data / "factscore/ChatGPT.jsonl")]
    return {
        "biographies": [text for text in biographies if text][:180],
        "Markdown answers": [case.text for case in load("whole")],
    }


def evidence_blocks(data: Path) -> list[tuple[str, ...]]:
    """Blocks of ten sentences of HotpotQA knowledge; no sentence is in two of them."""
    rows = read_parquet(data / "fspo/hotpot-2k-train.parquet", ["knowledge"])
    sentences = dict.fromkeys(row["knowledge"][a:b] for row in rows for a, b in sentence_offsets(row["knowledge"]))
    return list(zip(*[iter(sentences)] * EVIDENCE, strict=False))


@contextmanager
def nothing_declines() -> Iterator[None]:
    with (
        mock.patch.object(statements, "is_refusal", lambda sentence: False),
        mock.patch.object(completion, "declines_as_a_whole", lambda sentences: False),
    ):
        yield


def seconds(work: Callable[[], object]) -> float:
    clear_caches()
    for cached in (
        completion.read_text,
        completion.passage_sentences,
        completion.without_citations,
        declining.is_refusal,
        declining._parts,
    ):
        cached.cache_clear()
    start = time.process_time()
    work()
    return time.process_time() - start


def cost(texts: Sequence[str], blocks: Sequence[tuple[str, ...]], repeats: int) -> dict[str, float]:
    """Milliseconds a text: of the judge, of reading, and of reading without declining."""
    said = [it.says for text in texts for it in completion.read_text(text)[1] if it.kind == "statement"]
    inputs = [JudgeInput(claim, block) for claim, block in zip(said, blocks, strict=False)]
    if len(inputs) < len(said):
        raise ValueError(f"{len(said)} statements need as many blocks of evidence, got {len(blocks)}")

    def read() -> None:
        for text in texts:
            completion.read_text(text)

    best = dict.fromkeys(("judge", "reading", "without declining"), float("inf"))
    for _ in range(repeats):
        best["judge"] = min(best["judge"], seconds(lambda: LexicalJudge().judge(inputs)))
        best["reading"] = min(best["reading"], seconds(read))
        with nothing_declines():
            best["without declining"] = min(best["without declining"], seconds(read))
    return {"claims": len(said) / len(texts), **{name: value * 1000 / len(texts) for name, value in best.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with factscore/ and fspo/")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each arm, of which the best counts")
    arguments = parser.parse_args()
    blocks = evidence_blocks(arguments.data)
    print("| texts | claims a text | judge, ms a text | reading | of the judge | without declining | of the judge |")
    print("|---|---|---|---|---|---|---|")
    for name, texts in texts_by_name(arguments.data).items():
        it = cost(texts, blocks, arguments.repeats)
        shares = "".join(f" {it[arm]:.2f} | {it[arm] / it['judge']:.3f} |" for arm in ("reading", "without declining"))
        print(f"| {len(texts)} {name} | {it['claims']:.1f} | {it['judge']:.2f} |{shares}")


if __name__ == "__main__":
    main()
