# Public names, which load on first use.
from hf_factuality.methods.fdpo.config import FDPOConfig as FDPOConfig
from hf_factuality.methods.fdpo.trainer import FDPOTrainer as FDPOTrainer
