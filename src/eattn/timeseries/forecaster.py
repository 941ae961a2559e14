"""EAForecaster: a forecaster of many time series that is updated value by value."""

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

try:
    import pandas as pd
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAForecaster needs pandas and scikit-learn: pip install "eattn[timeseries]"'
    ) from error

from eattn.nn import check_mixer
from eattn.nn.base import check_size
from eattn.timeseries import store
from eattn.timeseries.backtesting import add_actuals, replay
from eattn.timeseries.conformal import check_quantiles, error_quantiles, extend
from eattn.timeseries.freq import check_freq
from eattn.timeseries.inputs import ID, TIME, TimeSeries, id_dtype, read_series, regularize
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.scaling import Scaler
from eattn.timeseries.training import (
    CALIBRATION_WINDOWS,
    forecast_errors,
    forecaster_config,
    forecaster_design,
    plain,
    plain_params,
    train_forecaster,
)
from eattn.timeseries.windows import LIMIT, WindowDataset, check_length, check_varies
from eattn.train import History, TrainConfig
from eattn.train.config import check_number

NAME = "EAForecaster"
NEED = (
    "need values that are held out: longer series, a smaller horizon, or a larger"
    " validation_fraction"
)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class EAForecaster(BaseEstimator):
    """One causal Transformer of any mixer for all series; no argument is required.

    `fit` takes a data frame in long format, with columns unique_id (not needed for one series), ds
    (times, or integers) and y, or one series as a pandas Series, an array or a list. Times of a
    series must rise by even steps: `freq` says which, as pandas has it, or they are inferred. A
    row that is missing, or has no y, is read as the last value before it and is never learnt from.
    Values are scaled by the mean and deviation of their own series. Month, day, weekday, hour and
    minute are read too, as far as they change from step to step and two cycles of them were seen.

    A token holds the last `lags` values. `window` is how many values a forecast comes from; None:
    the whole history, through the recurrent state. As no state may see more than it was trained
    for, one that has seen `context` values gives way to one that has seen half of them;
    context=None never does that, and forecasts of long series suffer. Models are trained on pasts
    of up to `window` or `context` values, rolling out `horizon` values through their own
    forecasts, with the absolute error in units of the scale for a loss.

    A `validation_fraction` of each series, its last part, is held out to keep the best weights and
    to stop after `patience` evaluations without better ones. `epochs` None: 500 steps. `quantiles`
    such as (0.1, 0.9) add columns EAForecaster-q10, …: for each step of the horizon, the forecast
    plus that quantile of the errors on what was held out, in units of the scale (split conformal
    prediction). They never cross; beyond the horizon of training they stay as wide as at its end;
    and as the same windows chose the weights, they are a little too narrow.

    `dtype` is that of forecasts and states: "float64" for streams without end, "float32" for less
    memory; training is in float32. `device` is "auto" or one of torch's, `verbose` shows progress.
    `checkpoint` is a folder that `fit` keeps its run in, and goes on from if that was cut off.

    Fitted: `model_` (a `Forecaster`), `history_` (of `eattn.train`), `reader_` (how the model reads
    a series), `tracks_` (where each series stands), `levels_` and `offsets_` (quantiles), `seed_`.

    >>> y = np.sin(np.arange(120) / 3)
    >>> model = EAForecaster(horizon=6, dim=16, depth=1, epochs=2).fit(y)
    >>> model.predict().columns.tolist(), len(model.update(y[:3]).predict(horizon=9))
    (['unique_id', 'ds', 'EAForecaster'], 9)
    """

    history_: History | None  # None for a model that was loaded

    def __init__(
        self,
        horizon: int = 12,
        mixer: str = "ea-6",
        window: int | None = None,
        *,
        quantiles: Sequence[float] | None = None,
        freq: str | int | None = None,
        lags: int = 24,
        context: int | None = 512,
        dim: int = 64,
        depth: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
        epochs: int | None = None,
        batch_size: int = 64,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        validation_fraction: float = 0.2,
        patience: int | None = 10,
        dtype: str = "float64",
        device: str = "auto",
        checkpoint: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.horizon = horizon
        self.mixer = mixer
        self.window = window
        self.quantiles = quantiles
        self.freq = freq
        self.lags = lags
        self.context = context
        self.dim = dim
        self.depth = depth
        self.heads = heads
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.dtype = dtype
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, df: Any, y: None = None) -> Self:
        """Train on all series of a data frame, or on one series.

        Parameters
        ----------
        df : DataFrame, Series, array or list
            A data frame in long format, or one series.
        y : None
            Ignored; for scikit-learn.
        """
        if y is not None:
            raise TypeError("y must be None: values are in the column y of df, or in df itself")
        params, config = self._check_params()
        levels = check_quantiles(params["quantiles"])
        series = regularize(read_series(df), params["freq"])
        check_varies(series)
        names = ("window", "context", "horizon", "validation_fraction")
        dataset = WindowDataset(series, **{name: params[name] for name in names})
        if levels and not any(dataset.held_out):
            raise ValueError(f"quantiles {NEED}")
        design = forecaster_design(params, dataset)
        model, history = train_forecaster(dataset, design, config, progress=bool(self.verbose))
        errors = np.empty((0, 1))
        if levels:
            errors = forecast_errors(model, dataset.validation(CALIBRATION_WINDOWS))
            if np.isnan(errors).all(0).any():
                raise ValueError(f"quantiles {NEED}")
        self.design_, self.history_, self.seed_ = design, history, config.seed
        self.levels_, self.offsets_ = levels, error_quantiles(errors, levels)
        self.model_ = model.to(DTYPES[params["dtype"]])
        self.predictor_ = Predictor(model, dataset.fields, params["window"], dataset.context)
        self._start(series, dict(zip([s.unique_id for s in series], dataset.scalers, strict=True)))
        self.id_dtype_ = id_dtype(df)
        return self

    def predict(self, horizon: int | None = None) -> pd.DataFrame:
        """Forecast the next values of each series.

        Parameters
        ----------
        horizon : int, optional
            Number of steps; that of training if None. It may be longer.

        Returns
        -------
        DataFrame
            Columns unique_id, ds, EAForecaster, and one for each quantile.
        """
        check_is_fitted(self, "states_")
        horizon = self.horizon if horizon is None else check_size("horizon", plain(horizon))
        return self._table(list(self.states_.values()), horizon)

    def update(self, new_rows: Any) -> Self:
        """Read new values, in constant time and memory each, and without the history.

        Rows are as for `fit`, each after the last of its series; values of an array or list follow
        without times. A step that is left out, or has no y, counts as the last value. A series
        that `fit` has not seen is an error: `with_history` takes new ones. If anything is wrong,
        no row is read.
        """
        check_is_fitted(self, "states_")
        self._update(read_series(new_rows))
        return self

    def with_history(self, df: Any) -> Self:
        """Return a forecaster with the same weights at the end of other series.

        A series of the same unique_id keeps its scale, a new one gets that of its values here.
        """
        check_is_fitted(self, "states_")
        states, read = self.states_, read_series(df)
        if len(read) == len(states) == 1 and read[0].unique_id is None:
            read = [replace(read[0], unique_id=next(iter(states)))]
        series = regularize(read, self.freq, default=next(iter(states.values())).freq)
        for s in series:
            if self.predictor_.fields and isinstance(s.freq, int):
                raise ValueError(
                    f"series {s.unique_id!r}: ds must be times, as in fit, not integers"
                )
            check_length(s, self.predictor_.window, 0)
        other = copy.copy(self)
        other._start(series, {name: state.scaler for name, state in states.items()})
        other.id_dtype_ = id_dtype(df)
        return other

    def backtest(
        self, windows: int = 5, step: int | None = None, *, df: Any = None
    ) -> pd.DataFrame:
        """Forecast from earlier points of the series, without training again.

        The weights stay as they are, and `fit` trained on all but the last `validation_fraction`
        of its history: forecasts from before that look better than they would have been.
        `timeseries.backtesting.scores` summarises the result.

        Parameters
        ----------
        windows : int, default 5
            Number of forecasts of each series. The last one ends with the series.
        step : int, optional
            Number of values between two forecasts; the horizon if None.
        df : DataFrame, Series, array or list, optional
            Other history; required for a forecaster that was loaded.

        Returns
        -------
        DataFrame
            Columns unique_id, cutoff, ds, y, EAForecaster, and one for each quantile.
        """
        check_is_fitted(self, "states_")
        windows = check_size("windows", plain(windows))
        step = self.horizon if step is None else check_size("step", plain(step))
        source = self if df is None else self.with_history(df)
        if source.series_ is None:
            raise ValueError("df must be given: a forecaster that was loaded has no history")
        options = dict(windows=windows, step=step, horizon=self.horizon)
        origins = [
            (series, state)
            for series in source.series_
            for state in replay(
                self.predictor_, series, source.states_[series.unique_id].scaler, **options
            )
        ]
        return add_actuals(source._table([state for _, state in origins], self.horizon), origins)

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Write the model and the state of each series as JSON and safetensors.

        A loaded forecaster predicts and is updated as this one, without the history. `force`
        replaces a model that is there.
        """
        check_is_fitted(self, "states_")
        store.save_forecaster(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder, *, dtype: str | None = None) -> Self:
        """Load a saved model; on a GPU if it was there and this machine has one."""
        return store.load_forecaster(cls, folder, dtype=dtype)

    @property
    def state_nbytes(self) -> int:
        """Bytes kept of all series, independent of their length."""
        check_is_fitted(self, "states_")
        return sum(state.nbytes for state in self.states_.values())

    def _start(self, series: list[TimeSeries], scalers: dict[Any, Scaler]) -> None:
        self.series_: list[TimeSeries] | None = series
        self.states_ = {
            s.unique_id: self.predictor_.start(
                s, scalers.get(s.unique_id) or Scaler.fit(s.y, limit=LIMIT)
            )
            for s in series
        }

    def _update(self, new: Sequence[TimeSeries]) -> list[SeriesState]:
        """Read all rows, or none if any is wrong; return the new states."""
        found = [(self._state(series.unique_id), series) for series in new]
        ready = [(state, *state.new_rows(series)) for state, series in found]
        after = [self.predictor_.advance(*rows) for rows in ready]
        self.states_ |= {state.unique_id: state for state in after}
        return after

    def _state(self, unique_id: Any) -> SeriesState:
        if unique_id is None and len(self.states_) == 1:
            return next(iter(self.states_.values()))
        if unique_id is None:
            count = len(self.states_)
            raise ValueError(f"new rows must say in {ID} which of {count} series is meant")
        if unique_id not in self.states_:
            known = ", ".join(map(repr, list(self.states_)[:5]))
            more = ", …" if len(self.states_) > 5 else ""
            raise ValueError(f"series {unique_id!r} was not there in fit, which had {known}{more}")
        return self.states_[unique_id]

    def _table(self, states: Sequence[SeriesState], horizon: int) -> pd.DataFrame:
        """Return forecasts and quantiles from these states in long format."""
        times, scaled = self.predictor_.forecast(states, horizon)
        names = [state.unique_id for state in states for _ in range(horizon)]
        columns: dict[str, Any] = {
            ID: pd.Series(names, dtype=self.id_dtype_),
            TIME: np.concatenate([index.to_numpy() for index in times]),
        }
        shifts: dict[str, Any] = {NAME: 0.0}
        for level, shift in zip(self.levels_, extend(self.offsets_, horizon), strict=True):
            shifts[f"{NAME}-q{100 * level:g}"] = shift
        for name, shift in shifts.items():
            rows = zip(states, scaled + shift, strict=True)
            columns[name] = np.concatenate([s.scaler.inverse_transform(row) for s, row in rows])
        return pd.DataFrame(columns)

    def _check_params(self) -> tuple[dict[str, Any], TrainConfig]:
        """Return the parameters as Python types, and the training configuration."""
        params = plain_params(self)
        for name in ("horizon", "lags", "window", "context"):
            if params[name] is not None or name in ("horizon", "lags"):
                check_size(name, params[name])
        check_mixer(params["mixer"])
        check_quantiles(params["quantiles"])
        if params["freq"] is not None:
            check_freq(params["freq"])
        check_number("validation_fraction", params["validation_fraction"], least=0, below=1)
        if params["dtype"] not in DTYPES:
            raise ValueError(f"dtype must be 'float32' or 'float64', got {params['dtype']!r}")
        if params["mixer"] == "aft" and params["window"] is None:
            raise ValueError("mixer 'aft' needs a window: it has learnt so many places and no more")
        return params, forecaster_config(params)
