"""Rewards: of whole completions, for any TRL trainer, and of tokens, for [`~hf_factuality.TokenRewardPPOTrainer`].

`__init__.pyi` lists the names.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)
