"""Rewards of long answers by the labels of their claims (docs/long-form.md)."""
