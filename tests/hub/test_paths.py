"""Which paths are somebody's: lines as cards, Dockerfiles and settings on the Hub have them, and how one is let through."""

import json
from pathlib import Path

import pytest

from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.paths import find_path, find_paths
from hf_factuality.hub.push import plan_push, push
from tests.conftest import searched
from tests.hub.push_inputs import write, write_model
from tests.hub.test_push_texts import CARD, header


CASES = json.loads((Path(__file__).resolve().parents[1] / "cases" / "paths.json").read_text(encoding="utf-8"))
REPO = "someone/model"
SPACE = {
    "README.md": b"---\ntitle: Demo\nsdk: docker\n---\n\nLogs are written to `/tmp/logs`.\n",
    "Dockerfile": b"FROM python:3.11\nRUN useradd -m -u 1000 user\nUSER user\nENV HOME=/home/user \\\n    PATH=/home/user/.local/bin:$PATH\n"
    b"WORKDIR /home/user/app\nCOPY --chown=user . /home/user/app\n",
    "app.py": b"import gradio\n",
}


@pytest.fixture(autouse=True)
def another_machine(monkeypatch):
    """The same on every machine: no folders at its top, and a home that nobody writes of."""
    monkeypatch.setattr(Path, "is_dir", lambda path, real=Path.is_dir: len(path.parts) != 2 and real(path))
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/home/me")))


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "run", shards=1)
    return tmp_path / "run"


def test_the_tables_are_as_large_as_they_should_be():
    assert len(CASES["nobodys"]) >= 60 and len(CASES["somebodys"]) >= 60


@pytest.mark.parametrize(("file", "text"), CASES["nobodys"])
def test_paths_that_are_nobodys_pass(file, text):
    assert find_path(text, file=file) is None


@pytest.mark.parametrize(("file", "text", "path"), CASES["somebodys"])
def test_paths_of_somebody_are_found(file, text, path):
    assert find_path(f"first\n{text}", file=file) == (2 + text.count("\n", 0, text.index(path)), path)


def test_the_home_of_whoever_pushes_is_theirs(monkeypatch):
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/home/user")))
    assert find_path("see /home/user/plan/x") == (1, "/home/user/plan/x")
    assert find_path("WORKDIR /home/user/app") is None and find_path("/home/username/plan/x") is None
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/root")))
    assert find_path("-v ~/.cache/huggingface:/root/.cache/huggingface") is None


def test_folders_at_the_top_of_this_machine_are_its_own(monkeypatch):
    text = "python train.py --data /acme/corpus/x"
    assert find_path(text) is None
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/acme")
    assert find_path(text) == (1, "/acme/corpus/x")
    assert find_path("WORKDIR /acme/corpus/x") is None


@pytest.mark.timeout(60)
@searched(5_000, 20_000)
def test_many_paths_take_no_time(count):
    for text in ("/tmp/logs/x " * count, "srun " * 50_000 + "/tmp/logs/x", "docker -v /root/x \\\n" * count,
                 "/work/me/x " * count, "/home_" + "_" * 100_000 + "/x/y"):  # fmt: skip
        assert len(list(find_paths(text))) in (0, 1, count)


def test_a_space_and_a_card_as_they_are_written(hub, folder):
    space = write(folder.parent / "space", SPACE)
    push(space, "someone/space", repo_type="space")
    assert hub.repos["space", "someone/space"].files() == SPACE
    card = b"# A model\n\n```\ndocker run --gpus all \\\n  -v ~/.cache/huggingface:/root/.cache/huggingface \\\n  image\n```\n"
    write(folder, {"README.md": card})
    push(folder, REPO)
    assert hub.repos["model", REPO].files()["README.md"] == card


def test_a_refusal_shows_the_flag_that_lets_it_through(hub, folder, capsys):
    card = b"---\nbase_model: /home/me/base\nlicense: mit\n---\n# A\n\nin /home/me/x\n\nand /home/me/y /home/me/z\n"
    write(folder, {"README.md": card, "config.json": b'{"a": {"data": "/scratch/me/x.json", "/home/me/k": 1}}'})
    write(folder, {"model.safetensors": header(source="/home/me/secret")})
    given = []
    for place in (
        "model.safetensors:source",
        "README.md:7",
        "README.md:9",
        "config.json:a./home/me/k",
        "config.json:a.data",
    ):
        command = ["push", str(folder), REPO, *(part for one in given for part in ("--allow-path", one))]
        assert main(command) == 2
        printed = capsys.readouterr().err
        assert f"--allow_path {place}" in " ".join(printed.split()[-2:]) and not hub.calls
        with pytest.raises(HubError, match="`allow_paths`"):
            plan_push(folder, allow_paths=given)
        given.append(place)
    plan = plan_push(folder, allow_paths=given)
    assert any("README.md:7" in note for note in plan.files["README.md"].notes)
    assert main([*command, "--allow_path", given[-1]]) == 0
    files = hub.repos["model", REPO].files()
    assert files["README.md"].endswith(card.partition(b"---\n#")[2]) and b"/home/me/base" not in files["README.md"]
    assert files["config.json"] == (folder / "config.json").read_bytes()
    push(folder, "someone/other", allow_paths=given)
    assert hub.repos["model", "someone/other"].files() == files


@pytest.mark.parametrize("place", ["README.md", "README.md:", "other.md:3", "7", "", "run/README.md:7"])
def test_a_place_that_is_none_is_named(folder, place):
    with pytest.raises(HubError, match="allow_paths"):
        plan_push(folder, allow_paths=[place])


def test_what_is_let_through_is_one_line(folder):
    write(folder, {"README.md": b"# A\n/home/me/x\n\n/home/me/x\n"})
    with pytest.raises(HubError, match="README.md, line 4,"):
        plan_push(folder, allow_paths=["README.md:2"])
    token = "hf_" + "A1b2" * 9
    write(folder, {"README.md": f"# A\n/home/me/x {token}\n".encode()})
    with pytest.raises(HubError, match="secret"):
        plan_push(folder, allow_paths=["README.md:2"])


def test_a_card_of_ours_too(hub, folder, capsys):
    write(folder, {"README.md": f"{CARD}\nWORKDIR /home/user/app\n".encode()})
    plan_push(folder)
    write(folder, {"README.md": f"{CARD}\nin /opt/acme/x\n".encode()})
    line = CARD.count("\n") + 2
    with pytest.raises(HubError, match=rf"line {line}\).*`allow_paths` README.md:LINE"):
        plan_push(folder)
    assert "README.md" in plan_push(folder, allow_paths=[f"README.md:{line}"]).files
