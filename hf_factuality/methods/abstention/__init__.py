"""Rewards of declining, and the data of R-Tuning (docs/abstention.md)."""
