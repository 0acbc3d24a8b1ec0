"""What the documentation shows is run, and what it links to exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_factuality import Label, LabeledSpan, Verification
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
    assert len(text[: text.index("## More")].splitlines()) <= 50
    commands, printed = re.search(r"```bash\n(echo .*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()
    echo, verify = commands.strip().splitlines()
    monkeypatch.chdir(tmp_path)
    subprocess.run(["sh", "-c", echo], check=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(verify.split()[1:]) == 0
    assert [line.split() for line in capsys.readouterr().out.split("\n")[-5:] if line] == [
        line.split() for line in printed.splitlines()
    ]
    assert (tmp_path / "report.html").exists()


def test_a_verifier_and_a_reward_from_outside_work_as_the_page_says(tmp_path, monkeypatch, capsys):
    page = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "outside.py").write_text("\n".join(block for block in blocks if "MyJudge" not in block))
    (tmp_path / "answers.jsonl").write_text('{"completion": "Born 1867, died 1934.", "evidence": ["In 1867."]}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    flags = ["--verifier", "outside:YearVerifier", "--out", "labelled.jsonl"]
    assert main(["verify", "answers.jsonl", *flags]) == 0
    row = json.loads((tmp_path / "labelled.jsonl").read_text())
    spans = [(span["start"], span["end"], span["label"]) for span in row["verification"]["spans"]]
    assert spans == [(5, 9, "supported"), (16, 20, "contradicted")]
    import outside

    missing = Verification((LabeledSpan(0, 1, Label.UNVERIFIABLE), LabeledSpan(2, 3, Label.SUPPORTED)))
    assert outside.few_unsupported(["", ""], [missing, Verification(error="x")]) == [-0.1, None]


def test_architecture_names_every_module():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "hf_factuality").glob("*.py"):
        assert path.name == "__init__.py" or path.name in text, path.name
