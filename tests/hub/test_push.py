"""What a push publishes and what it does not, with the real client against a Hub on this machine."""

import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.push import PushedFile, plan_push, push, push_plans
from tests.hub.loopback import TOKEN, LoopbackHub, User, use_in_process
from tests.hub.push_inputs import REMAINS, safetensors, write, write_model


REPO = "someone/model"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "run"
    return folder, write_model(folder)


def published(hub, repo_id=REPO, revision="main", kind="model"):
    return hub.repos[kind, repo_id].files(revision)


def test_the_model_is_published_in_one_commit_and_nothing_else(hub, model):
    folder, files = model
    write(folder, REMAINS)
    done = push(folder, REPO)
    repo = hub.repos["model", REPO]
    assert published(hub) == files
    assert [commit.title for commit in repo.log] == ["initial commit", "Upload run"]
    assert done.oid == repo.refs["main"] and done.commit_url == f"{hub.url}/{REPO}/commit/{done.oid}"
    assert done.address == done.commit_url and done.deleted == ()
    assert repo.private
    large = {name for name, blob in repo.find("main").files.items() if blob.large}
    assert large == {name for name in files if name.endswith(".safetensors")}
    plan = plan_push(folder)
    assert set(plan.left_out) == set(REMAINS) and set(plan.files) == set(files)


def test_reasons_for_what_is_left_out(model):
    folder, _ = model
    write(folder, REMAINS)
    reasons = plan_push(folder).left_out
    assert "access tokens included" in reasons["training_args.bin"]
    assert reasons["optimizer.pt"].startswith("state of a run")
    assert reasons["wandb/run-1/files/config.yaml"] == "a log of the run"
    assert reasons["weights.pkl"] == "a pickle that is no model's weights"
    assert reasons["report.html"] == "not a part of what is published; add it with `include`"
    assert reasons["checkpoint-7/model.safetensors"] == "a checkpoint of the run; push its folder by itself"
    assert reasons[".git/config"] == "hidden"


def test_include_and_exclude(model):
    folder, files = model
    write(folder, REMAINS)
    plan = plan_push(folder, include=["report.html", "*.bin", "*.pkl", "optimizer.pt", ".git/*"], exclude=["chat_*"])
    assert set(plan.files) == set(files) - {"chat_template.jinja"} | {"report.html"}


def test_every_kind_of_a_model_is_published(tmp_path):
    files = {
        "adapter_config.json": b'{"base_model_name_or_path": "org/base"}',
        "adapter_model.safetensors": safetensors(1),
        "critic/config.json": b"{}",
        "critic/model.safetensors": safetensors(2),
        "verifier/verifier_config.json": b"{}",
        "verifier/prompts/judge.txt": b"Is it so?",
        "after.json": b'{"schema": "hf_factuality.results/1", "results": []}',
        "LICENSE": b"Apache",
        "additional_chat_templates/tools.jinja": b"x",
    }
    assert set(plan_push(write(tmp_path, files)).files) == set(files)
    write(tmp_path, {"before.json": b'{"schema": "of another"}', "eval.json": b"[1"})
    assert set(plan_push(tmp_path).left_out) == {"before.json", "eval.json"}


def test_files_of_an_older_model_are_removed_and_others_stay(hub, model, tmp_path):
    folder, files = model
    push(folder, REPO)
    hub.repos["model", REPO].find("main").files["notes.txt"] = hub.repos["model", REPO].find("main").files["README.md"]
    smaller = write_model(tmp_path / "other", shards=2, seed=9)
    del smaller["README.md"]
    (tmp_path / "other" / "README.md").unlink()
    done = push(tmp_path / "other", REPO)
    old = {f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)}
    assert set(done.deleted) == old
    expected = smaller | {"README.md": files["README.md"], "notes.txt": files["README.md"]}
    assert published(hub) == expected
    single = write_model(tmp_path / "single", shards=1, seed=20)
    push(tmp_path / "single", REPO)
    assert {name for name in published(hub) if name.startswith("model")} == {"model.safetensors"}
    assert published(hub)["model.safetensors"] == single["model.safetensors"]
    adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": safetensors(3)}
    done = push(write(tmp_path / "adapter", adapter), REPO)
    assert done.deleted == ("model.safetensors",) and set(adapter) <= set(published(hub))


