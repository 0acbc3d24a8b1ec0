"""A secret is found wherever it stands in a file, and what cannot be searched is named; the rest is searched all the same."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import re
import sqlite3
import sys
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.cards.check import tells, validate_card
from hf_factuality.hub.push import plan_push, push
from hf_factuality.io import unpack
from hf_factuality.io.secrets import find_secrets, search_file
from hf_factuality.io.upload import publish
from tests.hub.push_inputs import write, write_model
from tests.hub.secret_inputs import DIGITS, HEX, LETTERS, WORD, _joined, _some
from tests.trainers.test_mask_dpo_trainer import MaskDPOTrainer
from tests.trainers.test_mask_dpo_trainer import make as make_trainer


REPO = "someone/x"
KINDS = {
    "groq": _joined("gsk_", _some(WORD, 52)),
    "hugging face": _joined("hf_", _some(LETTERS, 34)),
    "npm": _joined("npm_", _some(WORD, 36)),
    "apify": _joined("apify_api_", _some(WORD, 36)),
    "circleci": _joined("CCIPAT_", _some(WORD, 22), "_", _some(HEX, 40)),
    "sentry": _joined("sntryu_", _some(HEX, 64)),
    "rubygems": _joined("rubygems_", _some(HEX, 48)),
    "tailscale": _joined("tskey-api-", _some(WORD, 12), "-", _some(WORD, 20)),
    "pulumi": _joined("pul-", _some(HEX, 40)),
    "databricks": _joined("dapi", _some(HEX, 32)),
    "mongodb": _joined("mdb_sa_sk_", _some(WORD, 40)),
    "notion": _joined("ntn_", _some(DIGITS, 11), _some(WORD, 35)),
}
TOKEN = KINDS["npm"](random.Random(3))


def _zip(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def _tar(files, mode="w"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _compressed(codec, data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _table(secret):
    # The cells of Arrow stand one behind the other, with nothing between them.
    return pa.table({"n": list(range(9)), "text": [*["abcX"] * 4, secret, *["Yz"] * 4]})


def _arrow(table, codec=None, stream=False):
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return file.getvalue()


def _parquet(table, codec):
    file = io.BytesIO()
    parquet.write_table(table, file, compression=codec)
    return file.getvalue()


def _sqlite(name, *values):
    connection = sqlite3.connect(":memory:")
    connection.execute(f'CREATE TABLE t (a TEXT, "{name}" TEXT, c TEXT)')
    for value in values:
        connection.execute("INSERT INTO t VALUES ('abcX', ?, 'Yz')", (value,))
    connection.commit()
    return connection.serialize()


def _torch(secret):
    file = io.BytesIO()
    torch.save({"weights": torch.zeros(3), "args": {"note": secret}, "next": "tail"}, file)
    return file.getvalue()


def _npz(secret):
    file = io.BytesIO()
    np.savez_compressed(file, numbers=np.arange(9), texts=np.array(["x" * len(secret), secret, "y" * len(secret)]))
    return file.getvalue()


def _one_bad(secret):
    packed = bytearray(_zip({"a.txt": random.Random(0).randbytes(3000), "b.txt": secret, "c.txt": "z"}))
    packed[200:300] = bytes(100)
    return bytes(packed)


WRAPPINGS = {
    "text": lambda s: f"some words {s} and more\n".encode(),
    "table of commas": lambda s: f"a,{s},b\n".encode(),
    "brackets": lambda s: f"f({s})<br>".encode(),
    "JSON": lambda s: json.dumps({"a": [1, {"value": s}]}).encode(),
    "JSON in JSON": lambda s: json.dumps({"log": json.dumps({"m": f"first\n{s}\tnext"})}).encode(),
    "colours": lambda s: f"\x1b[1m\x1b[32m{s}\x1b[0m\n".encode(),
    "colours in a notebook": lambda s: json.dumps({"outputs": [{"text": [f"\x1b[32m{s}\x1b[0m\n"]}]}).encode(),
    "address": lambda s: f"https://a.b/c?x%3D{s}%26y".encode(),
    "Arrow": lambda s: _arrow(_table(s)),
    "Arrow, stream": lambda s: _arrow(_table(s), stream=True),
    "Arrow, lz4": lambda s: _arrow(_table(s), "lz4"),
    "Arrow, zstd": lambda s: _arrow(_table(s), "zstd"),
    "Parquet, brotli": lambda s: _parquet(_table(s), "brotli"),
    "name of a column": lambda s: _parquet(pa.table({s: [1, 2]}), "zstd"),
    "name of a column of Arrow": lambda s: _arrow(pa.table({"a": pa.array([{s: 1}])}), "lz4"),
    "row of SQLite": lambda s: _sqlite("b", "zzz", s),
    "column of SQLite": lambda s: _sqlite(s, "x"),
    "blob of SQLite": lambda s: _sqlite("b", gzip.compress(s.encode())),
    "pickle 0": lambda s: pickle.dumps(["before", s, "after"], 0),
    "pickle 2": lambda s: pickle.dumps({"a": "before", "k": s, "z": "after"}, 2),
    "pickle 4": lambda s: pickle.dumps({"a": "before", "k": s, "z": "after"}, 4),
    "torch": _torch,
    "npz": _npz,
    "length before a text": lambda s: b"\0\1\x12" + bytes([len(s)]) + s.encode() + b"\x1a\x03abc",
    "zip in tar": lambda s: _tar({"x/a.zip": _zip({"b.txt": s})}),
    "tar.gz": lambda s: _tar({"x/a.txt": s.encode()}, "w:gz"),
    "behind gzip": lambda s: gzip.compress(b"hello\n" * 30) + b"behind " + s.encode(),
    "gzip behind gzip": lambda s: gzip.compress(b"hello\n" * 30) + gzip.compress(s.encode()),
    "zip behind gzip": lambda s: gzip.compress(b"hello\n" * 30) + _zip({"a": s}),
    "behind zip": lambda s: _zip({"a": "hello"}) + b"behind " + s.encode(),
    "comment of a zip": lambda s: _zip({"a": "hello"})[:-2] + bytes([len(s), 0]) + s.encode(),
    "bzip2 in xz in zstd": lambda s: _compressed("zstd", lzma.compress(bz2.compress(s.encode()))),
    "lz4": lambda s: _compressed("lz4", s.encode()),
    "name in a zip": lambda s: _zip({f"d/{s}.txt": "x"}),
    "name in a tar": lambda s: _tar({f"d/{s}.txt": b"x"}),
    "beside what is damaged": _one_bad,
    "gzip, cut off": lambda s: gzip.compress(f"{s}\n".encode() + random.Random(0).randbytes(99_999))[:50_000],
    "UTF-16 in a binary file": lambda s: bytes(range(256)) * 9 + f"x {s} y".encode("utf-16-le") + bytes(range(256)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_secret_is_found_however_it_is_wrapped(tmp_path, wrapping):
    for kind, make in KINDS.items():
        secret = make(random.Random(f"{kind} {wrapping}"))
        data = WRAPPINGS[wrapping](secret)
        (tmp_path / kind).write_bytes(data)
        for file in (data, tmp_path / kind):
            assert any(one.text in secret and len(one.text) > 20 for one in search_file(file)), kind


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_same_without_a_secret_is_harmless(wrapping):
    found = search_file(WRAPPINGS[wrapping]("plain-words-and-nothing-else-in-a-row"))
    assert all(one.problem for one in found)
    assert bool(found) is (wrapping in ("beside what is damaged", "gzip, cut off"))


@pytest.mark.parametrize(
    "text",
    [
        "sha256={}prf_{}\n",  # of the list of files of a package
        "integrity sha512-{}/hf_{}==",
        "google8protobuf8express_ion_function{}",
        "our_transformers_hf_{}ForSequenceClassificationModel",
        "https://a.b/task-{}-{}",
    ],
)
def test_what_begins_like_a_token_is_none_in_a_hash_or_a_name(text):
    rng = random.Random(0)
    filled = [
        text.replace("{}", "%s") % tuple(_some(WORD, 30)(rng) for _ in range(text.count("{}"))) for _ in range(50)
    ]
    filled = [re.sub(r"hf_\w+(?=For)", "hf_Distilbert", one) for one in filled]
    assert [one for one in filled if find_secrets(one)] == []


# ---- what cannot be searched


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost():
    (bad, secret) = sorted(search_file(_one_bad(TOKEN)), key=lambda one: one.place)
    assert bad.place == "a.txt" and bad.problem and not bad.text
    assert (secret.place, secret.line, secret.text) == ("b.txt", 1, TOKEN)
    nested = _tar(
        {"x/a.7z": b"7z\xbc\xaf\x27\x1c" + bytes(99), "x/b.zip": _one_bad(TOKEN), "x/c.txt": TOKEN[::-1].encode()}
    )
    assert {one.place: bool(one.problem) for one in search_file(nested)} == {
        "x/a.7z": True, "x/b.zip/a.txt": True, "x/b.zip/b.txt": False,
    }  # fmt: skip


def test_a_bomb_is_bounded(monkeypatch):
    monkeypatch.setattr(unpack, "_SPARE", 1 << 20)
    bomb = gzip.compress(bytes(50_000_000))
    assert 200 * len(bomb) < 50_000_000
    (found,) = search_file(_zip({"a.gz": bomb}))
    assert found.place == "a.gz" and "unpacks to more than" in found.problem
    data = TOKEN.encode()
    for _ in range(unpack.DEPTH):
        data = gzip.compress(data)
    assert [one.text for one in search_file(data)] == [TOKEN]
    assert [bool(one.problem) for one in search_file(gzip.compress(data))] == [True]


class _Runs:
    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_pickle_is_loaded(tmp_path):
    runs = _Runs()
    runs.path = str(tmp_path / "made")
    array = io.BytesIO()
    np.save(array, np.array([runs], dtype=object), allow_pickle=True)
    for data in (pickle.dumps([runs, TOKEN]), array.getvalue()):
        search_file(data)
        assert not (tmp_path / "made").exists()


# ---- refused, and let through


def test_a_place_is_refused_until_it_is_let_through_by_its_name(hub, tmp_path, capsys):
    write_model(tmp_path, shards=1)
    write(tmp_path, {"LICENSE": f"one\n{TOKEN}\n{TOKEN[::-1]}\n".encode(), "data.zip": _one_bad("x")})
    command = ["push", str(tmp_path), REPO, "--include", "data.zip"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "LICENSE, line 2, holds what looks like a secret" in said and "LICENSE:2" in said and TOKEN not in said
    assert main([*command, "--allow_secret", "LICENSE:2"]) == 2
    assert "data.zip/a.txt could not be searched" in capsys.readouterr().err
    assert main([*command, "--allow_secret", "LICENSE:2", "--allow_secret", "LICENSE:3"]) == 2
    assert not hub.repos
    assert main([*command, "--allow_secret", "LICENSE:2", "--allow_secret", "data.zip/a.txt"]) == 0
    assert {"LICENSE", "data.zip"} <= set(hub.repos["model", REPO].files())


def test_another_secret_and_a_place_that_is_none_are_refused(hub, tmp_path):
    write_model(tmp_path, shards=1)
    other = KINDS["sentry"](random.Random(1))
    write(tmp_path, {"LICENSE": f"{TOKEN}\n{other}\n".encode()})
    with pytest.raises(HubError, match="LICENSE, line 2,"):
        push(tmp_path, REPO, allow_secrets=["LICENSE:1"])
    with pytest.raises(HubError, match="LICENSE:7"):
        plan_push(tmp_path, allow_secrets=["LICENSE:1", "LICENSE:2", "LICENSE:7"])
    plan = plan_push(tmp_path, allow_secrets=["LICENSE:1", "LICENSE:2"], path_in_repo="x")
    assert plan.allow_secrets == ("x/LICENSE:1", "x/LICENSE:2") and not hub.repos


@pytest.mark.parametrize(
    "content", [{"data/{}.txt": b"x"}, {"data.zip": {"d/{}.txt": "x"}}, {"data.tar": {"{}": b"x"}}]
)
def test_a_name_that_is_a_secret_is_refused_and_not_shown(tmp_path, content):
    ((name, data),) = content.items()
    if isinstance(data, dict):
        data = (_zip if name.endswith("zip") else _tar)({key.format(TOKEN): value for key, value in data.items()})
    write(tmp_path, {"README.md": b"# x", name.format(TOKEN): data})
    with pytest.raises(HubError, match="holds what looks like a secret") as error:
        plan_push(tmp_path, repo_type="dataset", include=["*"])
    assert TOKEN not in str(error.value)


def test_nothing_is_published_unsearched_and_all_else_works(hub, monkeypatch, tiny_model, tmp_path, caplog):
    from hf_factuality.io import secrets

    monkeypatch.setitem(sys.modules, "kingfisher_sdk", None)
    secrets._scanners.cache_clear()
    try:
        with pytest.raises(HubError, match="kingfisher-secret-scanner"):
            publish({"README.md": b"# x"}, REPO, commit_message="x")
        assert not tells("plain words") and tells(KINDS["hugging face"](random.Random(1)))
        # A training whose card is written with each checkpoint goes on.
        with caplog.at_level("WARNING"):
            make_trainer(MaskDPOTrainer, tiny_model, tmp_path / "run").create_model_card(model_name="m")
        assert "kingfisher-secret-scanner" in caplog.text and (tmp_path / "run" / "README.md").exists()
        with pytest.raises(HubError, match="kingfisher-secret-scanner"):
            validate_card(tmp_path / "run", ask_hub=False)
    finally:
        secrets._scanners.cache_clear()
    assert not hub.calls


@pytest.mark.parametrize("form", ["parquet", "arrow", "sqlite"])
def test_the_name_of_a_column_tells_that_its_cells_are_keys(tmp_path, form):
    key = _some(WORD, 32)(random.Random(4))  # of no form that is known
    for name, found in (("service_api_key", True), ("answer", False)):
        table = pa.table({"n": [1, 2], name: ["none", key]})
        data = {"parquet": _parquet(table, "zstd"), "arrow": _arrow(table), "sqlite": _sqlite(name, key)}[form]
        secrets = search_file(data)
        assert bool(secrets) is found and not any(one.problem for one in secrets)


def test_the_length_of_a_string_is_no_part_of_it():
    """As protocol buffers write them; a length of 82 is the letter R."""
    token = _joined("pat", _some(WORD, 14), ".", _some(HEX, 64))(random.Random(5))
    assert len(token) == 82
    assert find_secrets(b"\n\x12R" + token.encode() + b"\x1a\x03abc")
    assert not find_secrets(b"\n\x12S" + token.encode() + b"\x1a\x03abc")  # a letter that is another


def test_hashes_of_files_may_look_like_keys():
    key = "SK" + _some(HEX, 32)(random.Random(6))
    assert find_secrets(f'"value": "{key}"') and not find_secrets(f'"integrity": "sha256-{key}=="')


COLUMNS = {
    "decimal": (pa.decimal128(10, 2), [1, None]),
    "wide decimal": (pa.decimal256(60, 2), [1, None]),
    "numbers": (pa.int64(), [1, None]),
    "nothing": (pa.null(), [None, None]),
    "times": (pa.timestamp("us"), [None, None]),
    "bytes of one length": (pa.binary(4), [b"abcd", None]),
    "views": (pa.string_view(), ["a", None]),
    "views of bytes": (pa.binary_view(), [b"a", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None]),
    "map": (pa.map_(pa.string(), pa.string()), [[("a", "b")], None]),
    "lists of lists": (pa.list_(pa.list_(pa.string())), [[["a"]], None]),
    "records": (pa.list_(pa.struct([("key", pa.string()), ("cost", pa.decimal128(5, 1))])), [[{"key": "a"}], None]),
    "runs": (pa.run_end_encoded(pa.int32(), pa.string()), ["a", "a"]),
}


@pytest.mark.parametrize("name", ["key", "answer"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_every_type_are_read_or_hold_no_text(kind, name):
    """A column that holds no text does not keep the next one from being searched."""
    cells = pa.array(COLUMNS[kind][1], COLUMNS[kind][0])
    for text, found in ((TOKEN, [(TOKEN, "")]), ("b", [])):
        table = pa.table({name: cells, "text": ["a", text]})
        assert [(one.text, one.problem) for one in search_file(_arrow(table, "zstd"))] == found


def test_cells_of_unions_and_runs_are_read():
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array(["a", "b"]), pa.array(["c", TOKEN])])
    for column in (union, pa.array([TOKEN, TOKEN], pa.run_end_encoded(pa.int32(), pa.string()))):
        assert [one.text for one in search_file(_arrow(pa.table({"x": column}), "zstd"))] == [TOKEN]
