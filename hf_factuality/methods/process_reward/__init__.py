"""Process rewards: P(correct) of the steps of a solution (docs/process-reward.md)."""
