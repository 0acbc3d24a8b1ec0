"""What a training takes of a GPU's memory, from configurations alone: nothing is loaded or run."""

from hf_factuality.trainers.memory.advice import Advice, MemoryPlan, advise, as_flag, best_plan, plan_training
from hf_factuality.trainers.memory.passes import Pass, VerifierModel, trace
from hf_factuality.trainers.memory.terms import PHASES, SHARDINGS, USABLE, Term, memory_plan, peak


__all__ = [
    "PHASES",
    "SHARDINGS",
    "USABLE",
    "Advice",
    "Pass",
    "MemoryPlan",
    "Term",
    "VerifierModel",
    "advise",
    "as_flag",
    "best_plan",
    "memory_plan",
    "peak",
    "plan_training",
    "trace",
]
