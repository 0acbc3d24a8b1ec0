"""What the documentation shows is run, and what it links to exists."""

import re
import subprocess
from pathlib import Path

import pytest

from hf_factuality.cli import main


REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_first_screen_of_the_readme(tmp_path, monkeypatch, capsys):
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text[: text.index("## Methods")].splitlines()) <= 55
    commands, printed = re.search(r"```bash\n(pip install .*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()
    _, echo, verify = commands.strip().splitlines()
    monkeypatch.chdir(tmp_path)
    subprocess.run(["sh", "-c", echo], check=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(verify.split()[1:]) == 0
    lines = printed.splitlines()
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-len(lines) :]] == [
        line.split() for line in lines
    ]
    assert (tmp_path / "report.html").exists()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines()[0] == "supported Marie Curie was born in Warsaw in 1867."


def test_architecture_names_every_module():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "hf_factuality").glob("*.py"):
        assert path.name == "__init__.py" or path.name in text, path.name
