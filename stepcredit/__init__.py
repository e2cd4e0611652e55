"""Multi-step reinforcement learning of language models: which token earned the reward?

Importing the package registers the `stepcredit/*` environments with gymnasium. It loads neither
torch nor transformers.
"""

from stepcredit.envs.registry import make, register

__all__ = ["__version__", "make", "register"]

__version__ = "0.1.0"
