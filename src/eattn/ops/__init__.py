"""Element-wise attention as functions of tensors: exact, and as a series in linear time."""

from eattn.ops.backends import backends
from eattn.ops.exact import ea
from eattn.ops.expansion import Expansion, Quadrature, Taylor
from eattn.ops.series import accumulate, ea_series, ea_series_step, readout
from eattn.ops.state import State

__all__ = [
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
