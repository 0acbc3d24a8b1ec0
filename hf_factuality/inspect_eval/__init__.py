"""Benchmarks, verifiers and metrics of this package as tasks and scorers of Inspect (`pip install hf_factuality[inspect]`).

`inspect eval hf_factuality/factscore` finds them by the entry point `inspect_ai`; docs/inspect.md describes them.
"""
