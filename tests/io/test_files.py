"""Files and folders that are whole, or as they were before."""

import ast
import os
import stat
from pathlib import Path

import pytest

import hf_factuality
from hf_factuality.io.files import last_name, sync, whole_folder, write_atomically, writing


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "Straße\r\n")
    assert path.read_bytes() == "Straße\r\n".encode()
    write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    mask = os.umask(0o027)
    try:
        write_atomically(path, b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), writing(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "before"
        raise KeyboardInterrupt
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a.txt"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "other").write_text("other")
    (tmp_path / "link").symlink_to("other")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "other").read_text() == "other" and not (tmp_path / "link").is_symlink()


def test_a_folder_is_there_whole_or_not(tmp_path):
    folder = tmp_path / "new" / "folder"
    with pytest.raises(ZeroDivisionError), whole_folder(folder) as partial:
        (partial / "a").write_text("half")
        raise ZeroDivisionError
    assert os.listdir(folder.parent) == []
    folder.mkdir()  # an empty one is no hindrance
    with whole_folder(folder) as partial:
        (partial / "a").write_text("whole")
        assert not any(folder.iterdir())
    assert (folder / "a").read_text() == "whole" and os.listdir(folder.parent) == ["folder"]
    with pytest.raises(OSError), whole_folder(folder):
        pass
    assert (folder / "a").read_text() == "whole" and os.listdir(folder.parent) == ["folder"]


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_folder_is_replaced_when_the_new_one_is_on_the_disk(tmp_path, monkeypatch, failing):
    folder, rename = tmp_path / "folder", os.rename
    folder.mkdir()
    (folder / "old").write_text("before")

    def fails(*args):
        if failing == "rename" and args[1] != folder or args[0] == folder:
            return rename(*args)
        if failing == "rename" and (Path(args[0]) / "old").exists():
            return rename(*args)  # back
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fails)
        with pytest.raises(OSError), whole_folder(folder, overwrite=True) as partial:
            (partial / "new").write_text("after")
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(folder) == ["old"]
    with whole_folder(folder, overwrite=True) as partial:
        (partial / "new").write_text("after")
        assert os.listdir(folder) == ["old"]
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(folder) == ["new"]
    folder = tmp_path / "file"
    folder.write_text("a file")
    with whole_folder(folder, overwrite=True) as partial:
        (partial / "new").write_text("after")
    assert os.listdir(folder) == ["new"] and len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("folder", [True, False])
def test_a_disk_that_knows_no_sync_is_taken_as_it_is(tmp_path, monkeypatch, folder):
    import errno

    path = tmp_path if folder else tmp_path / "a"
    (tmp_path / "a").touch()
    handles = []

    def fails(number):
        def fsync(handle):
            handles.append(handle)
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fails(errno.EINVAL))
    sync(path)
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        sync(path)
    for handle in handles:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


# What is written in its own way, and why.
OWN_WAYS = {
    "generation/cache.py": "a damaged database is put aside",
    "generation/journal.py": "lines are added",
    "checkpoints/write.py": "one process at a time, and what a killed one left is taken away",
    "metrics/install.py": "`evaluate` passes over the name of the folder that is being made",
    "trainers/_checkpoints.py": "several processes write one folder",
}


def test_nothing_else_is_written_in_a_way_of_its_own():
    package = Path(hf_factuality.__file__).parent
    found, names = set(), {"os.replace", "os.rename", "os.fsync", "tempfile.mkstemp", "tempfile.mkdtemp"}
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in names):
            continue  # most files are not parsed
        nodes = list(ast.walk(ast.parse(text)))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        if calls & names:
            found.add(path.relative_to(package).as_posix())
    assert "io/files.py" in found and found - {"io/files.py"} <= set(OWN_WAYS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/model/", "model"),
        ("~/model", "model"),
        (r"..\data\rows.jsonl", "rows.jsonl"),
        (r"C:\Users\me\model", "model"),
        ("org/model", "org/model"),
        ("a sentence / with a slash", "a sentence / with a slash"),
        ("/first line\nsecond", "/first line\nsecond"),
    ],
)
def test_of_a_path_the_last_name_is_shown(text, shown):
    assert last_name(text) == shown
