"""Time-series estimators with the scikit-learn interface, for arrays and data frames.

They require extra packages: `pip install "eattn[timeseries]"`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eattn.timeseries.classifier import EAClassifier
    from eattn.timeseries.early import EarlyClassifier
    from eattn.timeseries.forecaster import EAForecaster
    from eattn.timeseries.splitting import CutoffSplit

__all__ = ["CutoffSplit", "EAClassifier", "EAForecaster", "EarlyClassifier"]

_MODULES = {
    "CutoffSplit": "splitting",
    "EAClassifier": "classifier",
    "EAForecaster": "forecaster",
    "EarlyClassifier": "early",
}


def __getattr__(name: str) -> object:
    """Import a class on first use (PEP 562), because importing aeon takes seconds."""
    if name in _MODULES:
        value = getattr(import_module(f"eattn.timeseries.{_MODULES[name]}"), name)
        globals()[name] = value  # later accesses skip __getattr__
        return value
    raise AttributeError(f"module 'eattn.timeseries' has no attribute {name!r}")
