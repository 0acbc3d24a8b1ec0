"""Pushes that are cut, refused for a while or killed: a reader sees the model before or the model after, and no third thing."""

import hashlib
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.push import push
from tests.hub.loopback import TOKEN
from tests.hub.push_inputs import write, write_model


REPO = "someone/model"
OLD = {"model.safetensors": b"the model before", "notes.txt": b"mine"}


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Seconds that the push asked to wait, in order; nobody waits for them, nor for those of the client."""
    found = []
    monkeypatch.setattr("hf_factuality.io.upload.time", SimpleNamespace(sleep=found.append))
    monkeypatch.setattr(
        "huggingface_hub.utils._http.time", SimpleNamespace(**vars(time) | {"sleep": lambda seconds: None})
    )
    return found


@pytest.fixture
def model(hub, tmp_path):
    """A push onto a repository that holds an older model; and what it has to hold afterwards."""
    files = write_model(tmp_path / "run", size=300_000)
    hub.add(REPO, OLD)
    return tmp_path / "run", files | {"notes.txt": b"mine"}


def assert_no_half(hub, after):
    """Every state that any reader could have seen."""
    for commit in hub.repos["model", REPO].log:
        found = {path: blob.data for path, blob in commit.files.items() if path != ".gitattributes"}
        assert found in (OLD, after)


@pytest.mark.parametrize(
    ("kind", "method", "pattern", "value"),
    [
        ("fail", "POST", "/commit/", 503),
        ("fail", "POST", "/commit/", 412),  # somebody else's commit came in between
        ("fail", "POST", "/preupload/", 500),
        ("fail", "POST", "/objects/batch", 502),
        ("fail", "PUT", "/lfs/", 504),
        ("fail", "GET", "/api/models/", 503),
        ("cut", "POST", "/commit/", 0),
        ("cut", "POST", "/commit/", 200),
        ("cut", "PUT", "/lfs/", 100_000),
    ],
)
def test_what_passes_is_waited_for(hub, model, kind, method, pattern, value):
    folder, after = model
    getattr(hub, kind)(method, pattern, value)
    done = push(folder, REPO)
    assert not hub.faults[0].times
    repo = hub.repos["model", REPO]
    assert repo.files() == after and len(repo.log) == 2 and done.oid == repo.refs["main"]
    assert set(hub.stored.values()) == {1}  # nothing that had arrived was sent again
    assert_no_half(hub, after)


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, model):
    folder, after = model
    hub.cut("POST", "/commit/", after=-1)
    done = push(folder, REPO)
    repo = hub.repos["model", REPO]
    assert repo.files() == after and len(repo.log) == 2 and done.oid == repo.refs["main"]


def test_a_pull_request_whose_answer_was_lost_is_not_made_twice(hub, model):
    folder, after = model
    repo = hub.repos["model", REPO]
    first = push(folder, REPO, pull_request=True)
    hub.cut("POST", "/commit/", after=-1)
    write(folder, {"README.md": b"# Another"})
    done = push(folder, REPO, pull_request=True)
    assert repo.titles == {1: "Upload run", 2: "Upload run"}
    assert first.address.endswith("/discussions/1") and done.address.endswith("/discussions/2")
    assert repo.files("refs/pr/2") == after | {"README.md": b"# Another"} and repo.files() == OLD


def test_a_request_that_comes_too_soon_waits_as_long_as_it_is_told(hub, model, waits):
    folder, after = model
    hub.fail("POST", "/commit/", 429, **{"Retry-After": "17"})
    push(folder, REPO)
    assert waits == [17] and hub.repos["model", REPO].files() == after


def test_patience_ends(hub, model, caplog, waits):
    folder, after = model
    hub.fail("POST", "/commit/", 503, times=99, body=f"overloaded, says {TOKEN}")
    with pytest.raises(
        HubError, match="503, overloaded, says .*, also after waiting 31 s; .*run again to go on"
    ) as error:
        push(folder, REPO, patience=40)
    assert waits == [1, 2, 4, 8, 16]
    assert TOKEN not in str(error.value) + caplog.text and "trying again in 1 s" in caplog.text
    assert hub.repos["model", REPO].files() == OLD
    hub.faults.clear()
    stored = dict(hub.stored)
    push(folder, REPO)
    assert hub.stored == stored and hub.repos["model", REPO].files() == after


def test_what_does_not_pass_is_not_waited_for(hub, model):
    folder, _ = model
    hub.fail("POST", "/commit/", 403, times=99)
    with pytest.raises(HubError, match="403"):
        push(folder, REPO)
    assert hub.count("POST", "/commit/") == 1


def test_a_hub_that_is_not_there(hub, model, monkeypatch):
    folder, _ = model
    hub.close()
    monkeypatch.setattr("hf_factuality.io.upload.PATIENCE_AT_START", 1.0)
    with pytest.raises(HubError, match="someone/model' cannot be written on the Hub: the Hub cannot be reached"):
        push(folder, REPO)


def test_another_commit_in_between_stays(hub, model, monkeypatch):
    """Somebody edits the card's neighbour while the weights are on their way."""
    from huggingface_hub import HfApi

    folder, after = model
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    create = HfApi.create_commit

    def edited_before(self, *args, **kwargs):
        monkeypatch.setattr(HfApi, "create_commit", create)
        assert hub.count("PUT", "/lfs/") == 3
        HfApi().upload_file(path_or_fileobj=b"edited", path_in_repo="notes.txt", repo_id=REPO)
        return create(self, *args, **kwargs)

    monkeypatch.setattr(HfApi, "create_commit", edited_before)
    push(folder, REPO)
    repo = hub.repos["model", REPO]
    assert repo.files() == after | {"notes.txt": b"edited"} and len(repo.log) == 3
    assert hub.count("POST", "/commit/") == 3  # ours was refused once, since it was planned on the older state


