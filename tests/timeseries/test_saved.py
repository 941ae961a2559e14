"""Classifiers saved by version 0.1 predict the same; forecasters raise."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eattn.timeseries import EAClassifier, EAForecaster
from eattn.timeseries.store import ModelError

SAVED = Path(__file__).parents[1] / "saved" / "0.1"


def expected_of(name: str) -> dict:
    """Read the inputs and predictions stored next to the folder of a model."""
    return json.loads((SAVED / f"{name}.json").read_text())


def test_saved_classifier_predicts_the_same():
    expected = expected_of("classifier")
    classifier = EAClassifier.load(SAVED / "classifier")
    X = [np.array(x, dtype=float) for x in expected["X"]]
    assert_allclose(classifier.predict_proba(X), expected["proba"], atol=1e-5)
    assert classifier.predict(X).tolist() == expected["labels"]


def test_saved_forecaster_must_be_fitted_again():
    with pytest.raises(ModelError, match=r"forecaster was saved by eattn 0\.1, .*: fit again$"):
        EAForecaster.load(SAVED / "forecaster")
