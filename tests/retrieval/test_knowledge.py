"""Knowledge bases: what is built can be found, and nothing else opens."""

import argparse
import gzip
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import pytest

from hf_factuality.cli.index import add_parser
from hf_factuality.errors import DataError, RetrievalError
from hf_factuality.retrieval import knowledge
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.retrieval.pages import title_key
from tests.hub.loopback import TOKEN, hub  # noqa: F401 - a fixture


ROWS = [
    ("Ulm", "Ulm is a city on the Danube.\nIt has a minster."),
    ("Café Noir", "A coffee."),
    ("John Smith (footballer)", "A footballer."),
    ("Polish", "A language."),
    ("polish", "A paste."),
    ("Mercury", "An element."),
    ("Mercury (planet)", "A planet."),
    ("Rock & Roll", "Music."),
    ("Bosnian–Serbian border", "A border."),
    ("东京", "日本的首都。"),
    ("(I Can't Get No) Satisfaction", "A song."),
]


# "titles": what is asked for, the page among ROWS that it finds, and the step that finds it; none where several pages have
# that name, or only another one.
CASES = json.loads((Path(__file__).resolve().parent.parent / "cases" / "retrieval.json").read_text(encoding="utf-8"))


@pytest.fixture
def base(tmp_path) -> KnowledgeBase:
    return KnowledgeBase.build(tmp_path / "kb.sqlite", ROWS)


def sqlite_file(path: Path, *statements: str, rows: Sequence[tuple[str, str]] = ()) -> Path:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    if rows:
        database.executemany("INSERT INTO documents VALUES (?, ?)", rows)
    database.commit()
    database.close()
    return path


def factscore_file(path: Path, pages: list[tuple[str, str]]) -> Path:
    """A file as FActScore's DocDB.build_db makes it."""
    return sqlite_file(path, "CREATE TABLE documents (title PRIMARY KEY, text);", rows=pages)


def pages_of(base: KnowledgeBase) -> list[tuple[str, str]]:
    return [(page.title, page.text) for page in base]


# Building


def test_every_source_gives_the_same_base(tmp_path, base):
    records = [{"name": title, "body": text, "other": 1} for title, text in ROWS]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "rows.jsonl").write_text(lines)
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write(lines)
    dataset = datasets.Dataset.from_list(records)
    dataset.to_parquet(tmp_path / "rows.parquet")
    dataset.to_csv(tmp_path / "rows.csv")
    dataset.save_to_disk(tmp_path / "saved")
    columns = {"title_column": "name", "text_column": "body"}
    sources = [
        (base, {}),
        (base.path, {}),
        (iter(ROWS), {}),
        (records, columns),
        (dataset, columns),
        (dataset.with_format("pandas"), columns),
        (dataset.to_iterable_dataset(), columns),
        *[(str(tmp_path / f"rows.{end}"), columns) for end in ("jsonl", "jsonl.gz", "parquet", "csv")],
        (tmp_path / "saved", columns),
    ]
    for number, (source, arguments) in enumerate(sources):
        built = KnowledgeBase.build(tmp_path / f"{number}.sqlite", source, show_progress=False, **arguments)
        assert pages_of(built) == ROWS
        assert built.fingerprint == base.fingerprint
    assert KnowledgeBase.build(tmp_path / "other.sqlite", ROWS[1:]).fingerprint != base.fingerprint


