"""An interrupted fit is resumed bit for bit, and only with the same data."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eattn.timeseries import EAClassifier, EAForecaster
from eattn.train import CheckpointError
from eattn.train.checkpoint import Checkpoint

TINY = dict(dim=8, depth=1, heads=2, epochs=4)


def classifier(folder):
    return EAClassifier(**TINY, checkpoint=folder)


def forecaster(folder):
    return EAForecaster(3, **TINY, pretrained=None, batch_size=8, checkpoint=folder)


def fitted(make, folder, *, noise=0.0):
    """Fit the estimator and return its predictions."""
    rng = np.random.default_rng(0)
    if make is forecaster:
        values = np.sin(np.arange(90) / 3) + noise * rng.normal(size=90)
        return make(folder).fit(values).predict()["EAForecaster"].to_numpy()
    X = rng.normal(size=(40, 2, 12)) + np.arange(40).reshape(-1, 1, 1) % 2
    X += noise * rng.normal(size=X.shape)
    return make(folder).fit(X, np.arange(40) % 2).predict_proba(X)


def stop(monkeypatch, *, after):
    """Interrupt the run after this many checkpoints."""
    save, count = Checkpoint.save, iter(range(after))

    def interrupted(self, state):
        save(self, state)
        if next(count, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)


@pytest.mark.parametrize("make", [classifier, forecaster])
def test_interrupted_fit_is_resumed_bit_for_bit(make, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop(patch, after=1)
        with pytest.raises(KeyboardInterrupt):
            fitted(make, tmp_path)
    saves = []
    save = Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", lambda *args: (saves.append(1), save(*args)))
    assert_array_equal(fitted(make, tmp_path), fitted(make, None))
    resumed = len(saves)
    fitted(make, tmp_path / "whole")
    assert resumed == len(saves) - resumed - 2  # two were written before
    with pytest.raises(
        CheckpointError, match=r"belongs to a run with another task: data was \w+ and is \w+"
    ):
        fitted(make, tmp_path, noise=0.1)
