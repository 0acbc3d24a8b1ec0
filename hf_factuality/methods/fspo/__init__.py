"""FSPO (docs/fspo.md): its dataset. The credit "flip" of FactGRPOTrainer is its method."""
