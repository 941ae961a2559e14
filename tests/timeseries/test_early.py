"""EarlyClassifier: the stopping rule, its choice, and streams."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eattn.timeseries import EAClassifier, EarlyClassifier
from eattn.timeseries.early import EarlyScore, choose_rule, decide
from eattn.timeseries.store import ModelError

TINY = dict(dim=8, depth=1, epochs=15, lr=1e-2, causal=True)


def shifted(samples=40, length=30, seed=0):
    """Return noise whose mean depends on the class."""
    y = np.array(["low", "high"] * (samples // 2))
    X = np.random.default_rng(seed).normal(size=(samples, 1, length))
    return X + 2 * (y == "high")[:, None, None], y


@pytest.fixture(scope="module")
def fitted():
    return EarlyClassifier(EAClassifier(**TINY), folds=2).fit(*shifted())


def slow_decide(proba, threshold, hold):
    """Return the class and the stop of one series, sample by sample."""
    run, last = 0, None
    for t, p in enumerate(proba):
        label = int(p.argmax())
        run = (run + 1 if label == last else 1) if p.max() >= threshold else 0
        last = label
        if run >= hold:
            return label, t + 1
    return label, len(proba)


@pytest.mark.parametrize("hold", [1, 2, 5])
def test_decisions_match_a_loop_over_samples(hold):
    rng = np.random.default_rng(hold)
    found = [rng.dirichlet([0.3] * 3, size=n) for n in (1, 2, 7, 40, 40, 40)]
    classes, stops = decide(found, 0.6, hold)
    expected = [slow_decide(proba, 0.6, hold) for proba in found]
    assert list(zip(classes.tolist(), stops.tolist(), strict=True)) == expected


def test_rule_stops_as_early_as_the_accuracy_allows():
    """Confident probabilities mislead at first, and are right from the tenth sample on."""
    wrong, right = [0.1, 0.9], [0.95, 0.05]
    found = [np.array([wrong] * 9 + [right] * 11)] * 8
    threshold, hold, score = choose_rule(found, [0] * 8)
    assert 0.9 < threshold <= 0.95
    assert score == EarlyScore(1.0, (9 + hold) / 20)
    assert hold == 1


def test_series_are_classified_before_their_end(fitted):
    X, y = shifted(seed=1)
    labels, stops = fitted.predict_early(X)
    score = fitted.evaluate(X, y)
    assert score == EarlyScore((labels == y).mean(), (stops / 30).mean())
    assert score.accuracy > 0.9
    assert score.earliness < 0.5
    assert score.harmonic_mean == pytest.approx(
        2 / (1 / score.accuracy + 1 / (1 - score.earliness))
    )


def test_streams_decide_when_series_do(fitted):
    X, _ = shifted(10, seed=2)
    labels, stops = fitted.predict_early(X)
    state, decisions = None, [None] * 10
    for t in range(30):
        found, state = fitted.predict_stream(X[:, :, t : t + 1], state)
        for i, label in enumerate(found):
            if decisions[i] is None and label is not None:
                decisions[i] = (label, t + 1)
    early = [i for i in range(10) if decisions[i] is not None]
    assert early
    assert_array_equal([decisions[i] for i in early], [(labels[i], str(stops[i])) for i in early])


def test_loaded_model_decides_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = EarlyClassifier.load(tmp_path / "model")
    X, _ = shifted(seed=3)
    for got, want in zip(loaded.predict_early(X), fitted.predict_early(X), strict=True):
        assert_array_equal(got, want)
    assert (loaded.score_, loaded.folds) == (fitted.score_, 2)
    EAClassifier.load(tmp_path / "model").save(tmp_path / "plain")
    with pytest.raises(ModelError, match="plain holds a classifier without a stopping rule"):
        EarlyClassifier.load(tmp_path / "plain")


def test_invalid_series_raise(fitted):
    with pytest.raises(ValueError, match="X must have 1 channels as in fit, got 2"):
        fitted.predict_early(np.zeros((3, 2, 5)))
    with pytest.raises(ValueError, match="inf"):
        fitted.predict_early(np.full((3, 1, 5), np.inf))


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        (dict(classifier=EAClassifier()), ["a", "b"] * 4, "classifier must have causal=True"),
        (dict(folds=1), ["a", "b"] * 4, "folds must be at least 2"),
        ({}, ["a", *["b"] * 7], "at least 2 samples of each class"),
    ],
)
def test_invalid_arguments_raise(options, y, message):
    with pytest.raises(ValueError, match=message):
        EarlyClassifier(**options).fit(np.zeros((8, 1, 5)), y)
