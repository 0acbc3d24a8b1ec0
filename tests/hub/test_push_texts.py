"""What a push finds in texts, headers and links before it sends anything, and what it does to the card."""

import json
import struct
from pathlib import Path

import pytest

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.paths import find_path
from hf_factuality.hub.push import plan_push, push
from tests.hub.push_inputs import safetensors, write, write_model
from tests.tiny import save_tiny_model


TEXTS = json.loads((Path(__file__).resolve().parents[1] / "cases" / "texts.json").read_text(encoding="utf-8"))
REPO = "someone/model"
TOKEN = "hf_" + "A1b2" * 9
CARD = """---
tags:
- hf_factuality
---

# m

```python
generate = pipeline("text-generation", model="m")
```

## Results

None recorded.

## Training

x
"""


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "run", shards=1)
    return tmp_path / "run"


def header(**metadata):
    """A file of one tensor whose header carries texts."""
    text = json.dumps({"__metadata__": metadata, "w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


# ---- tokens


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "pt", "key": TOKEN}, "model.safetensors holds what looks like a secret"),
        (
            {"from": "/home/me/secret"},
            r"the header of model.safetensors holds a path of your machine \(/home/me/secret",
        ),
        ({"/home/me": "x"}, "holds a path"),
        ({"n": 1}, "is cut off or damaged"),
    ],
)
def test_headers_of_weights(folder, metadata, message):
    write(folder, {"model.safetensors": header(format="pt", source="https://huggingface.co/org/base")})
    assert "model.safetensors" in plan_push(folder).files
    write(folder, {"model.safetensors": header(**metadata)})
    with pytest.raises(HubError, match=message) as error:
        plan_push(folder)
    assert TOKEN not in str(error.value)


# ---- paths


@pytest.mark.parametrize(("text", "found"), TEXTS["paths"])
def test_paths_that_are_found(text, found):
    assert find_path(f"first\n{text}") == (2, found)


@pytest.mark.parametrize("text", TEXTS["no_paths"])
def test_what_is_no_path(text):
    assert find_path(text) is None


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_search_of_large_texts_takes_no_time():
    for text in ("a.a-a+" * 100_000, "/a b" * 100_000, "a+/" * 100_000, "~/" * 100_000, "C:/a b" * 100_000):
        find_path(text)  # a search whose time grows with the square would take hours


def test_paths_in_names_of_json_and_in_included_texts(folder):
    write(folder, {"config.json": b'{"m": {"/home/me/secret/x": 1}}'})
    with pytest.raises(HubError, match=r"holds a path of your machine as a name in 'm' \(/home/me/secret/x"):
        plan_push(folder)
    write(folder, {"config.json": b"{}", "train.sh": b"cd /home/me/x\n"})
    with pytest.raises(HubError, match="train.sh, line 1, holds a path of your machine"):
        plan_push(folder, include=["*.sh"])


def test_a_real_model_with_what_looks_like_a_path_is_published(hub, tmp_path):
    from transformers import AutoTokenizer

    folder = tmp_path / "tiny"
    save_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["/home/me", "C:\\Users\\me", "</tmp/x>"])
    tokenizer.chat_template = "{{ '</think>/no_think\\n' }}{# https://a.b/home/x #}" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    vocabulary = {"tokenizer.model": bytes(range(256)), "x.tiktoken": b"/tmp/abc= 1\n"}
    card = b"# A model\n\n[a](https://a.b/home/x), [b](other.md), <https://a.b/home/y>\n"
    write(folder, vocabulary | {"README.md": card})
    push(folder, REPO)
    files = hub.repos["model", REPO].files()
    assert files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert b"/home/me" in files["tokenizer.json"] and b"no_think" in files["chat_template.jinja"]


# ---- links, and what a killed push left


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("training_args.bin", "a link to training_args.bin: a pickle of every argument"),
        ("weights.pkl", "a link to weights.pkl: a pickle"),
        (".env", "a link to .env: hidden"),
        ("optimizer.pt", "a link to optimizer.pt: state of a run"),
        ("checkpoint-7/training_args.bin", "a link to checkpoint-7/training_args.bin: a pickle of every argument"),
    ],
)
def test_a_link_does_not_publish_what_is_left_out(folder, target, reason):
    write(folder, {target: b"x"})
    (folder / "LICENSE").symlink_to(folder / target)
    plan = plan_push(folder, include=["LICENSE"])
    assert "LICENSE" not in plan.files and plan.left_out["LICENSE"].startswith(reason)


def test_a_link_to_the_weights_of_a_checkpoint_is_followed(folder):
    write(folder, {"checkpoint-7/model.safetensors": safetensors(7)})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "checkpoint-7" / "model.safetensors")
    assert "model.safetensors" in plan_push(folder).files


