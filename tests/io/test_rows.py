"""The one reader of rows: expectations are the rows as they were written."""

import csv
import io
import json
import pickle
import tracemalloc

import pytest

from hf_factuality.errors import DataError
from hf_factuality.io.rows import LineError, json_list, read_lines, read_rows


ROWS = [{"text": "a\u2028b\x85c"}, {"text": "Straße", "n": None}, ["list"], 3]


def test_json_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "a.JSONL"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_bytes(("\ufeff\n" + "\r\n  \n".join(lines)).encode())
    assert list(read_rows(path)) == list(zip((2, 4, 6, 8), ROWS, strict=True))
    with path.open("rb") as file:
        places = [offset for _, offset, _ in read_lines(file, "a")]
    data = path.read_bytes()
    assert [json.loads(data[place:].split(b"\n")[0]) for place in places] == ROWS


@pytest.mark.parametrize("start", ["", "\ufeff", " \n"])
def test_a_json_file_holds_a_list_or_lines(tmp_path, start):
    path = tmp_path / "a.json"
    path.write_text(start + json.dumps(ROWS, indent=1), encoding="utf-8")
    assert list(read_rows(path)) == list(enumerate(ROWS))
    path.write_text(start.strip() + '{"a": 1}\n{"a": 2}', encoding="utf-8")
    assert list(read_rows(path)) == [(1, {"a": 1}), (2, {"a": 2})]


def test_half_surrogates_are_read_unless_that_is_refused(tmp_path):
    rows = [{"text": "a\ud83d"}, {"text": "\U0001f600"}]
    for name, data in {
        "a.jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "a.json": json.dumps(rows, ensure_ascii=False),
    }.items():
        (tmp_path / name).write_bytes(data.encode("utf-8", "surrogatepass"))
        assert [row for _, row in read_rows(tmp_path / name)] == rows
        with pytest.raises(DataError, match="is not UTF-8 .invalid continuation byte at byte"):
            list(read_rows(tmp_path / name, strict=True))


