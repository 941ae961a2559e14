"""Pretrained weights: adapted to the series at hand, read without training, trained further."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from forecaster_helpers import LEVELS, long, same, tiny, wave
from safetensors.torch import save_file
from torch.testing import assert_close

from eattn.models import QuantileForecaster
from eattn.timeseries import EAForecaster
from eattn.timeseries.features import (
    PLAIN_RULES,
    SEASON_FEATURES,
    SEASON_RULES,
    STEP_FEATURES,
    TOKEN_FEATURES,
    rule_names,
)
from eattn.timeseries.pretrained import FOLDER, adapt, load_pretrained


def make(seasons, *, tokens=0, features=0, levels=LEVELS, weights=None):
    """Return a model with adapted weights, with further tokens and features."""
    sizes = dict(
        tokens=TOKEN_FEATURES + SEASON_FEATURES * seasons + tokens,
        features=STEP_FEATURES + features,
        levels=levels,
    )
    base = load_pretrained("small")
    model = QuantileForecaster(
        rules=len(rule_names(range(seasons))), plain=STEP_FEATURES, **sizes, **base.design
    )
    model.load_state_dict(adapt(weights or base.weights, seasons=seasons, **sizes))
    return model.eval()


def inputs(seasons, *, tokens=0, features=0):
    rng = np.random.default_rng(0)
    rules = len(SEASON_RULES) * seasons + len(PLAIN_RULES)
    shapes = (
        (2, 9, TOKEN_FEATURES + SEASON_FEATURES * seasons + tokens),
        (2, 4, 5, rules),
        (2, 4, 5, STEP_FEATURES + features),
    )
    x, rule, known = (torch.from_numpy(rng.normal(size=shape)).float() for shape in shapes)
    return x, torch.tensor([[2, 4, 6, 8]] * 2), rule, known


def test_weights_of_fewer_seasons_are_those_of_missing_inputs():
    """Inputs of zero for the second season, and a rule that does not differ, change nothing."""
    two, one = make(2), make(1)
    x, at, rules, known = inputs(1)
    wide = torch.cat([x, torch.zeros(2, 9, SEASON_FEATURES)], -1)
    size = len(SEASON_RULES)
    with torch.no_grad():
        expected = one.read(x)[0]
        assert_close(two.read(wide)[0], expected)
        two.from_step.weight[:, size : 2 * size] = 0
        same_rule = rules[..., :1].expand(*rules.shape[:-1], size)  # no correction of it
        more = torch.cat([rules[..., :size], same_rule, rules[..., size:]], -1)
        assert_close(two(wide, at, more, known), one(x, at, rules, known))


def test_further_inputs_change_nothing_before_training():
    x, at, rules, known = inputs(1, tokens=3, features=2)
    with torch.no_grad():
        wide = make(1, tokens=3, features=2)(x, at, rules, known)
        narrow = make(1)(x[..., :-3], at, rules, known[..., :-2])
    assert_close(wide, narrow)


def test_further_levels_keep_the_others_in_order():
    x, at, rules, known = inputs(0)
    levels = sorted({*LEVELS, 0.02, 0.25, 0.99})
    with torch.no_grad():
        found = make(0, levels=levels)(x, at, rules, known)
        median = make(0)(x, at, rules, known)[..., LEVELS.index(0.5)]
    assert (found.diff(dim=-1) > 0).all()
    assert_close(found[..., levels.index(0.5)], median)


def test_package_holds_small_weights_and_their_card():
    path = FOLDER / "small.safetensors"
    assert path.stat().st_size < 4e6
    model = make(2)
    assert 200_000 <= sum(p.numel() for p in model.parameters()) <= 500_000
    assert "Apache" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_default_reads_the_history_without_training():
    """A season is continued, at any level and scale."""
    t = np.arange(240)
    y = 1000 + 50 * np.sin(t * np.pi / 12)
    model = EAForecaster(24, season_length=24).fit(y)
    assert model.history_ is None
    assert model.fit_report_.columns[2] == "zero-shot"
    expected = 1000 + 50 * np.sin(np.arange(240, 264) * np.pi / 12)
    np.testing.assert_allclose(model.predict()["EAForecaster"], expected, atol=10)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_history_may_be_short(count):
    model = EAForecaster(30, quantiles=(0.1, 0.9)).fit(np.arange(count) + 5.0)
    table = model.predict(horizon=70)
    assert len(table) == 70
    assert (table["EAForecaster-q10"] < table["EAForecaster"]).all()
    assert (table["EAForecaster"] < table["EAForecaster-q90"]).all()


def test_constant_series_needs_no_training():
    assert np.ptp(EAForecaster(5).fit(np.full(40, 3.0)).predict()["EAForecaster"]) < 0.1


def test_stream_equals_a_longer_history():
    y = wave(90)
    first = EAForecaster(6, season_length=12).fit(y[:60])
    whole = first.with_history(y)
    same(first.update(y[60:]).predict(), whole.predict(), 1e-3)


def test_fine_tuning_learns_covariates():
    """The values follow a switch that the pretrained weights do not know."""
    rng = np.random.default_rng(0)
    switch = rng.integers(2, size=200)
    values = 4 * switch + 0.3 * rng.normal(size=200)
    frame = pd.DataFrame({"unique_id": 0, "ds": range(200), "y": values})
    before = EAForecaster(3).fit(frame)
    options = dict(finetune_steps=50, batch_size=8, lr=5e-3, random_state=0)
    after = EAForecaster(3, futr_exog_list=["x"], **options).fit(frame.assign(x=switch))
    assert after.history_ is not None
    loss = after.fit_report_["fine-tuned"][0]
    assert loss < 0.8 * before.fit_report_["zero-shot"][0]


def test_covariates_start_as_if_they_were_not_there():
    frame = long({"a": 80})
    frame["x"] = wave(80, seed=3)
    plain = EAForecaster(4, season_length=12).fit(frame[["unique_id", "ds", "y"]][:70])
    given = EAForecaster(4, season_length=12, futr_exog_list=["x"], finetune_steps=1, lr=1e-30)
    given.fit(frame[:70])
    future = frame.loc[70:73, ["unique_id", "ds", "x"]]
    same(given.predict(futr_df=future), plain.predict(), 1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dim=8), "dim cannot be set for pretrained weights"),
        (dict(mixer="sa"), "mixer cannot be set for pretrained weights"),
        (dict(depth=1), "depth cannot be set for pretrained weights"),
        (dict(pretrained="large"), "pretrained must be one of 'small', a file or None, got 'large"),
        (dict(pretrained=None, finetune_steps=5), "finetune_steps needs pretrained weights"),
        (dict(finetune_steps=-1), "finetune_steps must be at least 0"),
    ],
    ids=str,
)
def test_parameters_that_exclude_each_other(options, message):
    with pytest.raises(ValueError, match=message):
        EAForecaster(**options).fit(wave(40))


def test_weights_may_come_from_a_file(tmp_path):
    base, path = load_pretrained("small"), tmp_path / "own.safetensors"
    zero = {name: torch.zeros_like(x) for name, x in base.weights.items() if "head" in name}
    weights = {name: x.clone() for name, x in base.weights.items()} | zero
    save_file(weights, path, {"design": json.dumps(base.design)})
    own = EAForecaster(3, pretrained=str(path), fallback=False).fit(wave(60)).predict()
    assert not own.equals(EAForecaster(3, fallback=False).fit(wave(60)).predict())
    save_file(weights, path.with_name("other.safetensors"))
    with pytest.raises(ValueError, match=r"other\.safetensors has no pretrained weights"):
        EAForecaster(3, pretrained=str(path.with_name("other.safetensors"))).fit(wave(60))


def test_saved_models_keep_their_weights(tmp_path):
    frame = pd.DataFrame({"unique_id": 1, "ds": range(50), "y": wave(50)})
    model = EAForecaster(3).fit(frame)
    model.save(tmp_path / "model")
    same(EAForecaster.load(tmp_path / "model").predict(), model.predict(), 0)
    assert tiny().fit(frame).fit_report_.columns[2] == "trained"
