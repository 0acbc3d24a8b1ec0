"""The runs of the examples."""
