"""A page, read back with the standard library's HTML parser."""

import base64
import hashlib
import re
from html.parser import HTMLParser


class Marks(HTMLParser):
    """Tags, text, and of each mark its class, title and text. The page's own style and script are neither tags nor text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.marks, self.text, self._open = [], [], "", None
        self.feed(without_own_script(html) if html.startswith("<!doctype") else html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "mark":
            self._open = [dict(attrs).get("class"), dict(attrs).get("title"), ""]

    def handle_endtag(self, tag):
        if tag == "mark":
            self.marks.append(tuple(self._open))
            self._open = None

    def handle_data(self, data):
        self.text += data
        if self._open:
            self._open[2] += data


def without_own_script(html):
    """The page without the one style and the one script that its policy allows, whose hashes are those of what it holds."""
    for tag in ("style", "script"):
        (allowed,) = re.findall(rf"{tag}-src 'sha256-([^']*)'", html)
        text = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() == allowed
        html = html.replace(f"<{tag}>{text}</{tag}>", "", 1)
    return html
