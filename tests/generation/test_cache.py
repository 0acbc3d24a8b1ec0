import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_factuality.generation.cache import AnswerCache, content_key, default_cache_path


def test_what_is_put_is_found_again(tmp_path):
    path = tmp_path / "folder" / "answers.sqlite"
    cache = AnswerCache(path)
    assert cache.get("a") is None and len(cache) == 0
    value = {"text": "\ud800 \x00 你好", "logprobs": [["a", [["a", -0.5]]]], "finish_reason": None}
    assert cache.put("a", value)
    assert cache.put("b", {})
    assert cache.get("a") == value and cache.get("b") == {}
    assert cache.get_many(["b", "c", "a", "b"]) == {"a": value, "b": {}}
    assert cache.put("a", {"text": "new"})
    assert AnswerCache(path).get("a") == {"text": "new"} and len(cache) == 2
    cache.close()
    assert cache.get("b") == {}


def test_thousands_of_keys(tmp_path):
    cache = AnswerCache(tmp_path / "c")
    keys = [f"k{i}" for i in range(2500)]
    for key in keys:
        cache.put(key, {"key": key})
    assert cache.get_many(keys) == {key: {"key": key} for key in keys}


def test_values_must_be_json(tmp_path):
    cache = AnswerCache(tmp_path / "c")
    with pytest.raises(TypeError):
        cache.put("a", {"x": object()})
    with pytest.raises(ValueError):
        cache.put("a", {"x": float("nan")})
    with pytest.raises(ValueError):
        AnswerCache(tmp_path / "c", max_bytes=0)


def test_keys():
    # sha256 of '[1,{"a":[1,"\\u00e9"],"b":null}]', by sha256sum.
    assert (
        content_key({"b": None, "a": (1, "é")}) == "769ecf9a5599ff8015acbb6e4803733496b813ba13cddff1aebc66dd5f63f2c6"
    )
    assert content_key({"a": 1}) != content_key({"a": "1"}) != content_key({"a": [1]})
    assert content_key({"a": "\ud800"}) != content_key({"a": "\ud801"})
    with pytest.raises(TypeError):
        content_key({"a": object()})
    with pytest.raises(ValueError):
        content_key({"a": float("inf")})


def test_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_FACTUALITY_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert default_cache_path() == tmp_path / "hf_factuality" / "answers.sqlite"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache_path() == tmp_path / "x" / "huggingface" / "hf_factuality" / "answers.sqlite"
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "mine"))
    assert AnswerCache().path == tmp_path / "mine"
    (tmp_path / "worlds").mkdir()  # a folder, as worlds take it
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "worlds"))
    assert default_cache_path() == tmp_path / "worlds" / "answers.sqlite"


WRITER = """
import sys
from hf_factuality.generation.cache import AnswerCache
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
cache = AnswerCache(path)
for i in range(count):
    cache.put(f"{name}-{i}", {"by": name, "i": i})
    cache.put(f"shared-{i}", {"i": i})
    found = cache.get(f"shared-{i // 2}")
    assert found == {"i": i // 2}, found
    print(i, flush=True)
"""


def start(path, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_share_a_file(tmp_path):
    path = tmp_path / "c"
    writers = [start(path, name, 200) for name in "abcd"]
    for writer in writers:
        _, errors = writer.communicate(timeout=600)
        assert writer.returncode == 0 and not errors, errors
    cache = AnswerCache(path)
    assert len(cache) == 5 * 200
    for name in "abcd":
        assert cache.get_many([f"{name}-{i}" for i in range(200)]) == {
            f"{name}-{i}": {"by": name, "i": i} for i in range(200)
        }


def test_a_killed_process_loses_nothing_that_it_had_put(tmp_path):
    path = tmp_path / "c"
    writer = start(path, "a", 100_000)
    for _ in range(50):
        said = writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    rest, _ = writer.communicate()
    whole = [line for line in (said + rest).splitlines(keepends=True) if line.endswith("\n")]
    done = int(whole[-1]) + 1
    assert done >= 50
    cache = AnswerCache(path)
    assert len(cache.get_many([f"a-{i}" for i in range(done)])) == done
    assert cache.put("more", {}) and cache.get("more") == {}


def test_threads_share_an_object(tmp_path):
    cache = AnswerCache(tmp_path / "c")

    def work(name):
        return all(cache.put(f"{name}{i}", {"i": i}) and cache.get(f"{name}{i}") == {"i": i} for i in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, "abcd"))
    assert len(cache) == 800