def test_what_a_killed_push_left_is_not_published(folder):
    results = b'{"schema": "hf_factuality.results/1", "results": []}'
    write(folder, {"_push-checkpoint-5/model/results.json": results, "_push-checkpoint-5/model/config.json": b"{}"})
    plan = plan_push(folder, include=["*.json"])
    assert not any(name.startswith("_push-") for name in plan.files)
    assert "that was killed" in plan.left_out["_push-checkpoint-5/model/results.json"]


# ---- files that are malformed


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        *(
            ("model.safetensors.index.json", data, "model.safetensors.index.json is no index of weights")
            for data in (b"{", b"{}", b"[]", b'{"weight_map": ["a"]}', b'{"weight_map": {"a": 1}}', b"[" * 100_000)
        ),
        ("model.safetensors", header() + b"x", "model.safetensors is cut off or damaged"),
        ("model.safetensors", header().replace(b"[0, 8]", b'"abcd"'), "model.safetensors is cut off or damaged"),
        ("model.safetensors", struct.pack("<Q", 90_000) + b"[" * 90_000 + b"x", "is cut off or damaged"),
        ("config.json", b"[" * 100_000, "config.json is no JSON"),
        ("config.json", b'{"a": ', "config.json is no JSON"),
        ("config.json", b'{"a": {"data": "/home/me/x.json"}}', "config.json holds a path of your machine in 'a.data'"),
        ("config.json", b'{"a": ["see ~/secret/plan"]}', "in 'a.0' (~/secret/plan)"),
        ("README.md", b"# A\n\nTrained on /scratch/me/data.\n", "README.md, line 3, holds a path of your machine"),
        ("README.md", b"Run C:\\Users\\me\\x.exe", "line 1, holds a path"),
        ("chat_template.jinja", b"file:///mnt/data/x", "holds a path"),
        ("README.md", "café".encode("latin-1"), "README.md is not UTF-8"),
        *(
            ("README.md", CARD.replace("tags:", tags).encode(), "README.md cannot be published")
            for tags in ("tags: [", "license: {a: b}\ntags:", "? [a]\n: b\ntags:")
        ),
    ],
)
def test_malformed_files_are_named_in_one_line(hub, folder, capsys, name, data, message):
    if "index" in name:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    write(folder, {name: data})
    assert main(["push", str(folder), REPO]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1 and not hub.calls
    assert (folder / name).read_bytes() == data
    if "holds a path" in message and name != "config.json":
        assert name in plan_push(folder, exclude=[name]).left_out


def test_results_that_nobody_can_read_are_left_out(folder):
    write(folder, {"notes.json": b"[" * 100_000})
    assert "notes.json" in plan_push(folder).left_out


@pytest.mark.parametrize(("method", "pattern"), [("POST", "/commit/"), ("GET", "/api/models/")])
def test_an_answer_that_is_something_else(hub, folder, capsys, method, pattern):
    hub.add(REPO)
    hub.fail(method, pattern, 200, times=9)
    assert main(["push", str(folder), REPO]) == 2
    printed = capsys.readouterr().err
    assert "the Hub answered with something else than it should (KeyError: " in printed


def test_mistakes_of_ours_are_not_taken_for_answers():
    from hf_factuality.io.upload import hub_errors

    with pytest.raises(KeyError), hub_errors("x"):
        {}["a"]


# ---- the card


@pytest.mark.parametrize("repo_id", ["bad name!", "nobody/m"])
def test_a_push_that_is_refused_leaves_the_card(hub, folder, repo_id):
    write(folder, {"README.md": CARD.encode()})
    assert main(["push", str(folder), repo_id]) == 2
    assert main(["push", str(folder), REPO, "--pull_request", "--branch", "v1"]) == 2
    assert (folder / "README.md").read_text() == CARD and not hub.repos


def test_a_card_that_is_a_link_out_of_the_folder_is_not_written(hub, folder, capsys):
    other = write(folder.parent / "other", {"README.md": CARD.encode()}) / "README.md"
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(other)
    assert main(["push", str(folder), REPO]) == 2
    assert "which is not in the folder; copy the file" in capsys.readouterr().err
    assert other.read_text() == CARD and (folder / "README.md").is_symlink() and not hub.calls


def test_the_card_names_the_repository_with_its_namespace(hub, folder):
    write(folder, {"README.md": CARD.encode()})
    assert main(["push", str(folder), "mine", "--dry_run"]) == 0 and (folder / "README.md").read_text() == CARD
    assert main(["push", str(folder), "mine", "--exclude", "README.md"]) == 0
    assert (folder / "README.md").read_text() == CARD
    assert main(["push", str(folder), "mine"]) == 0
    published = hub.repos["model", "someone/mine"].files()["README.md"]
    assert b'pipeline("text-generation", model="someone/mine")' in published
    assert published == (folder / "README.md").read_bytes()
