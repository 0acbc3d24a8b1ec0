"""`hf-factuality push` and `hf_factuality.push` do the same."""

import pytest

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.push import PushPlan
from tests.hub.loopback import hub  # noqa: F401 - a fixture
from tests.hub.push_inputs import REMAINS, write, write_model


CARD = """---
library_name: transformers
tags:
- hf_factuality
---

# Mine

## Results

None yet.

## Training

By hand.
"""


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "model")
    return write(tmp_path / "model", {**REMAINS, "README.md": CARD.encode()})


def test_command_and_function_give_the_same_result(hub, folder, tmp_path, capsys):  # noqa: F811
    plan = hf_factuality.push(folder, "someone/one", dry_run=True)
    assert isinstance(plan, PushPlan) and not hub.calls
    assert main(["push", str(folder), "someone/one", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert "add it with `include`" in str(plan) and printed == f"{plan}\n".replace("`include`", "--include")
    seen = []
    settings = {"private": False, "exclude": ["tokenizer.json"], "commit_message": "Mine"}
    done = hf_factuality.push(folder, "one", **settings, on_plan=seen.append)
    assert done.repo_id == "someone/one" and list(seen[0].files) == sorted(hub.repos["model", "someone/one"].files())
    (folder / "README.md").write_text(CARD)
    capsys.readouterr()
    flags = ["--public", "--exclude", "tokenizer.json", "--commit_message", "Mine"]
    assert main(["push", str(folder), "two", *flags]) == 0
    repos = [hub.repos["model", f"someone/{name}"] for name in ("one", "two")]
    files = [repo.files() for repo in repos]
    assert not any(repo.private for repo in repos) and {repo.log[-1].title for repo in repos} == {"Mine"}
    cards = [each.pop("README.md").decode() for each in files]
    assert files[0] == files[1] and "tokenizer.json" not in files[0]
    # The card is ours, and brought up to date in the folder too.
    assert CARD not in cards and cards[0] == cards[1].replace("someone/two", "someone/one")
    assert (folder / "README.md").read_text() == cards[1]
    printed = capsys.readouterr()
    assert printed.out == repos[1].log[-1].oid.join((f"{hub.url}/someone/two/commit/", "\n"))
    assert printed.err.startswith(f"{len(files[0]) + 1} files, ")


def test_what_is_refused_leaves_the_card(hub, folder, caplog):  # noqa: F811
    hub.add("someone/open")
    with pytest.raises(HubError, match="exists and is public.*or leave out `private=True`"):
        hf_factuality.push(folder, "someone/open", private=True)
    assert (folder / "README.md").read_text() == CARD and hub.repos["model", "someone/open"].files() == {}
    (folder / "README.md").unlink()
    hf_factuality.push(folder, "someone/open")
    assert ["no model card" in record.message for record in caplog.records if "hf_factuality" in record.name] == [True]
