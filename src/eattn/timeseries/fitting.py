"""Fit a forecaster: prepare the series, train the model, calibrate it, and choose fallbacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eattn._checks import check_size
from eattn.data.freq import times_after
from eattn.models import QuantileForecaster
from eattn.timeseries import training
from eattn.timeseries.calendar import calendar_columns, usual_seasons, varying_fields
from eattn.timeseries.calibration import Calibration, all_levels, check_quantiles
from eattn.timeseries.choice import Choice, choose
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.features import STEP_FEATURES, rule_names
from eattn.timeseries.inputs import Columns, TimeSeries
from eattn.timeseries.predictor import Predictor
from eattn.timeseries.pretrained import adapt, load_pretrained
from eattn.timeseries.tracking import Track
from eattn.timeseries.windows import (
    MIN_PAST,
    SeriesTable,
    TrainingWindows,
    check_varies,
    validation_sizes,
    validation_windows,
)
from eattn.train import History, isolated
from eattn.train.optim import choose_device

VALIDATION_WINDOWS = 2048  # that choose between the model and simple forecasts
DEFAULTS: Mapping[str, Any] = {"mixer": "ea-6+decay", "dim": 64, "depth": 1}  # not pretrained
ZERO_SHOT, FINE_TUNED, TRAINED = "zero-shot", "fine-tuned", "trained"  # names of models


@dataclass(frozen=True, eq=False)
class Fit:
    """Result of a fit."""

    predictor: Predictor
    design: dict[str, Any]  # arguments of the model
    history: History | None  # None without training
    choice: Choice
    seed: int
    tracks: Sequence[Track]  # of the series after their last value


def fit_forecaster(
    series: Sequence[TimeSeries], columns: Columns, params: Mapping[str, Any], *, progress: bool
) -> Fit:
    """Fit a forecaster with these parameters to series with a row for every step.

    Pretrained weights are trained further only if that is asked for, or if there are covariates,
    which they do not know.
    """
    horizon, lengths = params["horizon"], np.array([len(s) for s in series])
    base = None if params["pretrained"] is None else load_pretrained(params["pretrained"])
    seasons = choose_seasons(params["season_length"], series)
    covariates = Covariates.fit(series, columns, params["holidays"])
    trains = base is None or params["finetune_steps"] > 0 or training.has_covariates(params)
    fields = varying_fields(s.ds for s in series) if trains else ()
    table = make_table(series, fields, covariates, seasons=seasons, horizon=horizon)
    sizes = validation_sizes(lengths, horizon, params["validation_fraction"])
    seed = training.seed_of(params["random_state"])
    levels = all_levels(check_quantiles(params["quantiles"]))
    inputs = {
        "tokens": table.tokens.shape[1],
        "features": STEP_FEATURES + table.known.shape[1],
        "levels": list(levels),
    }
    design = _encoder(params) if base is None else dict(base.design)
    design |= inputs | {"rules": len(rule_names(seasons)), "plain": STEP_FEATURES}
    with isolated(seed):
        model = QuantileForecaster(**design)
    if base is not None:
        model.load_state_dict(adapt(base.weights, seasons=len(seasons), **inputs))
    model.to(choose_device(model, params["device"]))
    validation = validation_windows(table, sizes, max(2, VALIDATION_WINDOWS // len(series)))
    name, history = ZERO_SHOT, None
    if trains:
        check_varies(series)
        windows = TrainingWindows(table, lengths - sizes, seed)
        if not len(windows):
            raise ValueError(
                f"the longest series has {lengths.max()} values, but training needs at least"
                f" {MIN_PAST + 1}"
            )
        config = training.forecaster_config(params, len(windows), seed)
        parts = (model, windows, validation, config)
        if base is None:
            name, history = TRAINED, training.train_forecaster(*parts, progress=progress)
        else:
            history, share = training.finetune_forecaster(*parts, progress=progress)
            name = FINE_TUNED if share else ZERO_SHOT
    calibration = Calibration(levels, horizon)
    choice = choose(model.eval(), validation, calibration, len(series), name=name)
    predictor = Predictor(model, fields, seasons, calibration, covariates)
    return Fit(predictor, design, history, choice, seed, table.tracks)


def _encoder(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the design of an encoder without pretrained weights."""
    given = {name: params[name] for name in DEFAULTS if params[name] is not None}
    design = {**DEFAULTS, **given, "heads": params["heads"], "dropout": params["dropout"]}
    return design | {"norm": "pre", "short_conv": 4, "ffn": 2 * design["dim"]}


def make_table(
    series: Sequence[TimeSeries],
    fields: Sequence[str],
    covariates: Covariates,
    *,
    seasons: tuple[int, ...],
    horizon: int,
) -> SeriesTable:
    """Return the rows of all series with what is known about them.

    Future covariates after the last row are not known in training; no loss depends on them.
    """
    known, past = [], []
    for s in series:
        assert s.ds is not None and s.freq is not None
        futr, hist, stat = covariates.encode_history(s)
        futr = np.concatenate([futr, np.repeat(futr[-1:], horizon, 0)])
        times = s.ds.append(times_after(s.freq, s.ds[-1], horizon))
        static = np.broadcast_to(stat, (len(times), len(stat)))
        known.append(np.concatenate([calendar_columns(times, fields), futr, static], -1))
        past.append(hist)
    return SeriesTable.of(series, known, past, seasons=seasons, horizon=horizon)


def choose_seasons(
    given: int | Sequence[int] | None, series: Sequence[TimeSeries]
) -> tuple[int, ...]:
    """Return the season lengths to use: those that the longest series completes twice."""
    assert series[0].freq is not None
    lengths = usual_seasons(series[0].freq) if given is None else check_seasons(given)
    longest = max(len(s) for s in series)
    return tuple(m for m in sorted(set(lengths)) if 1 < m <= longest // 2)


def check_seasons(given: int | Sequence[int] | None) -> list[int]:
    """Return the given season lengths, or raise unless they are positive whole numbers."""
    lengths = [] if given is None else np.atleast_1d(given).tolist()
    return [check_size("season_length", length) for length in lengths]