@pytest.mark.parametrize(
    "damage", ["value = 'x' || value", "value = substr(value, 2)", "checksum = 1", "value = x'ff00'", "value = 'null'"]
)
def test_a_damaged_entry_is_a_miss(tmp_path, damage):
    cache = AnswerCache(tmp_path / "c")
    cache.put("a", {"text": "a"})
    cache.put("b", {"text": "b"})
    with sqlite3.connect(tmp_path / "c") as database:
        database.execute(f"UPDATE answers SET {damage} WHERE key = 'a'")
    assert cache.get_many(["a", "b"]) == {"b": {"text": "b"}}
    cache.put("a", {"text": "again"})
    assert cache.get("a") == {"text": "again"}


def test_a_checked_value_that_is_no_object_is_a_miss(tmp_path):
    cache = AnswerCache(tmp_path / "c")
    cache.put("a", {})
    for text, checksum in (("[1]", 1898769780), ("{", 3825726483)):  # CRC from the trailer of gzip
        with sqlite3.connect(tmp_path / "c") as database:
            database.execute("UPDATE answers SET value = ?, checksum = ?", (text, checksum))
        assert cache.get("a") is None


@pytest.mark.parametrize("content", [b"not a database at all, only text that is long enough", os.urandom(20_000)])
def test_an_unreadable_file_is_set_aside(tmp_path, content, caplog):
    path = tmp_path / "c"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        cache = AnswerCache(path)
        assert cache.get("a") is None and cache.put("a", {"x": 1}) and cache.get("a") == {"x": 1}
    assert "set aside" in caplog.text
    (aside,) = tmp_path.glob("c.corrupt-*")
    assert aside.read_bytes() == content


def test_random_damage_never_raises_and_never_gives_a_wrong_value(tmp_path):
    source = tmp_path / "c"
    cache = AnswerCache(source)
    for i in range(300):
        cache.put(f"k{i}", {"i": i, "text": "x" * (i % 50)})
    with sqlite3.connect(source) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cache.close()
    content = source.read_bytes()
    generator = random.Random(0)
    for trial in range(40):
        damaged = bytearray(content)
        for _ in range(20):
            position = generator.randrange(len(damaged))
            damaged[position] = generator.randrange(256)
        if trial % 4 == 0:
            damaged = damaged[: generator.randrange(len(damaged))]
        path = tmp_path / f"d{trial}"
        path.write_bytes(damaged)
        broken = AnswerCache(path)
        for key, value in broken.get_many([f"k{i}" for i in range(300)]).items():
            assert value == {"i": int(key[1:]), "text": "x" * (int(key[1:]) % 50)}
        broken.put("new", {"new": 1})
        assert broken.get("new") in (None, {"new": 1})
        broken.close()


def test_size_is_bounded_and_the_oldest_go_first(tmp_path):
    path = tmp_path / "c"
    cache = AnswerCache(path, max_bytes=400_000)
    for i in range(2000):
        cache.put(f"k{i}", {"text": "x" * 1000})
    assert path.stat().st_size < 1_000_000
    assert 100 < len(cache) < 800
    assert cache.get("k1999") is not None and cache.get("k0") is None


def test_no_place_to_write_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = AnswerCache(tmp_path / "file" / "c")
    with caplog.at_level(logging.WARNING):
        assert cache.put("a", {}) is False and cache.get("a") is None and len(cache) == 0
    assert len(caplog.records) == 1


def test_a_locked_file_waits(tmp_path):
    cache = AnswerCache(tmp_path / "c")
    cache.put("a", {})
    holder = sqlite3.connect(tmp_path / "c", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    released = []
    threading.Timer(0.3, lambda: [released.append(True), holder.execute("COMMIT")]).start()
    assert cache.put("b", {}) and released


def test_the_file_holds_no_prompts(tmp_path):
    cache = AnswerCache(tmp_path / "c")
    cache.put(content_key({"messages": "private question"}), {"text": "yes"})
    cache.close()
    assert b"private question" not in Path(tmp_path / "c").read_bytes()
    assert json.dumps({"text": "yes"}, separators=(",", ":")).encode() in Path(tmp_path / "c").read_bytes()
