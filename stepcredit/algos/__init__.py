"""Numbers: advantages, trust regions, losses, presets and the trainer."""

from stepcredit.algos.presets import ALGORITHMS, Algorithm
from stepcredit.algos.trainer import train

__all__ = ["ALGORITHMS", "Algorithm", "train"]
