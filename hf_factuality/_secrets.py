"""Access tokens in texts: taken out of messages, and found in files before they are published."""

from __future__ import annotations

import re


_SECRETS = re.compile(
    r"\b(?:(?-i:hf_)(?!factuality)|sk-|xox[bp]-|gh[pousr]_)[\w-]{8,}|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)",
    re.IGNORECASE,
)
# Narrower, since a file is refused for it: names such as hf_device_map are none.
_TOKENS = {
    "Hugging Face": re.compile(r"\bhf_(?:oauth_)?[A-Za-z0-9]{20,}|\bapi_org_[A-Za-z0-9]{20,}"),
    "GitHub": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}"),
    "OpenAI or Anthropic": re.compile(r"\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}"),
    "AWS": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
}


def redact(text: str) -> str:
    """`text` without what looks like an access token or the login of an address: errors of servers repeat these."""
    return _SECRETS.sub("***", text)


def find_token(text: str) -> tuple[int, str] | None:
    """The first thing in a text that looks like an access token.

    Returns:
        `tuple[int, str]`, *optional*: its line, from 1, and whose tokens look like that; never the token.
    """
    found = [(match.start(), whose) for whose, pattern in _TOKENS.items() if (match := pattern.search(text))]
    if not found:
        return None
    start, whose = min(found)
    return text.count("\n", 0, start) + 1, whose
