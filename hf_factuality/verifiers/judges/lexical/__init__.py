"""The embedded judge: words, numbers, negations, quantifiers and roles compared, without a model."""