def test_the_same_again_sends_and_commits_nothing(hub, model):
    folder, _ = model
    first = push(folder, REPO)
    stored = dict(hub.stored)
    assert push(folder, REPO).oid == first.oid
    assert hub.stored == stored and len(hub.repos["model", REPO].log) == 2


def test_large_files_go_in_parts_where_the_hub_asks_for_it(tmp_path, monkeypatch):
    server = LoopbackHub(part_size=1000)
    use_in_process(server, tmp_path / "home", monkeypatch)
    try:
        files = write_model(tmp_path / "run", shards=2, size=2500)
        push(tmp_path / "run", REPO)
        assert server.repos["model", REPO].files() == files
        assert server.count("PUT", r"/\d+$") == 6 and server.count("POST", "/complete$") == 2
    finally:
        server.close()


# ---- who may read it


def test_private_and_public(hub, model):
    folder, _ = model
    push(folder, "someone/open", private=False)
    assert not hub.repos["model", "someone/open"].private
    push(folder, "someone/open")  # as it is
    with pytest.raises(HubError, match="someone/open exists and is public; change that in its settings, or leave out"):
        push(folder, "someone/open", private=True)
    push(folder, "someone/closed", private=True)
    with pytest.raises(HubError, match="someone/closed exists and is private"):
        push(folder, "someone/closed", private=False)
    push(folder, "mine")
    assert hub.repos["model", "someone/mine"].private


def test_a_token_that_may_not_make_private_repositories(hub, model):
    folder, _ = model
    hub.users[TOKEN] = User("someone", may_make_private=False)
    with pytest.raises(HubError, match=r"Private repository storage limit reached.*pass `private=False`"):
        push(folder, REPO)
    assert not hub.repos
    push(folder, REPO, private=False)
    assert not hub.repos["model", REPO].private


@pytest.mark.parametrize(
    ("user", "repo_id", "message"),
    [
        (User("someone", role="read"), REPO, "the token only reads; make one that writes"),
        (User("other"), REPO, "you are 'other', and 'someone' is no organisation of yours"),
        (User("other", orgs=("lab",)), "lab/model", None),
        (None, REPO, "nobody is logged in, or the token is not valid any more; run `hf auth login`"),
        (User("someone"), "a/b/c", "must be in the form .*'namespace/repo_name': 'a/b/c'"),
        (User("someone"), "someone/--x", "Repo id must use .*someone/--x"),
    ],
)
def test_accounts_and_names(hub, model, user, repo_id, message):
    folder, files = model
    hub.users = {TOKEN: user} if user is not None else {}
    if message is None:
        push(folder, repo_id)
        assert published(hub, repo_id) == files
        return
    with pytest.raises(HubError, match=message) as error:
        push(folder, repo_id)
    assert not hub.repos and TOKEN not in str(error.value) and "\n" not in str(error.value)


