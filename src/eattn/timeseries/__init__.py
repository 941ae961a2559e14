"""Estimators with scikit-learn's manners on arrays and data frames, over `models` and `train`.

They need more packages: `pip install "eattn[timeseries]"`, imported when the first name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eattn.timeseries.classifier import EAClassifier
    from eattn.timeseries.forecaster import EAForecaster

__all__ = ["EAClassifier", "EAForecaster"]

_MODULES = {"EAClassifier": "classifier", "EAForecaster": "forecaster"}


def __getattr__(name: str) -> object:
    """Import on first use (PEP 562): aeon takes seconds."""
    if name in _MODULES:
        value = getattr(import_module(f"eattn.timeseries.{_MODULES[name]}"), name)
        globals()[name] = value  # found directly from now on
        return value
    raise AttributeError(f"module 'eattn.timeseries' has no attribute {name!r}")
