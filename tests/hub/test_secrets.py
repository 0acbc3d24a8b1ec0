"""Nothing secret leaves the machine, by whatever way and in whatever file; and harmless files are not refused."""

import bz2
import gzip
import io
import lzma
import random
import re
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.push import plan_push
from hf_factuality.io.secrets import find_secrets, search_file
from hf_factuality.io.upload import publish
from hf_factuality.metrics.push import push_metrics
from tests.conftest import fast_few
from tests.hub.push_inputs import write, write_model
from tests.hub.secret_inputs import KINDS, harmless
from tests.hub.test_push_texts import header
from tests.tiny import save_tiny_model


REPO = "someone/x"
TOKEN = KINDS["Hugging Face"](random.Random(0))
KEY = KINDS["OpenSSH"](random.Random(0))


# ---- kinds


@pytest.mark.parametrize("kind", fast_few(KINDS, *range(0, 200, 5)))
def test_every_kind_is_refused_in_models_datasets_and_spaces(hub, tmp_path, capsys, kind):
    for seed, (repo_type, name) in enumerate([("model", "LICENSE"), ("dataset", "data/a.jsonl"), ("space", "app.py")]):
        secret = KINDS[kind](random.Random(seed))
        folder = tmp_path / repo_type
        if repo_type == "model":
            write_model(folder, shards=1)
        write(folder, {name: f"first\n{secret}\nlast\n".encode()})
        assert main(["push", str(folder), REPO, "--repo_type", repo_type]) == 2
        said = capsys.readouterr().err
        assert re.search(rf"{name}, line \d+, holds what looks like a secret \([\w &,.-]+\)", said) and not hub.calls
        assert not any(line in said for line in secret.splitlines() if len(line) > 12)


def test_the_line_is_named_and_the_first_secret_counts():
    text = "one\r\n" * 5000 + f"x {TOKEN}\n" + KEY
    (first, second) = find_secrets(text)
    assert (first.line, first.kind, first.text) == (5001, "huggingface-access-token", TOKEN)
    assert (second.line, second.kind) == (5002, "private key") and TOKEN not in repr(first)
    assert [one.line for one in find_secrets("é" * 3000 + "\n" + KEY)] == [2]
    assert find_secrets("") == search_file(b"") == []


# ---- files