def test_nobody_logged_in_and_offline(hub, model, monkeypatch, tmp_path):
    folder, _ = model
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    for repo_id in (REPO, "model"):
        with pytest.raises(HubError, match="nobody is logged in"):
            push(folder, repo_id)
    with pytest.raises(HubError, match="nobody is logged in"):
        push(folder, REPO, token=False)
    assert not hub.calls  # the network, which may be slow, was not asked
    push(folder, REPO, token=TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set; unset it"):
        push(folder, REPO, token=TOKEN)


def test_errors_hold_no_token(hub, model, caplog, capsys):
    folder, _ = model
    caplog.set_level("DEBUG", logger="hf_factuality")
    hub.fail("POST", "/commit/", status=403, body=f"{TOKEN} may not write; Authorization: Bearer {TOKEN}")
    with pytest.raises(HubError, match="the token may not do that .403, [*]{3} may not write") as error:
        push(folder, REPO, token=TOKEN)
    printed = capsys.readouterr()
    assert TOKEN not in str(error.value) + caplog.text + printed.out + printed.err
    assert error.value.__cause__ is None and error.value.__suppress_context__


# ---- branches and pull requests


def test_a_branch(hub, model):
    folder, files = model
    push(folder, REPO, branch="v1")
    assert published(hub, revision="v1") == files and published(hub) == {}
    push(folder, REPO, branch="v1")


def test_a_pull_request(hub, model):
    folder, files = model
    hub.add("lab/model", {"README.md": b"theirs", "model.safetensors": safetensors(5)})
    done = push(folder, "lab/model", pull_request=True, commit_message="A better model")
    assert done.address == f"{hub.url}/lab/model/discussions/1" and hub.repos["model", "lab/model"].titles[1]
    assert published(hub, "lab/model", "refs/pr/1") == files
    assert published(hub, "lab/model")["README.md"] == b"theirs"
    with pytest.raises(HubError, match="403"):
        push(folder, "lab/model")
    with pytest.raises(HubError, match="there is no such repository"):
        push(folder, "lab/other", pull_request=True)
    with pytest.raises(HubError, match="made against main; leave out the revision 'v1'"):
        push(folder, "lab/model", pull_request=True, branch="v1")


# ---- texts


def test_paths_of_this_machine(hub, model):
    folder, files = model
    config = {"_name_or_path": "/home/me/models/base-7b", "model_type": "llama"}
    tokenizer = {"special_tokens_map_file": "C:\\Users\\me\\special.json", "eos": "</s>", "path": "/v1/chat"}
    card = f"---\nbase_model: {folder}\ntags:\n- base_model:adapter:{folder}\n- text\n---\n\nUse /v1/chat or and/or.\n"
    write(folder, {"config.json": json.dumps(config).encode(), "README.md": card.encode()})
    write(folder, {"tokenizer_config.json": json.dumps(tokenizer).encode()})
    push(folder, REPO)
    found = published(hub)
    assert json.loads(found["config.json"]) == {"_name_or_path": "base-7b", "model_type": "llama"}
    assert json.loads(found["tokenizer_config.json"]) == tokenizer | {"special_tokens_map_file": "special.json"}
    assert found["README.md"] == b"---\ntags:\n- text\n---\n\nUse /v1/chat or and/or.\n"
    assert found["tokenizer.json"] == files["tokenizer.json"]  # a vocabulary may hold any text
    assert json.loads((folder / "config.json").read_bytes()) == config
    assert not any(b"/home/me" in data for name, data in found.items() if name != "tokenizer.json")


def test_a_path_of_this_machine_by_its_first_folder(model, tmp_path):
    """Where tests run is not one of the well-known places, or it is; either way its paths are found."""
    folder, _ = model
    write(folder, {"README.md": f"See {os.path.realpath(tmp_path)}/x.".encode()})
    with pytest.raises(HubError, match="holds a path of your machine"):
        plan_push(folder)


# ---- folders that are no model


FIRST, INDEX = "model-00001-of-00003.safetensors", "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("removed", "written", "message"),
    [
        ("*", {"config.json": b"{}", "optimizer.pt": b""}, "holds no weights; .*hf-factuality merge"),
        ("*", {"model_world_size_2_rank_0.pt": b""}, "hf-factuality merge"),
        ("config.json", {}, "no config.json, so nobody could load them"),
        (FIRST, {}, f"lacks {FIRST}, which {INDEX} names"),
        (INDEX, {}, f"holds {FIRST} and no {INDEX}"),
        (FIRST, {FIRST: safetensors(0)[:-1]}, f"{FIRST} is cut off or damaged"),
        ("none", {"model.safetensors": safetensors(7)}, "two models; remove the one that is old"),
    ],
)
def test_folders_that_are_refused(hub, model, removed, written, message):
    folder, _ = model
    for path in folder.glob(removed):
        path.unlink()
    with pytest.raises(HubError, match=message):
        push(write(folder, written), REPO)
    assert not hub.calls


def test_weights_that_do_not_count(model):
    folder, _ = model
    write(folder, {"model-00007-of-00009.safetensors": safetensors(7), "pytorch_model.bin": b"", "link": b""})
    (folder / "inside").symlink_to(folder / "critic", target_is_directory=True)
    (folder / "critic").mkdir()
    plan = plan_push(folder)
    assert "does not name it" in plan.left_out["model-00007-of-00009.safetensors"]
    assert plan.left_out["pytorch_model.bin"] == "the same weights as the safetensors, as a pickle"
    assert plan.left_out["inside/"] == "a link to a folder"


