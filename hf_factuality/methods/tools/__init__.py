"""Rollouts that search: rewards for citations, for what searching costs and for declining (docs/tools.md)."""
