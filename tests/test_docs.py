"""What the documentation shows is run, and what it links to exists."""

import re
from pathlib import Path

import pytest

from hf_factuality import Label, VerifierInput


REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_verifier_of_the_guide_works():
    text = (REPOSITORY / "docs" / "adding-a-verifier.md").read_text(encoding="utf-8")
    namespace = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], namespace)  # noqa: S102 - our own page
    (found,) = namespace["YearVerifier"]().verify([VerifierInput("Born 1867, died 1934.", evidence=("In 1867.",))])
    assert [(span.start, span.end, span.label) for span in found.spans] == [
        (5, 9, Label.SUPPORTED),
        (16, 20, Label.CONTRADICTED),
    ]


def test_architecture_names_every_module():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "hf_factuality").glob("*.py"):
        assert path.name == "__init__.py" or path.name in text, path.name
