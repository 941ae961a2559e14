"""Element-wise attention for PyTorch: exact, in linear time, and as a constant-size recurrence.

Importing eattn is cheap: torch is imported when a name is first used.

Examples
--------
>>> import eattn, torch
>>> q, k, v = torch.randn(3, 1, 5, 4).unbind()
>>> eattn.ea_series(q, k, v, order=6, causal=True).shape
torch.Size([1, 5, 4])
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eattn import data, distributed, export, hf, lm, models, nn, ops, timeseries, train
    from eattn.diagnosis import diagnose
    from eattn.ops import (
        Quadrature,
        State,
        Taylor,
        accumulate,
        backends,
        ea,
        ea_series,
        ea_series_step,
        readout,
    )

__version__ = "0.2.0"

__all__ = [
    "Quadrature",
    "State",
    "Taylor",
    "__version__",
    "accumulate",
    "backends",
    "data",
    "diagnose",
    "distributed",
    "ea",
    "ea_series",
    "ea_series_step",
    "export",
    "hf",
    "lm",
    "models",
    "nn",
    "ops",
    "readout",
    "timeseries",
    "train",
]

_LAZY = ("data", "distributed", "export", "hf", "lm", "models", "nn", "ops", "timeseries", "train")


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name in _LAZY:
        return import_module(f"eattn.{name}")
    if name in __all__:
        home = "eattn.diagnosis" if name == "diagnose" else "eattn.ops"
        value = getattr(import_module(home), name)
        globals()[name] = value  # later accesses skip __getattr__
        return value
    raise AttributeError(f"module 'eattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
