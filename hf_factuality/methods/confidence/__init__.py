"""Rewards of the confidence that an answer states: RLCR, DCPO, LoVeC (docs/confidence.md)."""
