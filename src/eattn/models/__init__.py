"""Time-series models: a sequence classifier and two forecasters."""

from eattn.models.classifier import SequenceClassifier
from eattn.models.forecaster import Forecaster, ForecasterState
from eattn.models.quantile_forecaster import QuantileForecaster

__all__ = ["Forecaster", "ForecasterState", "QuantileForecaster", "SequenceClassifier"]