def test_duplicates_and_blanks_are_counted(tmp_path):
    rows = [("A", "one"), ("B", "b"), ("A", "two"), ("C", " \n"), ("D", None), (None, "x"), ("  ", "y")]
    rows.append(("A", ["3", "4"]))
    base = KnowledgeBase.build(tmp_path / "first.sqlite", rows)
    assert pages_of(base) == [("A", "one"), ("B", "b")]
    assert base.counts == {"documents": 2, "duplicates": 2, "empty": 2, "untitled": 2}
    assert KnowledgeBase(base.path).counts == base.counts and len(base) == 2
    joined = KnowledgeBase.build(tmp_path / "join.sqlite", rows, duplicates="join")
    assert pages_of(joined) == [("A", "one\ntwo\n3\n4"), ("B", "b")]
    assert joined.counts == base.counts
    with pytest.raises(DataError, match=r"list, row 3: the title 'A' comes twice"):
        KnowledgeBase.build(tmp_path / "error.sqlite", rows, duplicates="error")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "no page to put into a knowledge base: 0 rows"),
        ([("A", "")], "1 rows, all without title or text"),
        ([{"title": "A"}], r"row 1 has no column 'text' \(found \['title'\]\); name it with text_column"),
        ([("A", "a"), ("B", 3)], "row 2: text_column must name a column of texts, got 3"),
        ([("A", ["a", 1])], "row 1: text_column must name a column"),
        (["A"], "row 1: a row is a dict or a"),
        (7, "no rows can be read from a int"),
        ({"train": [], "test": []}, r"dict of \['test', 'train'\]; pass one"),
        ("nowhere.jsonl", "there is no file nowhere.jsonl"),
        (datasets.Dataset.from_dict({"title": ["A"], "body": ["a"]}), r"'text' \(found \['body', 'title'\]\)"),
        ("no/such", "cannot load the dataset 'no/such'"),
    ],
)
def test_bad_sources_are_named(tmp_path, source, message):
    with pytest.raises(DataError, match=message):
        KnowledgeBase.build(tmp_path / "kb.sqlite", source)
    assert {path.name for path in tmp_path.iterdir()} <= {".kb.sqlite.building.lock"}


def test_bad_files_are_named(tmp_path):
    (tmp_path / "mac.jsonl").write_bytes(b'{"title": "A", "text": "a"}\r{"title": "B", "text": "b"}\r')
    assert len(KnowledgeBase.build(tmp_path / "mac.sqlite", tmp_path / "mac.jsonl")) == 2
    (tmp_path / "bad.jsonl").write_text('{"title": "A", "text": "a"}\n{"title": \n')
    with pytest.raises(DataError, match=r"bad.jsonl, line 2 is not JSON"):
        KnowledgeBase.build(tmp_path / "kb.sqlite", tmp_path / "bad.jsonl")
    packed = gzip.compress(random.Random(0).randbytes(1000).hex().encode())
    for data in (b"no gzip", packed[:-6], packed[:100] + packed[200:]):
        (tmp_path / "bad.jsonl.gz").write_bytes(data)
        with pytest.raises(DataError, match=r"bad.jsonl.gz cannot be read|bad.jsonl.gz, line 1"):
            KnowledgeBase.build(tmp_path / "kb.sqlite", tmp_path / "bad.jsonl.gz")
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(DataError, match="notes.txt: files end in .jsonl"):
        KnowledgeBase.build(tmp_path / "kb.sqlite", tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="duplicates must be one of"):
        KnowledgeBase.build(tmp_path / "kb.sqlite", ROWS, duplicates="last")


def test_an_existing_file_is_replaced_only_on_request(base):
    with pytest.raises(DataError, match="is there already"):
        KnowledgeBase.build(base.path, [("A", "a")])
    new = KnowledgeBase.build(base.path, [("A", "a")], overwrite=True)
    assert pages_of(new) == [("A", "a")]
    assert base.page("Ulm").title == "Ulm"  # an open base goes on reading what it opened
    with ThreadPoolExecutor(1) as pool, pytest.raises(RetrievalError, match="was replaced while it was in use"):
        pool.submit(base.page, "Ulm").result()  # another thread would read the other file


def test_a_failing_source_leaves_nothing(tmp_path):
    def rows():
        yield from ROWS
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        KnowledgeBase.build(tmp_path / "kb.sqlite", rows())
    assert [path.name for path in tmp_path.iterdir()] == [".kb.sqlite.building.lock"]


