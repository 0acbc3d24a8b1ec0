"""Judges: one module each, and its verifier."""
