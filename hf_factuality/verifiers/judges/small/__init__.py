"""A small trained network, in the package, that reads a claim beside its evidence; no download."""
