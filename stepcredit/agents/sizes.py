"""The sizes of the tiny decoder, apart from the model: checking a config loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of a tiny decoder."""

    hidden: int
    intermediate: int
    layers: int = 2


SIZES = {
    "0.12M": Size(hidden=64, intermediate=192),
    "0.2M": Size(hidden=96, intermediate=192),
    "0.4M": Size(hidden=128, intermediate=320),
    "1M": Size(hidden=192, intermediate=576),
}
