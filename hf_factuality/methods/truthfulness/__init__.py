"""A model of P(true), trained with labelled statements (docs/truthfulness.md)."""
