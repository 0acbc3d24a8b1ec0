"""F-DPO: DPO with a label flip and a margin, by one factuality label per completion (docs/fdpo.md)."""
