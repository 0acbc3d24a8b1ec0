"""The command `hf-factuality index`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_flag
from hf_factuality.errors import DataError


def add_parser(commands: Any) -> None:
    """Add `index` to the subparsers of the `hf-factuality` command."""
    index = commands.add_parser(
        "index",
        help="make a knowledge base, one SQLite file of titles and texts, from any corpus",
        description="Writes the pages of SOURCE to one SQLite file and prints what it counted, as one JSON object.",
    )
    index.add_argument(
        "source",
        help="JSON Lines, CSV or Parquet file, folder of save_to_disk, knowledge base, or dataset id on the Hub",
    )
    add_flag(index, "out", ": file of the knowledge base; needless if SOURCE is one, with --bm25", metavar="FILE")
    index.add_argument("--title_column", default="title", help="column with the title")
    index.add_argument("--text_column", default="text", help="column with the text: a string or a list of strings")
    add_flag(index, "dataset_config")
    add_flag(index, "split", " (default train)", default="train")
    add_flag(index, "dataset_revision")
    index.add_argument(
        "--duplicates",
        choices=("first", "join", "error"),
        default="first",
        help="a title that comes again: keep the first text (default), append as a new line, or stop",
    )
    add_flag(index, "overwrite")
    index.add_argument("--bm25", action="store_true", help="also index all passages, in a folder named FILE.bm25")
    index.set_defaults(run=_index)


def _index(args: argparse.Namespace) -> int:
    from hf_factuality.retrieval.knowledge import KnowledgeBase
    from hf_factuality.retrieval.knowledge_build import is_sqlite

    if args.out is not None:
        names = (
            "title_column",
            "text_column",
            "dataset_config",
            "split",
            "dataset_revision",
            "duplicates",
            "overwrite",
        )
        base = KnowledgeBase.build(args.out, args.source, **{name: getattr(args, name) for name in names})
    elif args.bm25 and is_sqlite(Path(args.source)):
        base = KnowledgeBase(args.source)
    else:
        raise DataError("name the file to write with --out FILE")
    summary: dict[str, Any] = {"path": str(base.path), "documents": len(base), **base.counts}
    if args.bm25:
        from hf_factuality.retrieval.corpus import CorpusRetriever

        folder = base.path.with_name(f"{base.path.name}.bm25")
        retriever = CorpusRetriever.build(base, show_progress=None)
        retriever.save_pretrained(folder, overwrite=args.overwrite)
        summary |= {"bm25": str(folder), "passages": len(retriever)}
    print(json.dumps(summary, ensure_ascii=False))
    return 0
