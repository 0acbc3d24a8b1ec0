"""`hf-factuality index`, and `KnowledgeBase.build` with `CorpusRetriever`, do the same."""

import json
import sqlite3

from hf_factuality.cli import main
from hf_factuality.retrieval import CorpusRetriever, KnowledgeBase


def rows(path):
    with sqlite3.connect(path) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: database.execute(f"select * from {name}").fetchall() for name in names}


def test_command_and_function_give_the_same_result(tmp_path, capsys):
    pages = [("Ulm", "A town on the Danube."), ("Ulm", "Einstein was born there."), ("Bern", "He worked there.")]
    source = tmp_path / "pages.jsonl"
    source.write_text("".join(json.dumps({"name": title, "body": text}) + "\n" for title, text in pages))
    base = KnowledgeBase.build(
        tmp_path / "one.sqlite", str(source), title_column="name", text_column="body", duplicates="join"
    )
    flags = ["--title_column", "name", "--text_column", "body", "--duplicates", "join", "--bm25"]
    assert main(["index", str(source), "--out", str(tmp_path / "two.sqlite"), *flags]) == 0
    summary = json.loads(capsys.readouterr().out)
    folder = tmp_path / "two.sqlite.bm25"
    passages = len(CorpusRetriever.build(base, show_progress=False))
    assert summary == {
        "path": str(tmp_path / "two.sqlite"), "documents": len(base), **base.counts, "bm25": str(folder),
        "passages": passages,
    }  # fmt: skip
    one, two = rows(tmp_path / "one.sqlite"), rows(tmp_path / "two.sqlite")
    assert len(base) == 2 and one == two and any("Einstein was born there." in str(table) for table in two.values())
