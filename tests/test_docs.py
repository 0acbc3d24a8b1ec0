"""What the documentation shows is run, and what it links to exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hf_factuality
import hf_factuality.trainers
from hf_factuality.cli import main


REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("api/*.md")),
]
# docs/flags.md is generated; the README has a test of its own below.
PROSE = [page for page in PAGES if page.name not in ("README.md", "flags.md")]
WORDS = 35


def without_code(page):
    """The text of a page without blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def sentences(text):
    """Sentences of Markdown, with a span of code as one word; tables and indented code are left out."""
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    text = re.sub(r"`[^`]*`", "code", "\n".join(lines))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n- |\n\d+\. ", text):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z(\[*])", paragraph.removeprefix("- ").replace("\n", " "))


def anchors(page):
    """The anchors of a page: its own, and those that GitHub makes of its headings."""
    found = re.findall(r'<a (?:id|name)="([^"]*)">', without_code(page))
    for heading in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return found


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_sentences_are_short(page):
    long = [sentence for sentence in sentences(without_code(page)) if len(sentence.split()) > WORDS]
    assert not long, f"{page.name}: more than {WORDS} words: {long[0]}"


def test_how_words_are_counted():
    text = "Run `a b c` on [two words](x.md). Next.\n\n| a | table |\n    code\n- One\n- Two"
    assert [len(sentence.split()) for sentence in sentences(text)] == [5, 1, 1, 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_lead_to_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*\.md)?#([^)]+)\)", without_code(page)):
        assert anchor in anchors((page.parent / target) if target else page), f"{page.name} links to {target}#{anchor}"


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
    monkeypatch.setenv("COLUMNS", "160")  # the page scrolls sideways
    assert main(verify.split()[1:]) == 0
    lines = printed.splitlines()
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-len(lines) :]] == [
        line.split() for line in lines
    ]
    assert (tmp_path / "report.html").exists()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines()[0] == "supported Marie Curie was born in Warsaw in 1867."


def test_one_version():
    """What docs/releasing.md asks for."""
    text = (
        (REPOSITORY / "setup.py").read_text(encoding="utf-8"),
        (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"),
    )
    assert f'version="{hf_factuality.__version__}"' in text[0] and f"version: {hf_factuality.__version__}" in text[1]


def test_every_page_is_in_the_navigation_and_every_trainer_and_function_in_the_reference():
    (nav,) = yaml.safe_load_all(
        re.split(r"^(?=nav:)", (REPOSITORY / "mkdocs.yml").read_text("utf-8"), flags=re.MULTILINE)[1]
    )
    listed = re.findall(r"[\w/-]+\.md", str(nav))
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    shown = re.findall(
        r"^::: (\S+)$", "\n".join(page.read_text("utf-8") for page in DOCS.glob("api/*.md")), re.MULTILINE
    )
    for name in shown:  # read, not imported: some need seconds
        module, _, attribute = name.rpartition(".")
        path = REPOSITORY / module.replace(".", "/")
        files = [
            file for file in (path.with_suffix(".py"), path / "__init__.py", path / "__init__.pyi") if file.exists()
        ]
        told = "\n".join(file.read_text(encoding="utf-8") for file in files)
        assert re.search(rf"^(class|def) {attribute}\b| as {attribute}\b", told, re.MULTILINE), name
    public = {*hf_factuality.__all__, *hf_factuality.trainers.__all__}
    wanted = {
        name for name in public if re.search(r"Trainer$|Config$|^build_|^(verify|evaluate|compare|merge)$", name)
    }
    assert len(wanted) > 20 and wanted <= {name.rpartition(".")[2] for name in shown}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install hf_factuality[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "site" / "api" / "functions" / "index.html").read_text(encoding="utf-8")
    assert "Label the sentences of completions" in text
    links = re.findall(r'href="([^"]*)"', (tmp_path / "site" / "papers" / "index.html").read_text(encoding="utf-8"))
    assert any(link.endswith("/tree/main/recipes/fspo") for link in links)
    assert "Newest first" in (tmp_path / "site" / "changelog" / "index.html").read_text(encoding="utf-8")


def test_architecture_names_every_module():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "hf_factuality").glob("*.py"):
        assert path.name == "__init__.py" or path.name in text, path.name
