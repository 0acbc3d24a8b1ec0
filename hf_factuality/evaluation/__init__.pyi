# Public names, which load on first use.
from hf_factuality.evaluation.compare import compare_results as compare_results
from hf_factuality.hub.results import load_results as load_results