# ---- kill -9


def start(hub, tmp_path, folder):
    command = [sys.executable, "-m", "hf_factuality", "push", str(folder), REPO]
    environment = hub.environment(tmp_path / "home")
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.02)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def finish(hub, tmp_path, folder):
    process = start(hub, tmp_path, folder)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.slow
def test_killed_while_weights_are_sent(hub, model, tmp_path):
    folder, after = model
    shards = {name: hashlib.sha256(data).hexdigest() for name, data in after.items() if name.startswith("model-")}
    last = shards["model-00003-of-00003.safetensors"]
    hub.slow("PUT", last, pause=15.0)
    process = start(hub, tmp_path, folder)
    wait_for(lambda: len(hub.stored) == 2 and hub.count("PUT", last), process)
    kill(process)
    repo = hub.repos["model", REPO]
    assert repo.files() == OLD and len(repo.log) == 1
    hub.faults.clear()
    address = finish(hub, tmp_path, folder)
    assert repo.files() == after and len(repo.log) == 2 and address.endswith(repo.refs["main"])
    assert dict(hub.stored) == dict.fromkeys(shards.values(), 1)
    assert {name: hub.count("PUT", sha) for name, sha in shards.items()} == {
        "model-00001-of-00003.safetensors": 1,
        "model-00002-of-00003.safetensors": 1,
        "model-00003-of-00003.safetensors": 2,
    }


@pytest.mark.slow
def test_killed_while_the_commit_is_sent(hub, model, tmp_path):
    """Its texts are larger than what the sockets of both sides hold, so that half of it is on the way."""
    folder, after = model
    texts = dict.fromkeys(("LICENSE", "NOTICE"), b"Lorem ipsum.\n" * 700000)
    write(folder, texts)
    hub.slow("POST", "/commit/", pause=0.1)
    process = start(hub, tmp_path, folder)
    wait_for(lambda: hub.count("POST", "/commit/"), process)
    time.sleep(0.5)
    assert process.poll() is None
    kill(process)
    hub.faults.clear()
    repo, stored = hub.repos["model", REPO], dict(hub.stored)
    assert repo.files() == OLD
    finish(hub, tmp_path, folder)
    assert repo.files() == after | texts and len(repo.log) == 2 and hub.stored == stored
    assert_no_half(hub, after | texts)


def test_the_command_says_what_to_do(hub, model, capsys):
    folder, _ = model
    hub.fail("POST", "/commit/", 403, body="storage quota reached")
    assert main(["push", str(folder), REPO]) == 2
    assert "someone/model could not be pushed to: the token may not do that (403, storage quota reached)" in (
        capsys.readouterr().err
    )
