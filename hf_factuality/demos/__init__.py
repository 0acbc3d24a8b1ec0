"""The small models and data that `hf-factuality train METHOD` runs on when no data is named."""
