"""RLFH: rewards of single statements, paid where they end (docs/rlfh.md)."""
