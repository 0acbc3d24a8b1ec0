"""MkDocs hooks: links to files outside docs/ lead to the repository, and the changelog is that of the repository."""

import re
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
_OUTSIDE = re.compile(r"(\]\()((?:\.\./)+)([^)#]+)((?:#[^)]*)?\))")


def on_page_markdown(markdown, page, config, **_):
    """Links that are right on disk, relative to the page, become links into the repository."""
    folder = Path(config["docs_dir"], page.file.src_uri).parent

    def link(match):
        target = (folder / (match[2] + match[3])).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{config['repo_url']}/{kind}/main/{target.relative_to(ROOT)}{match[4]}"

    if page.file.src_uri == "changelog.md":
        markdown = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return _OUTSIDE.sub(link, markdown)
