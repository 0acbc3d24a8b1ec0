# Public names, which load on first use.
from hf_factuality.methods.fdpo.fdpo_config import FDPOConfig as FDPOConfig
from hf_factuality.methods.fdpo.fdpo_trainer import FDPOTrainer as FDPOTrainer
