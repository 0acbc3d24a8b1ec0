"""Model cards from files of results."""
