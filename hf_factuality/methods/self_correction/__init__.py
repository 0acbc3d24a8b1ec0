"""Self-correction: answers that the model checks and revises (docs/self-correction.md)."""
