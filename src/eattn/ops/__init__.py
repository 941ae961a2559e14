"""The mathematics on tensors: element-wise attention, exact and as a series."""

from eattn.ops.exact import ea
from eattn.ops.series import (
    BACKENDS,
    accumulate,
    backends,
    ea_series,
    ea_series_step,
    readout,
)
from eattn.ops.state import State

__all__ = [
    "BACKENDS",
    "State",
    "accumulate",
    "backends",
    "ea",
    "ea_series",
    "ea_series_step",
    "readout",
]
