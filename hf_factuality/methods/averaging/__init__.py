"""Averages of a model before and after alignment, with ratios by tensor, also learned (AMA) (docs/averaging.md)."""
