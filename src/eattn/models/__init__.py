"""Time-series models: classifiers and forecasters."""

from eattn.models.classifier import SequenceClassifier
from eattn.models.forecaster import Forecaster, ForecasterState
from eattn.models.quantile_forecaster import QuantileForecaster
from eattn.models.random_kernels import KernelClassifier
from eattn.models.shape_classifier import ClassifierEnsemble, ShapeClassifier, ShapeState

__all__ = [
    "ClassifierEnsemble",
    "Forecaster",
    "ForecasterState",
    "KernelClassifier",
    "QuantileForecaster",
    "SequenceClassifier",
    "ShapeClassifier",
    "ShapeState",
]
