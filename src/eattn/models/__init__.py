"""Whole models for series: one label for each, or the values that come next."""

from eattn.models.classifier import SequenceClassifier
from eattn.models.forecaster import Forecaster, ForecasterState

__all__ = ["Forecaster", "ForecasterState", "SequenceClassifier"]
