"""FaithRL (arXiv 2602.05897): rewards of faithful steps, and completions that go on from faithful prefixes (docs/faithrl.md)."""
