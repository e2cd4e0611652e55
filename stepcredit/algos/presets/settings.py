"""The kinds of numbers that presets are set with."""

from typing import Annotated, Literal

from pydantic import Field

AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
ZeroVariance = Literal["keep", "drop", "resample"]
