"""The file of lines that every run goes on from, wherever it was killed."""

import json

import pytest

from hf_factuality.errors import DataError
from hf_factuality.generation.journal import LineFile, Lines, written_ids


ROWS = [{"id": "a", "items": ["one\ud800", None]}, {"id": "b", "items": ["玛丽"]}, {"id": "a", "items": ["again"]}]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]  # in ASCII, as earlier versions wrote them


def test_a_run_goes_on_wherever_it_was_killed(tmp_path):
    """The file is cut at every byte: the whole lines are found, and what is added then stands on a line of its own."""
    whole, path = b"".join(LINES), tmp_path / "r.jsonl"
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        known = {
            row["id"]: row["items"]
            for row, at in zip(ROWS, (1, 2, 3), strict=True)
            if end >= len(b"".join(LINES[:at]))
        }
        assert written_ids(path) >= set(known)
        file = LineFile(path)
        assert {key: file[key] for key in known} == known and len(file) == len(known)
        file.add([("c", ["three\ud800"]), ("d", [])])
        assert file["c"] == ["three\ud800"] and file["d"] == [] and "e" not in file
        file.close()
        again = LineFile(path)
        assert {key: again[key] for key in known} == known and again["c"] == ["three\ud800"]
        again.close()


@pytest.mark.parametrize("line", [b"x\n", b"[1]\n", b'{"ID": 3}\n', b"\n", b"7\n", b"\xff\n"])
def test_a_foreign_line_is_named_and_kept(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_bytes(LINES[0] + line)
    with pytest.raises(DataError, match="r.jsonl, line 2 is no answer .* move the file aside or use another `out`"):
        LineFile(path)
    assert path.read_bytes() == LINES[0] + line


def test_what_a_thread_adds_later_is_refused(tmp_path):
    lines = Lines(tmp_path / "r.jsonl", lambda row, place: None)
    assert lines.empty and lines.add([{"n": 1}, {"n": 2}]) == [0, 9] and not lines.empty
    assert lines.read(9) == {"n": 2}
    lines.close()
    with pytest.raises(ValueError, match="closed"):
        lines.add([{"n": 3}])
