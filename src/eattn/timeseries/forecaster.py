"""EAForecaster: a forecaster of many time series that is updated value by value."""

import copy
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
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

from eattn._checks import check_number, check_size
from eattn.nn import check_mixer
from eattn.timeseries import store, training
from eattn.timeseries.backtesting import replay
from eattn.timeseries.conformal import check_quantiles, error_quantiles, extend
from eattn.timeseries.freq import check_freq
from eattn.timeseries.inputs import ID, TIME, VALUE, TimeSeries, id_dtype, read_series, regularize
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.scaling import Scaler
from eattn.timeseries.windows import LIMIT, WindowDataset, check_length, check_varies
from eattn.train import History, TrainConfig

NAME = "EAForecaster"
NEED = (
    "need values that are held out: longer series, a smaller horizon, or a larger"
    " validation_fraction"
)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(eq=False, repr=False)
class EAForecaster(BaseEstimator):
    """Forecast many series with one causal Transformer of any mixer.

    `fit` takes a data frame in long format, with columns unique_id (not needed for one series), ds
    (times or integers) and y, or one series as a pandas Series, an array or a list. Times must rise
    by even steps. A row that is missing, or has no y, is read as the last value before it and never
    trained on. Values are scaled by the mean and deviation of their series. Calendar fields are
    read if they vary from step to step and two cycles of them were seen.

    Parameters
    ----------
    horizon : int, default 12
        Number of steps to forecast. Training rolls out this many through the model's own forecasts,
        with the absolute error of scaled values as the loss.
    mixer, dim, depth, heads, dropout
        Design of the `Forecaster`.
    window : int, optional
        Number of values to forecast from; the whole history, through the state, if None.
    quantiles : sequence of float, optional
        Such as (0.1, 0.9), for columns EAForecaster-q10, …: the forecast plus that quantile of the
        errors on the validation part, by step (split conformal prediction). The same part selects
        the weights, so intervals are a little too narrow. Beyond `horizon` they stay as wide.
    freq : str or int, optional
        Frequency of pandas, or step of integer times; inferred if None.
    lags : int, default 24
        Values in a token.
    context : int or None, default 512
        Number of values that a state may see; one that has seen half as many then replaces it.
        With None a state sees all, and forecasts of long series get worse.
    epochs : int, optional
        500 steps if None.
    batch_size, lr, weight_decay
        Training options, as in `TrainConfig`.
    validation_fraction : float, default 0.2
        Last part of each series, which selects the best weights, and stops training after
        `patience` evaluations without better ones.
    dtype : {"float64", "float32"}
        Of forecasts and states: float64 for streams without end, float32 for less memory.
    device : str, default "auto"
    checkpoint : path, optional
        Folder that keeps the run, so that `fit` resumes it after an interruption.
    verbose : bool, default False
        Show progress.
    random_state : int, RandomState or None, default 0

    Attributes
    ----------
    model_, history_, predictor_, states_, levels_, offsets_, seed_
        `Forecaster`, training history, how the model reads series, state of each series by
        unique_id, quantiles and their offsets, and seed.

    Examples
    --------
    >>> y = np.sin(np.arange(120) / 3)
    >>> model = EAForecaster(horizon=6, dim=16, depth=1, epochs=2).fit(y)
    >>> model.predict().columns.tolist(), len(model.update(y[:3]).predict(horizon=9))
    (['unique_id', 'ds', 'EAForecaster'], 9)
    """

    horizon: int = 12
    mixer: str = "ea-6"
    window: int | None = None
    _: KW_ONLY
    quantiles: Sequence[float] | None = None
    freq: str | int | None = None
    lags: int = 24
    context: int | None = 512
    dim: int = 64
    depth: int = 2
    heads: int = 4
    dropout: float = 0.0
    epochs: int | None = None
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.01
    validation_fraction: float = 0.2
    patience: int | None = 10
    dtype: str = "float64"
    device: str = "auto"
    checkpoint: str | os.PathLike[str] | None = None
    verbose: bool = False
    random_state: int | np.random.RandomState | None = 0

    def fit(self, df: Any, y: None = None) -> Self:
        """Train on all series of a data frame, or on one series; `y` is for scikit-learn."""
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
        design = training.forecaster_design(params, dataset)
        model, history = training.train_forecaster(
            dataset, design, config, progress=bool(self.verbose)
        )
        errors = np.empty((0, 1))
        if levels:
            errors = training.forecast_errors(
                model, dataset.validation(training.CALIBRATION_WINDOWS)
            )
            if np.isnan(errors).all(0).any():
                raise ValueError(f"quantiles {NEED}")
        self.history_: History | None = history  # None for a model that was loaded
        self.design_, self.seed_ = design, config.seed
        self.levels_, self.offsets_ = levels, error_quantiles(errors, levels)
        self.model_ = model.to(DTYPES[params["dtype"]])
        self.predictor_ = Predictor(model, dataset.fields, params["window"], dataset.context)
        self._start(series, dict(zip([s.unique_id for s in series], dataset.scalers, strict=True)))
        self.id_dtype_ = id_dtype(df)
        return self

    def predict(self, horizon: int | None = None) -> pd.DataFrame:
        """Return columns unique_id, ds, EAForecaster and quantiles for the next `horizon` steps.

        The horizon is that of training if None, and may be longer.
        """
        check_is_fitted(self, "states_")
        horizon = self.horizon if horizon is None else check_size("horizon", store.plain(horizon))
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
        windows = check_size("windows", store.plain(windows))
        step = self.horizon if step is None else check_size("step", store.plain(step))
        source = self if df is None else self.with_history(df)
        if source.series_ is None:
            raise ValueError("df must be given: a forecaster that was loaded has no history")
        states, values, options = [], [], dict(windows=windows, step=step, horizon=self.horizon)
        for series in source.series_:
            scaler = source.states_[series.unique_id].scaler
            for state in replay(self.predictor_, series, scaler, **options):
                states.append(state)
                values.append(series.y[state.count : state.count + self.horizon])
        table = source._table(states, self.horizon)
        cutoffs = pd.Index([state.ds for state in states]).repeat(self.horizon)
        table.insert(1, "cutoff", cutoffs)
        table.insert(3, VALUE, np.concatenate(values))
        return table

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
        loaded: Self = store.load_forecaster(cls, folder, dtype=dtype)
        return loaded

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
        params = store.plain_params(self)
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
            raise ValueError("mixer 'aft' needs a window: its learned positions end there")
        return params, training.forecaster_config(params)
