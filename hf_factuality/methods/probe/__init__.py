"""Hallucination probes: a linear head that judges tokens (docs/probe.md)."""
