"""RAG-Reward: a reward model of answers with passages (docs/rag-reward.md)."""