KILLED = """
import sys, time
from hf_factuality.retrieval import knowledge_build
from hf_factuality.retrieval.knowledge import KnowledgeBase
knowledge_build._CACHE_KIB = 64  # so that much of it reaches the file
def rows():
    for number in range(1_000_000):
        yield f"Title {number}", "text " * 200
        if number == 5000:
            print("half", flush=True)
            time.sleep(600)
KnowledgeBase.build(sys.argv[1], rows(), overwrite=True)
"""


def test_a_killed_build_leaves_nothing_that_opens(tmp_path, base):
    before = pages_of(base)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(base.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "half\n"
        with pytest.raises(DataError, match=r"another process is building .*kb\.sqlite; wait"):
            KnowledgeBase.build(base.path, ROWS, overwrite=True)
        KnowledgeBase.build(base.path.with_name("kb"), ROWS)  # leaves the files of other names alone
        with pytest.raises(RetrievalError):
            KnowledgeBase(next(tmp_path.glob(".kb.sqlite.*.building")))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert pages_of(KnowledgeBase(base.path)) == before
    (left,) = tmp_path.glob(".kb.sqlite.*.building")
    assert left.stat().st_size > 2**20
    with pytest.raises(RetrievalError, match=r"no SQLite database|has no table|is (truncated|damaged)"):
        KnowledgeBase(left)
    assert pages_of(KnowledgeBase.build(base.path, ROWS[:2], overwrite=True)) == ROWS[:2]
    assert not left.exists()


MEASURED = """
import resource, sys
from hf_factuality.retrieval.knowledge import KnowledgeBase
text = "Some words of a page that is as long as others. " * 45
base = KnowledgeBase.build(sys.argv[1], ((f"Title {n * 7919 % 100_003}", f"{n} {text}") for n in range(int(sys.argv[2]))))
assert len(base) == int(sys.argv[2]) and base.page("title 7919").text.startswith("1 Some")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(tmp_path, rows: int) -> int:
    """Peak memory of a build, KiB."""
    command = [sys.executable, "-c", MEASURED, str(tmp_path / f"{rows}.sqlite"), str(rows)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_base(tmp_path):
    """100,000 pages, 220 MB of text: 64 MiB of page cache and some for the rest."""
    assert _peak(tmp_path, 100_000) - _peak(tmp_path, 100) < 100 * 1024


# Looking up


@pytest.mark.parametrize(("topic", "title", "match"), [*CASES["titles"], ("x" * 100_000, None, None)])
@pytest.mark.parametrize("made_by", ["us", "FActScore"])
def test_titles_are_looked_up_in_steps(tmp_path, made_by, topic, title, match):
    if made_by == "us":
        base = KnowledgeBase.build(tmp_path / "kb.sqlite", ROWS)
    else:
        rows = [(title.replace("&", "&amp;"), text) for title, text in ROWS]
        base = KnowledgeBase(factscore_file(tmp_path / "enwiki.db", rows))
    page = base.page(topic)
    if made_by == "FActScore" and topic == "Rock &amp; Roll":
        match = "exact"
    assert (page and page.title, page and page.match) == (title, match)
    if page:
        assert page.text == dict(ROWS)[title]


def test_steps_can_be_left_out(base):
    assert KnowledgeBase(base.path, lookup="exact").page("ulm") is None
    assert KnowledgeBase(base.path, lookup="normalized").page("ulm").title == "Ulm"
    assert KnowledgeBase(base.path, lookup="normalized").page("John Smith") is None
    with pytest.raises(ValueError, match="lookup must be one of"):
        KnowledgeBase(base.path, lookup="fuzzy")


def test_title_keys():
    assert title_key("Straße_(Ort)") == "strasse (ort)"
    assert title_key("  O’Neill \u00a0 ") == "o'neill"
    assert title_key("&quot;A&quot;–B") == '"a"-b'


def test_a_page_that_must_be_there(base):
    with pytest.raises(RetrievalError, match=r"kb.sqlite has no single page for the title 'Mercury \(god\)'"):
        base["Mercury (god)"]
    assert base["ulm"].title == "Ulm"


def test_what_utf8_cannot_hold_is_replaced(tmp_path):
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [("A\udce9", "a\ud800b"), ("NUL", "a\0b")])
    assert pages_of(base) == [("A\ufffd", "a\ufffdb"), ("NUL", "a\0b")]


# FActScore's files


def test_factscore_text_is_read_in_place(tmp_path):
    """Cut as its build_db does: the tags of each unit are tokens, and the stream of tokens is cut anywhere."""
    units = ["Simon &amp; G. met in 1953.", "They sang &lt;Bridge&gt; songs for many years together.", "It ended."]
    stream = [token for unit in units for token in ("<s>", *unit, "</s>")]  # characters for tokens
    cuts = [stream[start : start + 32] for start in range(0, len(stream), 32)]
    stored = "####SPECIAL####SEPARATOR####".join("".join(cut) for cut in cuts)
    path = factscore_file(tmp_path / "enwiki.db", [("Simon &amp; G.", stored), ("Plain", "No tags &amp; all.")])
    before = path.read_bytes()
    base = KnowledgeBase(path)
    page = base.page("Simon & G.")
    plain = [unit.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">") for unit in units]
    assert page.text == "\n".join(plain)
    texts = ["".join(cut).replace("</s>", "").replace("<s>", "\n").strip() for cut in cuts]
    texts = [text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">") for text in texts]
    assert [page.text[start:end] for start, end in page.chunks] == [text for text in texts if text]
    assert base.page("plain").text == "No tags &amp; all." and base.page("plain").chunks == ()
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["enwiki.db"]
    assert len(base) == 2 and base.counts == {}
    assert base.fingerprint == KnowledgeBase(path).fingerprint


def test_factscore_chunks_without_tags_are_units(tmp_path):
    path = factscore_file(
        tmp_path / "a.db", [("A", "One.####SPECIAL####SEPARATOR####Two.####SPECIAL####SEPARATOR#### ")]
    )
    page = KnowledgeBase(path).page("A")
    assert page.text.rstrip() == "One.\nTwo."
    assert [page.text[start:end] for start, end in page.chunks] == ["One.", "Two."]


def test_factscore_reads_our_files(base):
    """DocDB.get_text_from_title of FActScore asks this."""
    with sqlite3.connect(base.path) as database:
        assert database.execute("SELECT text FROM documents WHERE title = ?", ("Ulm",)).fetchall() == [(ROWS[0][1],)]


def test_a_file_without_index_warns(tmp_path, caplog):
    KnowledgeBase(sqlite_file(tmp_path / "slow.db", "CREATE TABLE documents (title, text)"))
    assert "no index on its titles" in caplog.text


# What is no knowledge base


TABLE, COLUMN = "CREATE TABLE pages (id, body)", "CREATE TABLE documents (title, body)"
FUTURE = "UPDATE hf_factuality SET value = '99' WHERE name = 'format'"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path, good: None, "there is no knowledge base"),
        (lambda path, good: path.mkdir(), "there is no knowledge base"),
        (lambda path, good: path.write_bytes(b""), "is empty; build one"),
        (lambda path, good: path.write_text("<!DOCTYPE html><title>Quota exceeded</title>"), "is no SQLite database"),
        (
            lambda path, good: sqlite_file(path, TABLE),
            r"no table documents\(title, text\), only the tables \['pages'\]",
        ),
        (lambda path, good: sqlite_file(path, COLUMN), r"only documents\(body, title\)"),
        (lambda path, good: path.write_bytes(good[:-4096]), r"is truncated: \d+ of \d+ bytes"),
        (lambda path, good: path.write_bytes(good[:50]), "is truncated"),
        (lambda path, good: path.write_bytes(good) and sqlite_file(path, FUTURE), "has format '99'"),
        (lambda path, good: path.write_bytes(good[:100] + b"\xff" * (len(good) - 100)), "is damaged"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, base, make, message):
    path = tmp_path / "a?b#c%20 file.sqlite"
    make(path, base.path.read_bytes())
    with pytest.raises(RetrievalError, match=message) as caught:
        KnowledgeBase(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_names_that_are_no_uri(tmp_path):
    path = tmp_path / "a?mode=rw#c%20 é.sqlite"
    assert KnowledgeBase.build(path, ROWS).page("Ulm") is not None


def test_a_locked_file_says_so(base, monkeypatch):
    monkeypatch.setattr(knowledge, "LOCK_TIMEOUT", 0.05)
    writer = sqlite3.connect(base.path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(RetrievalError, match="locked by a program that writes to it"):
            KnowledgeBase(base.path)
    finally:
        writer.close()
    assert KnowledgeBase(base.path).page("Ulm") is not None


def test_a_file_left_in_the_middle_of_a_write_says_so(tmp_path):
    path = factscore_file(tmp_path / "a.db", [("A", "a" * 5000)])
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO documents VALUES (?, ?)", ((str(n), "b" * 5000) for n in range(50)))
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    shutil.copy(f"{path}-journal", f"{copy}-journal")
    writer.close()
    with pytest.raises(RetrievalError, match=r"in the middle of a write|is truncated"):
        KnowledgeBase(copy)


def test_it_is_opened_for_reading_only(base):
    with pytest.raises(RetrievalError, match="readonly"):
        base._query("DELETE FROM documents")


def test_it_may_be_closed_and_opens_again(base):
    connection = base._local.handle.connection
    base.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    assert base.page("Ulm").title == "Ulm"


# Several readers


def _lookups(base: KnowledgeBase) -> list[str]:
    return [base.page(title).text for title, _ in ROWS * 20]


def test_threads_and_processes_read_at_once(base):
    expected = [text for _, text in ROWS * 20]
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(_lookups, [base] * 32))
    assert _lookups(pickle.loads(pickle.dumps(base))) == expected
    with multiprocessing.get_context("fork").Pool(3) as pool:  # each child holds its parent's connection
        assert all(found == expected for found in pool.map(_lookups, [base] * 6))
    assert _lookups(base) == expected


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_threads_give_their_connections_back(base):
    for _ in range(300):
        thread = threading.Thread(target=base.page, args=("Ulm",))
        thread.start()
        thread.join()
    time.sleep(0.01)
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert sum(base.path.name in os.readlink(file) for file in files if os.path.islink(file)) < 20


# The Hub and the command


def test_files_come_from_and_go_to_the_hub(base, hub, monkeypatch):  # noqa: F811
    monkeypatch.delenv("HF_TOKEN")
    commit = base.push_to_hub("someone/kb", token=TOKEN).oid
    repo = hub.repos["dataset", "someone/kb"]
    assert repo.private and len(repo.log) == 2 and repo.files() == {"kb.sqlite": base.path.read_bytes()}
    repo.refs["v1"] = commit
    repo.commit("main", "emptied", {})

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found = KnowledgeBase("someone/kb", "kb.sqlite", revision="v1")
    assert pages_of(found) == ROWS
    source = {"knowledge": "someone/kb", "filename": "kb.sqlite", "revision": commit, "lookup": "parentheses"}
    assert found.config() == pickle.loads(pickle.dumps(found)).config() == source
    assert base.config() == {"knowledge": str(base.path), "lookup": "parentheses"}


def test_the_command(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))

    def run(*arguments) -> int:
        args = parser.parse_args(["index", *map(str, arguments)])
        return args.run(args)

    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"t": title, "text": text}) + "\n" for title, text in ROWS))
    out = tmp_path / "new" / "kb.sqlite"
    assert run(source, "--out", out, "--title_column", "t", "--bm25") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["documents"] == len(ROWS) and found["path"] == str(out) and found["passages"] == len(ROWS)
    assert (out.parent / "kb.sqlite.bm25" / "retriever.json").exists()
    with pytest.raises(DataError, match="`overwrite=True`"):
        run(source, "--out", out, "--title_column", "t")
    assert run(out, "--bm25", "--overwrite") == 0  # the index of a base that is there
    with pytest.raises(DataError, match="--out FILE"):
        run(source, "--bm25")
