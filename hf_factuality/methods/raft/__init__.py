"""RAFT (arXiv 2304.06767): SFT on the best of several answers to each question, repeated."""
