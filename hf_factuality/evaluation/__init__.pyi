# Public names, which load on first use.
from hf_factuality.evaluation.comparison import Comparison as Comparison, compare as compare
from hf_factuality.hub.results import load_results as load_results
