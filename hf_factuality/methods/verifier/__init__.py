"""Train a judge of one's own: a classifier of a claim beside its evidence (docs/verifier-quality.md)."""
