"""Fit a forecaster: prepare the series, train the model, calibrate it, and choose fallbacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eattn._checks import check_size
from eattn.data.freq import times_after
from eattn.timeseries import training
from eattn.timeseries.calendar import calendar_columns, usual_seasons, varying_fields
from eattn.timeseries.calibration import Calibration, all_levels, check_quantiles
from eattn.timeseries.choice import Choice, choose
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.features import STEP_FEATURES, rule_names
from eattn.timeseries.inputs import Columns, TimeSeries
from eattn.timeseries.predictor import Predictor
from eattn.timeseries.tracking import Track
from eattn.timeseries.windows import (
    MIN_PAST,
    SeriesTable,
    TrainingWindows,
    check_varies,
    validation_sizes,
    validation_windows,
)
from eattn.train import History

VALIDATION_WINDOWS = 2048  # that choose between the model and simple forecasts
ENCODER = {"norm": "pre", "short_conv": 4}


@dataclass(frozen=True, eq=False)
class Fit:
    """Result of a fit."""

    predictor: Predictor
    design: dict[str, Any]  # arguments of the model
    history: History
    choice: Choice
    seed: int
    tracks: Sequence[Track]  # of the series after their last value


def fit_forecaster(
    series: Sequence[TimeSeries], columns: Columns, params: Mapping[str, Any], *, progress: bool
) -> Fit:
    """Fit a forecaster with these parameters to series with a row for every step."""
    check_varies(series)
    horizon, lengths = params["horizon"], np.array([len(s) for s in series])
    seasons = choose_seasons(params["season_length"], series)
    fields = varying_fields(s.ds for s in series)
    covariates = Covariates.fit(series, columns, params["holidays"])
    table = make_table(series, fields, covariates, seasons=seasons, horizon=horizon)
    sizes = validation_sizes(lengths, horizon, params["validation_fraction"])
    seed = training.seed_of(params["random_state"])
    windows = TrainingWindows(table, lengths - sizes, seed)
    if not len(windows):
        raise ValueError(
            f"the longest series has {lengths.max()} values, but training needs at least"
            f" {MIN_PAST + 1}"
        )
    config = training.forecaster_config(params, len(windows), seed)
    levels = all_levels(check_quantiles(params["quantiles"]))
    design = {name: params[name] for name in ("mixer", "dim", "depth", "heads", "dropout")}
    design |= ENCODER | {
        "tokens": table.tokens.shape[1],
        "rules": len(rule_names(seasons)),
        "features": STEP_FEATURES + table.known.shape[1],
        "plain": STEP_FEATURES,
        "levels": list(levels),
        "ffn": 2 * params["dim"],
    }
    validation = validation_windows(table, sizes, max(2, VALIDATION_WINDOWS // len(series)))
    model, history = training.train_forecaster(
        windows, validation, design, config, progress=progress
    )
    calibration = Calibration(levels, horizon)
    choice = choose(model.eval(), validation, calibration, len(series))
    predictor = Predictor(model, fields, seasons, calibration, covariates)
    return Fit(predictor, design, history, choice, seed, table.tracks)


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
