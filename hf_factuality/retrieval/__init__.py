"""Where evidence comes from: knowledge bases and their passages, BM25, dense vectors, the web."""
