"""Reward models that score every token."""
