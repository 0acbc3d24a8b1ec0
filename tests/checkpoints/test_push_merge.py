"""`hf-factuality merge --push_to_hub`: the account is tried before the work, and the model stays if the push fails."""

import shlex
from pathlib import Path

import pytest
from safetensors.torch import load

from hf_factuality.cli import main
from tests.hub.loopback import TOKEN, User
from tests.hub.push_inputs import REMAINS, write
from tests.tiny import save_tiny_model


REPO = "someone/merged"


@pytest.fixture
def checkpoint(tmp_path):
    folder = Path(save_tiny_model(tmp_path / "checkpoint-7"))
    return write(folder, {name: REMAINS[name] for name in ("training_args.bin", "optimizer.pt", "trainer_state.json")})


def merge(checkpoint, *arguments):
    return main(["merge", str(checkpoint), "--out", str(checkpoint.parent / "model"), *arguments])


def test_merged_and_published(hub, checkpoint, capsys):
    assert merge(checkpoint, "--push-to-hub", "merged", "--max-shard-size", "20kB") == 0
    repo, out = hub.repos["model", REPO], checkpoint.parent / "model"
    assert repo.private and len(repo.log) == 2
    files = repo.files()
    assert files == {path.name: path.read_bytes() for path in out.iterdir()} and "chat_template.jinja" in files
    before = load((checkpoint / "model.safetensors").read_bytes())
    after = {}
    for name, data in files.items():
        after |= load(data) if name.endswith(".safetensors") else {}
    assert sorted(before) == sorted(after) and all(before[name].equal(after[name]) for name in before)
    assert capsys.readouterr().out.splitlines() == [str(out), f"{hub.url}/{REPO}/commit/{repo.refs['main']}"]


@pytest.mark.parametrize(
    ("repo_id", "users", "message"),
    [
        ("someone/a/b", {TOKEN: User("someone")}, "must be in the form"),
        (REPO, {}, "nobody is logged in"),
        (REPO, {TOKEN: User("someone", role="read")}, "the token only reads"),
    ],
)
def test_the_account_is_tried_before_the_work(hub, checkpoint, capsys, repo_id, users, message):
    hub.users = users
    assert merge(checkpoint, "--push_to_hub", repo_id) == 2
    assert message in capsys.readouterr().err
    assert not (checkpoint.parent / "model").exists() and not hub.repos


def test_a_push_that_fails_leaves_the_model(hub, checkpoint, capsys):
    hub.add("someone/open")
    assert merge(checkpoint, "--push_to_hub", "someone/open", "--private") == 2
    assert not (checkpoint.parent / "model").exists() and "exists and is public" in capsys.readouterr().err
    hub.fail("POST", "/commit/", status=403)
    assert merge(checkpoint, "--push_to_hub", REPO, "--public") == 2
    out = checkpoint.parent / "model"
    assert f"the model is in {out}; go on with: hf-factuality push {out} {REPO}" in capsys.readouterr().err
    assert main(["push", str(out), REPO]) == 0
    assert set(hub.repos["model", REPO].files()) == {path.name for path in out.iterdir()}


def test_a_pull_request_and_a_dry_run(hub, checkpoint, capsys):
    hub.add("lab/model", {"README.md": b"theirs"})
    assert merge(checkpoint, "--push_to_hub", "lab/model", "--dry_run") == 0
    assert not hub.calls and not (checkpoint.parent / "model").exists()
    assert merge(checkpoint, "--push_to_hub", "lab/model", "--pull_request") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/lab/model/discussions/1"
    files = hub.repos["model", "lab/model"].files("refs/pr/1")
    assert files.pop("README.md") == b"theirs" and "model.safetensors" in files
    assert merge(checkpoint, "--private") == 2
    assert "--private is for --push_to_hub REPO" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--branch", "v2", "--private"], ["--pull_request"]])
def test_what_to_go_on_with_leads_to_the_same_place(hub, checkpoint, capsys, flags):
    """Said before the push, too: who kills it cannot merge into the same folder again."""
    hub.add(REPO, private=True)
    hub.fail("POST", "/commit/", status=403)
    assert merge(checkpoint, "--push_to_hub", REPO, *flags) == 2
    out, printed = checkpoint.parent / "model", capsys.readouterr().err
    command = shlex.join(
        ["hf-factuality", "push", str(out), REPO, *sorted(flags, key=lambda flag: flag == "--private")]
    )
    assert f"pushing; if this is cut, go on with: {command}\n" in printed and printed.endswith(f"with: {command}\n")
    assert merge(checkpoint, "--push_to_hub", REPO, *flags) == 2  # the folder is there
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(shlex.split(command)[1:]) == 0
    repo = hub.repos["model", REPO]
    assert repo.files() == {} and "model.safetensors" in repo.files("refs/pr/1" if len(flags) == 1 else "v2")


def test_a_pull_request_to_a_branch_is_refused_before_the_work(hub, checkpoint, capsys):
    assert merge(checkpoint, "--push_to_hub", REPO, "--pull_request", "--branch", "v2") == 2
    assert "made against main; leave out the revision 'v2'" in capsys.readouterr().err
    assert not hub.calls and not (checkpoint.parent / "model").exists()
