"""Checkpoints of any kind, merged into a model that `from_pretrained` loads."""