def test_a_value_head_is_tensors(model, hub):
    torch = pytest.importorskip("torch")
    folder, _ = model
    (folder / "critic").mkdir()
    torch.save({"weight": torch.zeros(1, 3)}, folder / "critic" / "value_head.pt")
    assert "critic/value_head.pt" in plan_push(folder).files
    torch.save({"weight": os.system}, folder / "critic" / "value_head.pt")
    with pytest.raises(HubError, match="value_head.pt is not the layer that a critic saves"):
        plan_push(folder)


# ---- the state of a run


def test_the_state_of_a_run_goes_to_private_repositories_only(hub, model):
    folder, files = model
    write(folder / "checkpoint-7", files | REMAINS)
    state = plan_push(folder / "checkpoint-7", path_in_repo="last-checkpoint", resumable=True)
    assert "last-checkpoint/optimizer.pt" in state.files and "last-checkpoint/rollouts_0_of_2.pt" in state.files
    assert not any("training_args" in name or "wandb" in name or "weights.pkl" in name for name in state.files)
    push_plans([plan_push(folder), state], REPO)
    found = published(hub)
    assert len(hub.repos["model", REPO].log) == 2 and files.items() <= found.items()
    assert found["last-checkpoint/critic/critic_optimizer.pt"] == b"adam of the critic"
    assert json.loads(found["last-checkpoint/trainer_state.json"]) == {"best_model_checkpoint": "checkpoint-7"}
    hub.add("someone/open")
    with pytest.raises(HubError, match="someone/open is public; the state of a run goes to private"):
        push_plans([state], "someone/open")
    with pytest.raises(HubError, match="private repositories only"):
        push_plans([state], "someone/new", private=False)
    assert not published(hub, "someone/open") and hub.stored.total() == len(hub.stored)


# ---- other repositories, the card, the ignored


def test_datasets_and_spaces(hub, tmp_path):
    pairs = io.BytesIO()
    parquet.write_table(pa.table({"chosen": ["a"]}), pairs)
    run = {
        "pairs.parquet": pairs.getvalue(),
        "README.md": b"# Pairs",
        "responses.jsonl": b"{}",
        "settings.json": b"{}",
    }
    push(write(tmp_path / "pairs", run), "someone/pairs", repo_type="dataset")
    assert set(published(hub, "someone/pairs", kind="dataset")) == {"pairs.parquet", "README.md"}
    rows = {"data/train.jsonl": b'{"path": "/home/me/x"}\n', "notes.docx": b""}
    push(write(tmp_path / "rows", rows), "someone/rows", repo_type="dataset")
    assert set(published(hub, "someone/rows", kind="dataset")) == {"data/train.jsonl"}
    app = {"app.py": b"print(1)", "requirements.txt": b"gradio", "model.pt": b""}
    push(write(tmp_path / "app", app), "someone/app", repo_type="space")
    assert set(published(hub, "someone/app", kind="space")) == {"app.py", "requirements.txt"}
    assert hub.repos["space", "someone/app"].sdk == "gradio"
    with pytest.raises(HubError, match="holds nothing that is published as a dataset"):
        push(write(tmp_path / "none", {"a.docx": b""}), "someone/x", repo_type="dataset")
    with pytest.raises(HubError, match="repo_type 'kernel' is unknown"):
        push(tmp_path, "someone/x", repo_type="kernel")


def test_a_card_that_the_hub_refuses_is_refused_before_the_weights_are_sent(hub, model):
    folder, _ = model
    write(folder, {"README.md": b"---\nbase_model: not a/model/id\n---\n"})
    with pytest.raises(HubError, match="not valid"):
        push(folder, REPO)
    assert not hub.stored and published(hub) == {}


def test_a_gitignore_of_the_repository_cannot_hide_weights(hub, model):
    folder, _ = model
    hub.add(REPO, {".gitignore": b"*.safetensors\n"})
    with pytest.raises(HubError, match=r"the .gitignore of someone/model leaves out model-00001-of-00003.safetensors"):
        push(folder, REPO)
    assert set(published(hub)) == {".gitignore"}