def test_lines_may_end_as_those_of_an_old_mac(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\r\r{"a":\r\n2}'.replace(b"\r\n", b" ") + b'\r\n{"b":\r3}\r\n{"b": 4}\r{}')
    expected = [(1, {"a": 1}), (3, {"a": 2}), (4, {"b": 3}), (5, {"b": 4}), (6, {})]
    assert list(read_rows(path)) == expected
    with path.open("rb") as file:
        for _, offset, row in list(read_lines(file, "a")):
            file.seek(offset)
            assert next(read_lines(file, "a"))[2] == row
    path.write_bytes(b'{"a": 1}\r{"a": }\r')
    with pytest.raises(LineError, match="line 2 is not JSON"):
        list(read_rows(path))


def test_white_space_is_passed_over(tmp_path):
    (tmp_path / "a.jsonl").write_text('{}\n\xa0\n{"a": 1}\n', encoding="utf-8")
    assert list(read_rows(tmp_path / "a.jsonl")) == [(1, {}), (3, {"a": 1})]
    (tmp_path / "a.json").write_text("\ufeff" + " \n" * 100_000 + "[{}]", encoding="utf-8")
    assert list(read_rows(tmp_path / "a.json")) == [(0, {})]


def test_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"n": range(1000), "texts": [["a"]] * 1000})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_rows(tmp_path / "a.parquet")) == list(enumerate(table.to_pylist()))
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(DataError, match="b.parquet is no Parquet file"):
        list(read_rows(tmp_path / "b.parquet"))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{}\n{"a": \n', r"a.jsonl, line 2 is not JSON: Expecting value: line 1 column \d"),
        ("a.jsonl", b"[{},\n{}]", "line 1 is not JSON: .*one object per line, not an array"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON: "),
        ("a.jsonl", b'\n"\xff"', "line 2 is not UTF-8 .invalid start byte at byte 1.; save the file as UTF-8"),
        ("a.json", b"[{},", "a.json is not JSON: "),
        ("a.xml", b"a", "must be a .jsonl, .ndjson, .json, .csv, .tsv or .parquet file"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3 has 3 cells, and the header has 2"),
        ("a.csv", b'a,b\n"1\n2",2\n1\n', "line 4 has 1 cells"),
        ("a.csv", b'a,b\n1,2\n"3,4\n5,6\n', "line 3 is no row of CSV"),
        ("a.csv", b"a,a\n1,2\n", "line 1: two columns have the name 'a'"),
        ("a.csv", "a\nMüller\n".encode("latin-1"), "line 2 is not UTF-8"),
        ("a.csv", "a\nx\n".encode("utf-16"), "line 1 is not UTF-8 .it begins as UTF-16"),
        ("a.csv", b"PK\x03\x04", "workbook"),
        ("a.jsonl", b"\x1f\x8b\x08", "is compressed; unpack it"),
        ("a.parquet", b"", "a.parquet is no Parquet file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / name))


def test_the_error_of_a_line_can_be_told_in_other_words(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"{}\nno\n")
    with pytest.raises(LineError) as caught:
        list(read_rows(tmp_path / "a.jsonl"))
    assert (caught.value.number, caught.value.reason[:15]) == (2, "Expecting value")


def test_lines_are_read_one_by_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes((json.dumps({"text": "x" * 1000}) + "\n").encode() * 5_000)  # 5 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path)) == 5_000
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def written(rows, **form):
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, rows[0], **form)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


TEXTS = ['a, "b"; c', "a\nb\r\nc", "[1, 2]", "1.0", "北京\u2028", "x" * 300_000, " a ", "null"]


@pytest.mark.parametrize(
    ("name", "form", "start"),
    [
        ("a.csv", {}, b""),
        ("a.CSV", {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}, b"\xef\xbb\xbf"),
        ("a.csv", {"delimiter": ";"}, b""),
        ("a.csv", {"delimiter": ";"}, b"sep=;\r\n"),
        ("a.csv", {"lineterminator": "\r"}, b""),
        ("a.tsv", {"delimiter": "\t"}, b""),
    ],
)
def test_tables(tmp_path, name, form, start):
    rows = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    (tmp_path / name).write_bytes(start + written([*rows, {"id": "z", "text": ""}], **form))
    found = list(read_rows(tmp_path / name))
    assert [row for _, row in found] == [*rows, {"id": "z", "text": None}]
    # The header is line 1, and the second row is of three lines.
    assert [number - found[0][0] for number, _ in found[:4]] == [0, 1, 4, 5]
    assert found[0][0] == 2 + start.count(b"\n")


def test_a_cell_may_hold_a_list(tmp_path):
    (tmp_path / "a.csv").write_bytes(written([{"a": json.dumps(["x, y", "z"]), "b": "[x]"}]))
    ((_, row),) = read_rows(tmp_path / "a.csv")
    assert (json_list(row["a"]), json_list(row["b"]), json_list('["x"]')) == (["x, y", "z"], "[x]", '["x"]')
    assert row["a"] == '["x, y", "z"]' and pickle.loads(pickle.dumps(row)) == row


def test_what_is_not_there_is_none_in_every_format(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"a": ["x", None], "n": [1.5, float("nan")]})
    pyarrow.parquet.write_table(table, tmp_path / "a.data")  # told by its first bytes
    (tmp_path / "a.jsonl").write_text('{"a": "x", "n": 1.5}\n{"a": null, "n": NaN}\n')
    (tmp_path / "a.csv").write_text("a,n\nx,1.5\n,\n")
    assert [row for _, row in read_rows(tmp_path / "a.data", any_name=True)] == [
        {"a": "x", "n": 1.5},
        {"a": None, "n": None},
    ]
    assert [row for _, row in read_rows(tmp_path / "a.jsonl")] == [{"a": "x", "n": 1.5}, {"a": None, "n": None}]
    assert [row for _, row in read_rows(tmp_path / "a.csv")] == [{"a": "x", "n": "1.5"}, {"a": None, "n": None}]


def test_tables_are_read_row_by_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + (b"x" * 1000 + b",y\n") * 5_000)  # 5 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path)) == 5_000
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
