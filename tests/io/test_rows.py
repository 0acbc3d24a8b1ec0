"""The one reader of rows: expectations are the rows as they were written."""

import json
import tracemalloc

import pytest

from hf_factuality.errors import DataError
from hf_factuality.io.rows import LineError, read_lines, read_rows


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
        ("a.csv", b"a", "must be a .jsonl, .json or .parquet file"),
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
    path.write_bytes((json.dumps({"text": "x" * 1000}) + "\n").encode() * 20_000)  # 20 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
