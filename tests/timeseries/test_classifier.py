"""EAClassifier: input formats, missing values, labels, estimator checks and saving."""

import copy
import importlib
import random
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from mixer_helpers import CAUSAL_ONLY
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from eattn.data import load_classification
from eattn.nn import MIXERS
from eattn.timeseries import EAClassifier
from eattn.timeseries.arrays import pad, to_tensors
from eattn.timeseries.store import ModelError, save
from eattn.timeseries.training import classifier_config

TINY = dict(dim=8, depth=1, heads=2, epochs=2)
SMALL = dict(dim=16, depth=1, heads=2, epochs=30, lr=1e-2)


def waves(samples=60, *, seed=0, channels=2, shortest=12, longest=20):
    """Return slow and fast waves with noise, of unequal length."""
    rng = np.random.default_rng(seed)
    X = []
    for i in range(samples):
        time = np.arange(rng.integers(shortest, longest + 1))
        wave = np.sin(time * (0.3, 1.5)[i % 2] + rng.uniform(0, 6))
        X.append(5 + wave + 0.1 * rng.normal(size=(channels, len(time))))
    return X, np.array(["slow", "fast"] * (samples // 2))


def array(samples=30, **options):
    X, y = waves(samples, shortest=16, longest=16, **options)
    return np.stack(X), y


@pytest.fixture(scope="module")
def fitted():
    return EAClassifier(**SMALL).fit(*waves())


def test_slow_and_fast_waves_are_classified(fitted):
    X, y = waves(seed=1)
    assert fitted.score(X, y) > 0.9
    assert_array_equal(fitted.classes_, ["fast", "slow"])
    assert_allclose(fitted.predict_proba(X).sum(1), 1)
    assert_array_equal(fitted.predict(X), fitted.classes_[fitted.predict_proba(X).argmax(1)])


@pytest.mark.slow
def test_japanese_vowels_are_learned():
    train, test = (
        load_classification("JapaneseVowels", s, download=False) for s in ("train", "test")
    )
    classifier = EAClassifier(dim=64, depth=1, epochs=8, lr=3e-3).fit(train.X, train.y)
    assert classifier.score(test.X, test.y) > 0.9


@pytest.mark.parametrize("mixer", [*(n for n in MIXERS if n not in CAUSAL_ONLY), "ea-q25r12+norm"])
def test_every_mixer_predicts_series_longer_than_in_fit(mixer):
    X, y = waves(12)
    classifier = EAClassifier(mixer, **TINY).fit([x[:, :10] for x in X], y)
    assert np.isfinite(classifier.predict_proba(X)).all()


def test_causal_mixer_raises():
    X, y = waves(12)
    for mixer in ("deltanet", "ea-6+gate"):
        message = f"{re.escape(repr(mixer))} needs causal=True, got False; a model that"
        with pytest.raises(ValueError, match=message):
            EAClassifier(mixer, **TINY).fit(X, y)


def test_long_series_are_split_and_averaged(fitted):
    longest = fitted.max_len_
    [x] = waves(1 + 1, shortest=2 * longest + 3, longest=2 * longest + 3)[0][:1]
    whole = fitted.predict_proba([x])
    starts = [0, 12, longest + 3]  # the middle piece starts at round(23 / 2)
    parts = [x[:, start : start + longest] for start in starts]
    assert_allclose(whole[0], fitted.predict_proba(parts).mean(0), rtol=1e-12)


def test_arrays_lists_and_frames_give_the_same():
    X, y = array(channels=1)
    expected = EAClassifier(**TINY).fit(X, y).predict_proba(X)
    forms = [X[:, 0], list(X), list(X[:, 0]), pd.DataFrame(X[:, 0])]
    labels = [y.tolist(), pd.Series(y), pd.DataFrame({"label": y}), y]
    for form, label in zip(forms, labels, strict=True):
        other = EAClassifier(**TINY).fit(form, label)
        assert_array_equal(other.predict_proba(X), expected)
        assert_array_equal(other.predict_proba(form), expected)


def test_predictions_do_not_depend_on_the_batch(fitted):
    X, _ = waves(8, seed=2)
    together = fitted.predict_proba(X)
    alone = np.concatenate([fitted.predict_proba([x]) for x in X])
    assert_allclose(together, alone, atol=1e-5)


def test_nan_at_both_ends_is_padding():
    X, y = waves(20)
    padded = np.full((20, 2, 30), np.nan)
    for i, x in enumerate(X):
        padded[i, :, i % 4 : i % 4 + x.shape[1]] = x
    classifier = EAClassifier(**TINY).fit(X, y)
    assert not classifier.flag_missing_
    again = EAClassifier(**TINY).fit(padded, y)
    assert_array_equal(again.predict_proba(X), classifier.predict_proba(padded))


def test_missing_values_are_used_as_features():
    """Both classes are the same noise, but one has missing values."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 1, 12)), np.arange(80) % 2
    X[y == 1, :, 1:-1:2] = np.nan
    classifier = EAClassifier(**SMALL).fit(X[:40], y[:40])
    assert classifier.flag_missing_
    assert classifier.score(X[40:], y[40:]) > 0.9


def test_unobserved_series_get_a_label(fitted):
    X = [np.full((2, 5), np.nan), np.full((2, 9), np.nan), np.zeros((2, 0))]
    proba = fitted.predict_proba(X)
    assert np.isfinite(proba).all()
    assert_array_equal(proba[0], proba[1])
    assert_allclose(fitted.predict_proba([*X, waves(2)[0][0]])[:3], proba, atol=1e-6)


def test_constant_huge_and_unobserved_channels_give_finite_predictions(recwarn):
    X, y = array(channels=4)
    X[:, 1] = 0.1
    X[:, 2] = X[:, 0] * 1e300
    X[:, 3] = np.nan
    classifier = EAClassifier(**TINY).fit(X, y)
    assert np.isfinite(classifier.predict_proba(X)).all()
    X[:, 1], X[0, 0, 0] = 0.2, -1e308
    assert np.isfinite(classifier.predict_proba(X)).all()
    assert not recwarn.list


LABELS = {
    "bool": [True, False],
    "whole floats": [1.0, 0.0],
    "floats": [1.5, 0.5],
    "uint8": np.array([9, 3], np.uint8),
    "dates": np.array(["2020-02-29", "1969-12-31"], "datetime64[D]"),
    "objects": np.array(["b", "a"], dtype=object),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_keep_their_dtype(kind, tmp_path):
    X, _ = array(12)
    y = np.tile(LABELS[kind], 6)
    classifier = EAClassifier(**TINY).fit(X, y)
    assert_array_equal(classifier.classes_, sorted(set(y)))
    assert classifier.predict(X).dtype == y.dtype
    assert set(classifier.predict(X)) <= set(y)
    classifier.save(tmp_path / "model")
    loaded = EAClassifier.load(tmp_path / "model")
    assert loaded.classes_.dtype == classifier.classes_.dtype
    assert_array_equal(loaded.predict(X), classifier.predict(X))


@pytest.mark.parametrize("make", [pd.Categorical, pd.Index, pd.array])
def test_labels_may_be_in_any_pandas_container(make):
    X, _ = array(12)
    y = make(["b", "a"] * 6)
    classifier = EAClassifier(**TINY).fit(X, y)
    assert classifier.classes_.tolist() == ["a", "b"]
    right = classifier.predict(X) == np.asarray(y)
    assert classifier.score(X, y) == right.mean()


def test_fractional_labels_are_scored_with_any_metric():
    X, y = waves(20)
    y = np.where(y == "slow", 0.5, 1.5)
    classifier = EAClassifier(**TINY).fit(X, y)
    assert classifier.score(X, y) == (classifier.predict(X) == y).mean()
    assert 0 <= classifier.score(X, y, "f1_macro", metric_params={"average": "macro"}) <= 1
    assert cross_val_score(EAClassifier(**TINY), X, y, cv=2, error_score="raise").shape == (2,)


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        (np.linspace(0, 1.1, 12), "12 different numbers in 12 samples"),
        ([np.nan, 1.5] * 6, "y must not contain missing labels, got one in sample 0"),
        (pd.Categorical(["a", None] * 6), "y must not contain missing labels, got one in sample 1"),
    ],
    ids=["numbers", "NaN", "None"],
)
def test_targets_that_are_no_labels_raise(y, reason):
    with pytest.raises(ValueError, match=reason):
        EAClassifier(**TINY).fit(array(12)[0], y)


@pytest.mark.parametrize(
    ("class_weight", "weights"),
    [("balanced", [2.0, 2 / 3]), ({1: 0.5}, [1.0, 0.5]), ({0: 3, 1: 1, 2: 9}, [3.0, 1.0])],
)
def test_class_weight_multiplies_the_loss(class_weight, weights, tmp_path):
    X, y = array(32)[0], np.array([0, 1, 1, 1] * 8)
    options = TINY | dict(epochs=1, batch_size=64, validation_fraction=0, dropout=0.0)
    losses = []
    for weight in (class_weight, {0: 0, 1: 1}, {0: 1, 1: 0}):  # the last two: a class alone
        fitted = EAClassifier(**options, class_weight=weight).fit(X, y)
        losses.append(fitted.history_.rows[-1].loss)
    assert losses[0] == pytest.approx(weights[1] * losses[1] + weights[0] * losses[2], rel=1e-5)
    classifier = EAClassifier(**options, class_weight=class_weight).fit(X, y)
    classifier.save(tmp_path / "model")
    again = clone(EAClassifier.load(tmp_path / "model")).fit(X, y)
    assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_class_weight_finds_more_of_a_rare_class():
    rng = np.random.default_rng(0)
    y = np.array([1, 0, 0, 0, 0, 0, 0, 0] * 20)
    X = rng.normal(size=(160, 1, 8)) + 0.5 * y[:, None, None]
    found = [
        (EAClassifier(**SMALL | {"epochs": 5}, class_weight=w).fit(X, y).predict(X) == 1).sum()
        for w in (None, "balanced")
    ]
    assert found[1] > 2 * found[0]


def test_single_class_cannot_be_fitted_but_scored(fitted):
    X, y = waves(20, seed=1)
    slow = [x for x, label in zip(X, y, strict=True) if label == "slow"]
    with pytest.raises(ValueError, match="at least 2 unique labels, but found 1"):
        EAClassifier(**TINY).fit(slow, ["slow"] * 10)
    assert fitted.score(slow, ["slow"] * 10) > 0.8


def infinite():
    X, _ = waves(2)
    X[1][1, 3] = np.inf
    return X


def test_invalid_series_raise(fitted):
    two, infinity = ["a", "b"], "got inf in sample 1, channel 1, time point 3"
    for X, reason in [
        (infinite(), infinity),
        (np.zeros((2, 1, 12)), "X must have 2 channels as in fit, got 1"),
        (np.zeros((2, 12)), "X must have 2 channels as in fit, got 1"),
        ([np.zeros((2, 5)), np.zeros((3, 5))], "2 in sample 0 and 3 in sample 1"),
        ([], "at least one series, got an empty list"),
        (np.zeros((0, 2, 12)), "at least one series, got an empty ndarray"),
        (np.zeros((0, 12)), "at least one series, got an empty ndarray"),
        (pd.DataFrame(), "at least one series, got an empty DataFrame"),
    ]:
        with pytest.raises(ValueError, match=reason):
            fitted.predict(X)
    for X, y, reason in [
        (infinite(), two, infinity),
        ([], [], "at least one series, got an empty list"),
        (np.zeros((0, 2, 12)), [], "at least one series, got an empty ndarray"),
        (np.full((2, 1, 5), np.nan), two, "X must contain values, got only NaN"),
        (waves(2)[0], ["a", "b", "a"], "X = 2 and y = 3"),
        (np.ones((12, 2, 9)), two * 6, "X must contain different series, got 12 identical ones"),
    ]:
        with pytest.raises(ValueError, match=reason):
            EAClassifier(**TINY).fit(X, y)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(mixer="ea-5"), "even N"),
        (dict(dim=0), "dim must be at least 1"),
        (dict(epochs=0), "epochs must be at least 1"),
        (dict(lr=-1.0), "lr must be above 0"),
        (dict(causal=1), "causal must be a bool, got int"),
        (dict(ensemble=0), "ensemble must be at least 1"),
        (dict(label_smoothing=1.0), "label_smoothing must be at least 0 and below 1"),
        (dict(causal=True, stride=2), "stride must be 1 for a causal model, got 2"),
        (dict(validation_fraction=1.0), "validation_fraction must be at least 0 and below 1"),
        (dict(class_weight="rare"), "class_weight must be a dict, 'balanced' or None, got 'rare'"),
        (dict(class_weight={"slow": -1}), "class_weight must have finite weights >= 0"),
        (dict(class_weight={"slower": 2}), "are not in class_weight"),
        (dict(random_state="0"), "random_state must be an int"),
        (dict(random_state=-1), "seed must be at least 0"),
        (dict(device="gpu"), "device must be"),
    ],
    ids=str,
)
def test_parameters_are_checked_only_by_fit(params, message):
    classifier = EAClassifier(**params)
    assert classifier.get_params().items() >= params.items()
    with pytest.raises((ValueError, TypeError), match=message):
        classifier.fit(*waves(4))


def test_seed_determines_result_and_global_state_is_kept(tmp_path):
    X, y = waves(30)

    def proba(random_state):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        classifier = EAClassifier(**TINY, random_state=random_state).fit(X, y)
        classifier.save(tmp_path / "model", force=True)
        found = EAClassifier.load(tmp_path / "model").predict_proba(X)
        drawn = random.random(), np.random.rand(), torch.rand(1).item()
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())
        return found

    assert_array_equal(proba(3), proba(3))
    assert_array_equal(proba(np.random.RandomState(3)), proba(np.random.RandomState(3)))
    assert not np.array_equal(proba(3), proba(4))
    assert not np.array_equal(proba(None), proba(None))


def test_stride_and_kernels_follow_the_length():
    X, y = np.random.default_rng(0).normal(size=(4, 1, 300)), [0, 1, 0, 1]
    design = EAClassifier(**TINY).fit(X, y).design_
    assert design["network"]["stride"] == 3
    assert design["kernels"]["dilations"] == [1, 2, 4, 8, 16, 32]
    assert design["kernels"]["thresholds"] == 5
    assert EAClassifier(**TINY).fit(X[..., :128], y).design_["network"]["stride"] == 1
    classifier = EAClassifier(**TINY, stride=np.int64(7), kernels=False, ensemble=2).fit(X, y)
    assert classifier.design_["network"]["stride"] == 7
    assert classifier.model_.kernels is None
    assert len(classifier.model_.networks) == len(classifier.histories_) == 2


@pytest.mark.parametrize("options", [{}, dict(depth=0), dict(mixer="gru"), dict(ensemble=2)])
def test_stream_gives_the_probabilities_of_every_prefix(options):
    X, y = array(20)
    X[0, 0, 5] = np.nan
    classifier = EAClassifier(**TINY | options, causal=True).fit(X, y)
    first, state = classifier.predict_stream(X[:4, :, :7])
    rest, after = classifier.predict_stream(X[:4, :, 7:], state)
    proba = np.concatenate([first, rest], 1)
    assert proba.shape == (4, 16, 2)
    for end in (1, 7, 8, 16):
        expected = classifier.predict_proba(list(X[:4, :, :end]))
        assert_allclose(proba[:, end - 1], expected, atol=1e-5)
    sizes = [sum(each.nbytes for each in either) for either in (state, after)]
    assert sizes[0] == sizes[1]


def test_stream_needs_a_causal_classifier_and_samples(fitted):
    with pytest.raises(ValueError, match="predict_stream needs a classifier with causal=True"):
        fitted.predict_stream(np.zeros((1, 2, 3)))
    X, y = array(8)
    classifier = EAClassifier(**TINY, causal=True).fit(X, y)
    with pytest.raises(ValueError, match=r"at least one sample, got shape \(1, 2, 0\)"):
        classifier.predict_stream(np.zeros((1, 2, 0)))
    with pytest.raises(ValueError, match="X must have 2 channels as in fit, got 3"):
        classifier.predict_stream(np.zeros((1, 3, 4)))


def test_ensemble_combines_networks_and_kernels():
    X, y = array(20)
    both = EAClassifier(**TINY, ensemble=2).fit(X, y)
    alone = EAClassifier(**TINY, kernels=False).fit(X, y)
    other = EAClassifier(**TINY, kernels=False, random_state=1).fit(X, y)
    x, _ = pad(to_tensors(X, both.scaler_, flag_missing=False))
    with torch.no_grad():
        kernels = both.model_.kernels(x).double().softmax(-1)
    networks = (alone.predict_proba(X) + other.predict_proba(X)) / 2
    product = np.cbrt(networks * kernels.numpy() ** 2)
    expected = product / product.sum(1, keepdims=True)
    assert_allclose(both.predict_proba(X), expected, atol=1e-5)


def test_small_data_is_trained_for_more_epochs():
    params = EAClassifier(**TINY | {"epochs": None}).get_params()
    assert [classifier_config(params, samples).epochs for samples in (4, 1000)] == [400, 30]


def test_best_epoch_is_kept_if_validated():
    X, y = waves(60)
    options = dict(validation_fraction=0.2, kernels=False)
    history = EAClassifier(**SMALL | {"epochs": 10}, patience=2, **options).fit(X, y).history_
    losses = [row.metrics["val_loss"] for row in history.rows]
    assert history.best == history.rows[int(np.argmin(losses))]
    assert EAClassifier(**TINY, kernels=False).fit(X, y).history_.best is None
    few = EAClassifier(**TINY, **options).fit(X[:40], y[:40])
    assert few.history_.best is None  # 8 validation samples are too few


def test_scikit_learn_tools_work():
    X, y = waves(24)
    scores = cross_val_score(EAClassifier(**TINY), X, y, cv=2)
    assert scores.shape == (2,)
    grid = {"mixer": ["ea-2", "sa"], "dim": np.array([4, 8])}
    search = GridSearchCV(EAClassifier(**TINY), grid, cv=2, error_score="raise").fit(*array(12))
    assert search.best_params_["mixer"] in grid["mixer"]
    pipeline = make_pipeline(FunctionTransformer(np.negative), EAClassifier(**TINY))
    X, y = array(12)
    proba = pipeline.fit(X, y).predict_proba(X)
    assert_array_equal(proba, EAClassifier(**TINY).fit(-X, y).predict_proba(-X))


def test_aeon_estimator_checks_pass():
    from aeon.testing.estimator_checking import check_estimator

    outcome = check_estimator(EAClassifier, raise_exceptions=True)
    assert len(outcome) > 20
    assert set(outcome.values()) == {"PASSED"}


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(ensemble=2)], ids=str)
def test_loaded_model_predicts_the_same_bits(tmp_path, options):
    X, y = waves(30)
    X[3][0, 5] = np.nan
    classifier = EAClassifier(**TINY, **options, random_state=np.random.RandomState(1))
    classifier.fit(X, y).save(tmp_path / "model")
    loaded = EAClassifier.load(tmp_path / "model")
    longer = waves(6, longest=50)[0]
    assert_array_equal(loaded.predict_proba(longer), classifier.predict_proba(longer))
    assert_array_equal(loaded.predict(X), classifier.predict(X))
    assert loaded.get_params() == classifier.get_params() | {"random_state": classifier.seed_}
    with pytest.raises(ValueError, match="X must have 2 channels as in fit, got 3"):
        loaded.predict(np.zeros((1, 3, 9)))
    loaded.save(tmp_path / "again")
    for name in ("config.json", "weights.safetensors"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (tmp_path / "model" / name).read_bytes()
    assert_array_equal(clone(loaded).fit(X, y).predict_proba(X), classifier.predict_proba(X))
    loaded.set_params(dim=4, depth=3)  # for the next fit only
    assert_array_equal(loaded.predict(X), classifier.predict(X))


def test_saving_needs_a_fit_and_force_to_overwrite(fitted, tmp_path):
    with pytest.raises(ValueError, match="has not been fitted"):
        EAClassifier().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    fitted.save(tmp_path / "model")
    with pytest.raises(ModelError, match="already holds a model"):
        fitted.save(tmp_path / "model")
    fitted.save(tmp_path / "model", force=True)
    save(tmp_path / "other", "classifier", {"params": {}}, {})
    with pytest.raises(ModelError, match="other does not hold a valid classifier"):
        EAClassifier.load(tmp_path / "other")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_gpu_model_loads_without_a_gpu(fitted, tmp_path):
    elsewhere = copy.copy(fitted).set_params(device="cuda:1")
    elsewhere.save(tmp_path / "model")
    loaded = EAClassifier.load(tmp_path / "model")
    assert loaded.device == "cuda:1"
    assert_array_equal(loaded.predict_proba(waves(4)[0]), fitted.predict_proba(waves(4)[0]))


def test_progress_is_shown_on_request(capsys):
    X, y = waves(4)
    EAClassifier(**TINY).fit(X, y)
    assert not any(capsys.readouterr())
    EAClassifier(**TINY, verbose=True).fit(X, y)
    assert "epoch 2/2" in capsys.readouterr().err


def test_error_for_missing_aeon_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "aeon.classification.base", None)
    monkeypatch.delitem(sys.modules, "eattn.timeseries.classifier")
    with pytest.raises(ModuleNotFoundError, match=r'pip install "eattn\[timeseries\]"'):
        importlib.import_module("eattn.timeseries.classifier")
