"""Estimators saved by version 0.1 load and predict the same."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from eattn.timeseries import EAClassifier, EAForecaster

SAVED = Path(__file__).parents[1] / "saved" / "0.1"


def expected_of(name: str) -> dict:
    """Read the inputs and predictions stored next to the folder of a model."""
    return json.loads((SAVED / f"{name}.json").read_text())


def assert_forecast(table: pd.DataFrame, expected: dict) -> None:
    assert list(table) == list(expected)
    assert table["unique_id"].tolist() == expected["unique_id"]
    assert table["ds"].astype(str).tolist() == expected["ds"]
    for column in table.columns[2:]:
        assert_allclose(table[column], expected[column], atol=1e-5)


def test_saved_classifier_predicts_the_same():
    expected = expected_of("classifier")
    classifier = EAClassifier.load(SAVED / "classifier")
    X = [np.array(x, dtype=float) for x in expected["X"]]
    assert_allclose(classifier.predict_proba(X), expected["proba"], atol=1e-5)
    assert classifier.predict(X).tolist() == expected["labels"]


@pytest.mark.parametrize("name", ["forecaster", "forecaster-window"])
def test_saved_forecaster_predicts_and_updates_the_same(name, tmp_path):
    expected = expected_of(name)
    forecaster = EAForecaster.load(SAVED / name)
    assert_forecast(forecaster.predict(), expected["predict"])
    assert forecaster.columns_ == {"unique_id": None, "ds": "date", "y": "OT"}
    forecaster.save(tmp_path / "again")
    for model in (forecaster, EAForecaster.load(tmp_path / "again")):
        model.update(pd.DataFrame(expected["update"]))
        assert_forecast(model.predict(5), expected["after_update"])