def test_a_template_that_nobody_filled_in_does_not_replace_a_card(hub, model):
    folder, files = model
    template = b"---\nlibrary_name: peft\n---\n\n- **License:** [More Information Needed]\n"
    write(folder, {"README.md": template})
    assert "does not replace a card" in str(plan_push(folder))
    push(folder, "someone/new")
    assert published(hub, "someone/new")["README.md"] == template  # better than none
    hub.add(REPO, {"README.md": b"written by hand"})
    push(folder, REPO)
    assert published(hub) == files | {"README.md": b"written by hand"}
    write(folder, {"README.md": b"# Mine, changed"})
    plan = plan_push(folder)
    write(folder, {"README.md": template})  # after it was planned
    push_plans([plan], REPO)
    plan.files["README.md"] = PushedFile(folder / "none", template)  # made without notes
    push_plans([plan], REPO)
    assert published(hub)["README.md"] == b"written by hand"
    write(folder, {"README.md": b"# Mine, changed"})
    push(folder, REPO)
    assert published(hub)["README.md"] == b"# Mine, changed"


@pytest.mark.parametrize(
    ("card", "exclude", "said"),
    [
        (None, [], "the folder has no model card (README.md)"),
        (b"# Mine\n", [], "the model card has no header"),
        (
            b"---\nlibrary_name: peft\n---\n\n- **License:** [More Information Needed]\n",
            [],
            "a template that nobody filled in",
        ),
        (b"---\nlicense: mit\n---\n# Mine\n", [], None),
        (None, ["README.md"], "the folder has no model card (README.md)"),  # there is none to exclude
        (b"# Mine\n", ["README.md"], None),
    ],
)
def test_a_card_that_is_missing_or_says_nothing_is_said(hub, model, caplog, capsys, card, exclude, said):
    folder, _ = model
    (folder / "README.md").unlink()
    if card is not None:
        write(folder, {"README.md": card})
    flags = [flag for pattern in exclude for flag in ("--exclude", pattern)]
    assert main(["push", str(folder), REPO, "--dry_run", *flags]) == 0
    shown = capsys.readouterr().out
    assert ("warning: " in shown) == (said is not None) and (said or "") in shown
    assert main(["push", str(folder), REPO, *flags]) == 0
    assert capsys.readouterr().err.count("warning: ") == (said is not None) and not caplog.records, "once"
    push(folder, REPO, exclude=exclude)
    ours = [record.message for record in caplog.records if record.name.startswith("hf_factuality")]
    assert len(ours) == (said is not None) and (said or "") in "".join(ours)
    if said:
        assert "create_model_card" in shown or "docs/cards.md" in shown, "and how there will be one"


def test_what_is_no_model_needs_no_model_card(hub, model, tmp_path, caplog):
    write(tmp_path / "data", {"rows.jsonl": b'{"a": 1}\n'})
    push(tmp_path / "data", "someone/data", repo_type="dataset")
    folder, _ = model
    (folder / "README.md").unlink()
    state = plan_push(folder, path_in_repo="last-checkpoint", resumable=True)
    assert not state.warnings and not caplog.records


# ---- the command


def test_command_line(hub, model, capsys):
    folder, files = model
    write(folder, REMAINS)
    assert main(["push", str(folder), REPO, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not hub.calls
    assert f"{len(files)} files, " in printed and "training_args.bin" in printed and "optimizer.pt" in printed
    assert all(name in printed for name in files)
    assert main(["push", str(folder), REPO, "--public", "--exclude", "README.md", "--commit-message", "Mine"]) == 0
    printed = capsys.readouterr()
    commit = hub.repos["model", REPO].log[-1]
    assert printed.out == f"{hub.url}/{REPO}/commit/{commit.oid}\n" and commit.title == "Mine"
    assert "README.md" not in published(hub) and not hub.repos["model", REPO].private
    assert main(["push", str(folder), REPO, "--private"]) == 2
    assert "exists and is public" in capsys.readouterr().err
    assert main(["push", str(folder / "none"), REPO]) == 2
    assert "is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["push", str(folder), REPO, "--private", "--public"])
