"""Time-series models: a sequence classifier and an autoregressive forecaster."""

from eattn.models.classifier import SequenceClassifier
from eattn.models.forecaster import Forecaster, ForecasterState

__all__ = ["Forecaster", "ForecasterState", "SequenceClassifier"]