def _zip(data, method=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("empty.txt", b"")
        archive.writestr("folder/id", data)
    return packed.getvalue()


def _zst(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _table(data):
    rows = [{"n": 1, "messages": [{"role": "user", "content": "hello"}]}] * 5000
    rows += [{"n": 2, "messages": [{"role": "user", "content": data.decode("latin-1")}]}]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def _pickle(data):
    file = io.BytesIO()
    torch.save({"weights": torch.zeros(3), "args": {"key": data.decode("latin-1")}}, file)
    return file.getvalue()


FORMS = {
    "Makefile": lambda data: data,
    "a.tar": lambda data: bytes(512) + data + bytes(512),
    "utf-16.txt": lambda data: data.decode("latin-1").encode("utf-16"),
    "utf-16-be.md": lambda data: data.decode("latin-1").encode("utf-16-be"),
    "utf-32.txt": lambda data: data.decode("latin-1").encode("utf-32"),
    "chinese.txt": lambda data: ("上海\n" * 9000 + data.decode("latin-1")).encode("utf-16"),
    "b.sqlite": lambda data: bytes(range(256)) * 9 + b"\0" + data + b"\0" * 99,
    "c.zip": _zip,
    "d.npz": lambda data: _zip(data, zipfile.ZIP_STORED),
    "e.json.gz": gzip.compress,
    "f.bz2": bz2.compress,
    "g.xz": lzma.compress,
    "h.jsonl.zst": _zst,
    "i.zip": lambda data: _zip(gzip.compress(data)),
    "k.zip": lambda data: b"PK\3\4 damaged " + data,
    "l.parquet": _table,
    "m.pkl": _pickle,
    "n.safetensors": lambda data: header(format="pt", note=data.decode("latin-1")),
    "o.safetensors": lambda data: data,
    "q.txt": lambda data: b"x" * ((1 << 23) - 20) + b" " + data,
    "r.txt": lambda data: b"x" * ((1 << 14) - 20) + b" " + data + b"x" * 50_000,
}


@pytest.mark.parametrize("secret", [TOKEN, KEY], ids=["token", "key"])
@pytest.mark.parametrize("name", FORMS)
def test_secrets_are_found_in_files_of_every_form(tmp_path, name, secret):
    padding = b"plain words and nothing else\n" * 40
    for data, found in ((padding, False), (padding + secret.encode() + b"\n" + padding, True)):
        path = write(tmp_path, {name: FORMS[name](data)}) / name
        for file in (path, path.read_bytes()):
            secrets = [one for one in search_file(file) if not one.problem]
            assert (secrets != []) is found


def test_lines_are_counted_over_blocks_and_in_other_encodings(tmp_path):
    text = "上 a\n" * 1_500_000 + TOKEN
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "a").write_bytes(text.encode(encoding))
        assert [(one.line, one.text) for one in search_file(tmp_path / "a")] == [(1_500_001, TOKEN)]
    (tmp_path / "a").write_bytes(b"mended")
    assert search_file(tmp_path / "a") == []


@pytest.mark.slow
def test_a_large_file_is_read_in_pieces(tmp_path):
    import tracemalloc

    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(150_000_000)
        file.seek(0, 2)
        file.write(TOKEN.encode())
    tracemalloc.start()
    assert [(one.line, one.text) for one in search_file(tmp_path / "a.bin")] == [(None, TOKEN)]
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    "part",
    ["eyJ-", "eyJhbGciOiJIUzI1NiJ9.a ", "://a:b", "://:", "\\", "\\\\u0068", "-----BEGIN A PRIVATE KEY-----\\n", "A-b: ", "aws key",
     "machine ", "hf_", "xoxb-1-", "api_key=", "bearer ", "https://hooks.slack.com/services/T", "0" * 9 + ":", "sk-a-", "AKIA", "figd_"],
)  # fmt: skip
@pytest.mark.timeout(120)
def test_hostile_lines_take_no_time(part):
    find_secrets(part * (200_000 // len(part)) + "?")  # where the time grows with the square it would take hours


# ---- names and links


def test_private_keys_and_passwords_are_never_included(tmp_path):
    names = ["id_rsa", "keys/id_ed25519", "a.ppk", "tls.key", "b.p12", "prod.env", "_netrc", "d.kdbx"]
    names += [".env", ".netrc", ".npmrc", ".pypirc", ".ssh/id_rsa", ".aws/credentials", ".git-credentials"]
    for repo_type in ("model", "dataset", "space"):
        write_model(tmp_path, shards=1)
        write(tmp_path, dict.fromkeys(names, b"nothing that could be recognised"))
        plan = plan_push(tmp_path, repo_type=repo_type, include=["*", *names])
        assert not set(names) & set(plan.files) and set(names) <= set(plan.left_out)
    write(tmp_path, {"server.pem": KEY.encode()})
    with pytest.raises(HubError, match=r"server.pem, line 1, holds what looks like a secret \(private key\)"):
        plan_push(tmp_path, repo_type="space", include=["*"])


@pytest.mark.parametrize("repo_type", ["model", "dataset", "space"])
@pytest.mark.parametrize("target", ["secret.txt", "/dev/zero", "../outside/secret.txt", "chain", "nowhere"])
def test_no_link_takes_a_file_out(hub, tmp_path, repo_type, target):
    outside = write(tmp_path / "outside", {"secret.txt": b"a diary", "README.md": b"# mine"})
    (tmp_path / "chain").symlink_to(outside / "secret.txt")
    folder = tmp_path / "folder"
    write_model(folder, shards=1)
    where = {"chain": tmp_path / "chain", "secret.txt": outside / target, "nowhere": outside / target}.get(
        target, target
    )
    names = ("LICENSE", "data.json", "a.txt", "app.py", "merges.txt")
    for name in names:
        (folder / name).symlink_to(where)
    (folder / "prompts").symlink_to(outside)
    (folder / "data").symlink_to(outside)
    done = main(["push", str(folder), REPO, "--repo_type", repo_type, "--include", "*"])
    assert done == 2 or target in ("/dev/zero", "nowhere")
    for repo in hub.repos.values():
        assert not {*names, "data/secret.txt"} & set(repo.files())


# ---- what is harmless


@pytest.mark.slow
def test_200_harmless_files_are_not_refused(tmp_path):
    files = harmless()
    assert len(files) == 200
    write(tmp_path, files)
    for repo_type in ("dataset", "space"):
        plan = plan_push(tmp_path, repo_type=repo_type, include=["*"])
        assert set(plan.files) == set(files) and not any(file.notes for file in plan.files.values())
    write_model(tmp_path, shards=1)
    assert set(files) <= set(plan_push(tmp_path, include=["*"]).files)


def test_our_own_pages_and_programs_are_not_refused():
    root = Path(__file__).resolve().parents[2]
    pages = [
        page for kind in ("*.md", "docs/**/*.md", "examples/*.py", "hf_factuality/**/*.py") for page in root.glob(kind)
    ]
    assert len(pages) > 40 and [page for page in pages if search_file(page)] == []


# ---- every way out


def test_all_ways_out_are_the_one_that_looks():
    """`publish` looks at every file; nothing else of the package writes to the Hub."""
    package = Path(__file__).resolve().parents[2] / "hf_factuality"
    writes = re.compile(r"\.(create_commit|upload_file|upload_folder|upload_large_folder|preupload_lfs_files)\(")
    found = {path.name for path in package.rglob("*.py") if writes.search(path.read_text(encoding="utf-8"))}
    assert found == {"upload.py"}


@pytest.mark.parametrize("kind", ["Hugging Face", "AWS, secret", "escapes alone", "OpenSSH"])
def test_publish_refuses_a_secret_before_it_asks_anything(hub, tmp_path, kind):
    secret = KINDS[kind](random.Random(7)).encode()
    (tmp_path / "x").write_bytes(b"a\n" + secret)
    for file in (tmp_path / "x", str(tmp_path / "x"), b"a\n" + secret):
        with pytest.raises(HubError, match=r"prompts/x\.txt, line \d+, holds what looks like a secret"):
            publish({"README.md": b"# x", "prompts/x.txt": file}, REPO, commit_message="x")
    assert not hub.calls


def test_a_merged_model_with_a_key_in_a_text_is_not_published(hub, tmp_path, capsys):
    folder = Path(save_tiny_model(tmp_path / "checkpoint-7"))
    (folder / "chat_template.jinja").write_text("{# " + KEY + " #}" + (folder / "chat_template.jinja").read_text())
    assert main(["merge", str(folder), "--out", str(tmp_path / "out"), "--push_to_hub", REPO]) == 2
    assert "chat_template.jinja, line 1, holds what looks like a secret" in capsys.readouterr().err
    assert not any(repo.files().keys() - {".gitattributes"} for repo in hub.repos.values())


def test_a_requirement_of_a_metric_with_a_token_is_not_published(hub):
    requirement = f"hf_factuality @ https://a.b/hf_factuality-1.0-py3-none-any.whl#token={TOKEN}"
    with pytest.raises(HubError, match="holds what looks like a secret") as error:
        push_metrics(["factscore"], namespace="someone", requirement=requirement)
    assert TOKEN not in str(error.value) and not hub.repos


def test_the_header_of_a_file_of_weights_counts_and_its_tensors_do_not(tmp_path):
    data = header(format="pt")
    length = struct.unpack("<Q", data[:8])[0]
    write(tmp_path, {"a.safetensors": data, "b.safetensors": data[: 8 + length] + TOKEN.encode()})
    assert search_file(tmp_path / "a.safetensors") == search_file(tmp_path / "b.safetensors") == []
