"""The mathematics on tensors: element-wise attention, exact and as a series."""

from eattn.ops.exact import ea
from eattn.ops.expansion import Expansion, Quadrature, Taylor
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
    "Expansion",
    "Quadrature",
    "State",
    "Taylor",
    "accumulate",
    "backends",
    "ea",
    "ea_series",
    "ea_series_step",
    "readout",
]
