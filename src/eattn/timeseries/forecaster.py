"""EAForecaster: forecast many time series, and update the forecasts value by value."""

import copy
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
import torch

try:
    import pandas as pd
    from sklearn.base import BaseEstimator, clone
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAForecaster needs pandas and scikit-learn: pip install "eattn[timeseries]"'
    ) from error

from eattn._checks import check_number, check_size
from eattn.data.freq import Freq, check_freq
from eattn.nn import check_mixer
from eattn.timeseries import store, training
from eattn.timeseries.backtesting import cutoffs, replay, times_of
from eattn.timeseries.conformal import check_quantiles, error_quantiles, extend
from eattn.timeseries.inputs import (
    ID,
    TIME,
    VALUE,
    Columns,
    TimeSeries,
    id_dtype,
    read_series,
    regularize,
)
from eattn.timeseries.metrics import mase, season_length, seasonal_scale
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.scaling import Scaler
from eattn.timeseries.windows import LIMIT, WindowDataset, check_length, check_varies
from eattn.train import History, TrainConfig

NAME = "EAForecaster"
NO_VALIDATION = (
    "quantiles need validation values, but there are too few; use longer series, a smaller"
    " horizon or a larger validation_fraction"
)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(eq=False, repr=False)
class EAForecaster(BaseEstimator):
    """Forecast many time series with one causal Transformer.

    Times must be evenly spaced, but rows may be missing and in any order. Times may have a zone;
    forecasts come back in the zone of the history, and steps of a day or more follow its local
    clock. A missing value is replaced by the last known value and is not trained on. Values are
    scaled by the mean and standard deviation of their series. The model reads those calendar
    fields that vary from step to step and complete at least two cycles in the data.

    Parameters
    ----------
    horizon : int, default 12
        Number of steps to forecast. In training, the model is rolled out over this many steps
        through its own forecasts; the loss is the absolute error of scaled values.
    mixer : str, default "ea-6"
        Name of the mixer; see `eattn.nn.make_mixer`.
    window : int, optional
        Number of past values to forecast from; by default the whole history, through a state of
        constant size.
    quantiles : sequence of float, optional
        Levels such as (0.1, 0.9), which add columns EAForecaster-q10 and so on. A quantile is the
        forecast plus that quantile of the errors on the validation part (split conformal
        prediction). The same part selects the weights, so intervals are slightly too narrow.
        Beyond `horizon`, intervals stay as wide as at its last step.
    freq : str or int, optional
        Pandas frequency, or step of integer times. By default, the greatest step that fits all
        times of all series; see `freq_`.
    lags : int, default 24
        Number of values in a token.
    context : int or None, default 512
        Largest number of values that a state may see before a younger state replaces it. With
        None, a state sees all values, and forecasts of long series get worse.
    dim : int, default 64
        Number of channels in the model.
    depth : int, default 2
        Number of Transformer blocks.
    heads : int, default 4
        Number of heads, for mixers that have heads.
    dropout : float, default 0.0
        Dropout probability.
    epochs : int, optional
        Number of epochs; by default 500 steps.
    batch_size : int, default 64
        Number of windows per step.
    lr : float, default 1e-3
        Learning rate.
    weight_decay : float, default 0.01
        Weight decay.
    validation_fraction : float, default 0.2
        Last part of each series, which selects the best weights.
    patience : int or None, default 10
        Stop after this many evaluations without improvement on the validation part.
    dtype : {"float64", "float32"}, default "float64"
        Type of forecasts and states. float64 suits streams that run indefinitely; float32 needs
        half the memory.
    device : str, default "auto"
        Device to train on: "auto", "cpu" or "cuda".
    checkpoint : path, optional
        Folder for checkpoints, from which `fit` resumes an interrupted run.
    verbose : bool, default False
        Show progress.
    random_state : int, RandomState or None, default 0
        Seed of all random numbers.

    Attributes
    ----------
    model_ : Forecaster
        Trained model.
    history_ : History or None
        Metrics of training; None after `load`.
    predictor_ : Predictor
        Reads series into states and forecasts from them.
    states_ : dict of SeriesState
        State of each series by unique_id.
    levels_ : tuple of float
        Quantile levels in ascending order.
    offsets_ : array, shape (levels, horizon)
        Offset of each quantile from the forecast, in standard deviations.
    freq_ : str or int
        Frequency of the series.
    seed_ : int
        Seed of the run.

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

    def fit(
        self,
        df: Any,
        y: None = None,
        *,
        id_col: str = ID,
        time_col: str = TIME,
        target_col: str = VALUE,
    ) -> Self:
        """Train on all series of a data frame, or on a single series.

        Parameters
        ----------
        df : DataFrame, Series, array or list
            Data frame with columns unique_id (optional for one series), ds (times or integers)
            and y, or the values of one series. Other columns are not used.
        y : None
            Must be None; part of the scikit-learn interface.
        id_col, time_col, target_col : str
            Names of the columns. Other methods expect them, too, and forecasts have them.

        Returns
        -------
        EAForecaster
            The fitted forecaster itself.
        """
        if y is not None:
            raise TypeError("y must be None; pass the values in df or in its column y")
        params, config = self._check_params()
        columns = Columns(id_col, time_col, target_col)
        self._fit(regularize(read_series(df, columns), params["freq"]), params, config)
        self.id_dtype_, self.names_ = id_dtype(df, columns), columns.names()
        return self

    def _fit(self, series: list[TimeSeries], params: dict[str, Any], config: TrainConfig) -> None:
        """Train on series with a row for every step."""
        levels = check_quantiles(params["quantiles"])
        check_varies(series)
        names = ("window", "context", "horizon", "validation_fraction")
        dataset = WindowDataset(series, **{name: params[name] for name in names})
        if levels and not any(dataset.validation_sizes):
            raise ValueError(NO_VALIDATION)
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
                raise ValueError(NO_VALIDATION)
        self.history_: History | None = history  # None after load
        self.design_, self.seed_ = design, config.seed
        self.levels_, self.offsets_ = levels, error_quantiles(errors, levels)
        self.model_ = model.to(DTYPES[params["dtype"]])
        self.predictor_ = Predictor(model, dataset.fields, params["window"], dataset.context)
        self._start(series, dict(zip([s.unique_id for s in series], dataset.scalers, strict=True)))

    def predict(self, horizon: int | None = None) -> pd.DataFrame:
        """Forecast the next steps of every series.

        Parameters
        ----------
        horizon : int, optional
            Number of steps; by default the horizon of training, which it may exceed.

        Returns
        -------
        DataFrame
            Columns unique_id and ds, or `id_col` and `time_col` of `fit`, EAForecaster, and one
            for each quantile.
        """
        check_is_fitted(self, "states_")
        horizon = self.horizon if horizon is None else check_size("horizon", store.plain(horizon))
        return self._renamed(self._table(list(self.states_.values()), horizon))

    def update(
        self,
        new_rows: Any,
        *,
        skip_known: bool = False,
        id_col: str | None = None,
        time_col: str | None = None,
        target_col: str | None = None,
    ) -> Self:
        """Read new values of known series, in constant time and memory per value.

        Parameters
        ----------
        new_rows : DataFrame, Series, array or list
            Rows as for `fit` that follow the last row of their series; an array or list continues
            the only series. Missing steps and values are replaced by the last known value.
        skip_known : bool, default False
            Skip rows up to the last known time of their series instead of raising.
        id_col, time_col, target_col : str, optional
            Names of the columns; by default those of `fit`.

        Returns
        -------
        EAForecaster
            The forecaster itself.

        Raises
        ------
        ValueError
            If any row is invalid or belongs to an unknown series; then no row is read. A time
            that is more than 1000 steps, and more steps than the series has values, after the
            last one is taken for a mistake. Use `with_history` for such times and new series.
        """
        check_is_fitted(self, "states_")
        series = read_series(new_rows, self._columns(id_col, time_col, target_col))
        self._update(self._following(series) if skip_known else series)
        return self

    def with_history(
        self,
        df: Any,
        *,
        id_col: str | None = None,
        time_col: str | None = None,
        target_col: str | None = None,
    ) -> Self:
        """Return a forecaster with the same weights for other series.

        Parameters
        ----------
        df : DataFrame, Series, array or list
            History as for `fit`, with the same frequency. A series with a known unique_id keeps
            its scale; the scale of a new series is computed from its values here.
        id_col, time_col, target_col : str, optional
            Names of the columns; by default those of `fit`.

        Returns
        -------
        EAForecaster
            A new forecaster; this one is not changed.
        """
        check_is_fitted(self, "states_")
        columns = self._columns(id_col, time_col, target_col)
        states, read = self.states_, read_series(df, columns)
        if len(read) == len(states) == 1 and read[0].unique_id is None:
            read = [replace(read[0], unique_id=next(iter(states)))]
        series = regularize(read, self.freq_)
        for s in series:
            check_length(s, self.predictor_.window, 0)
        other = copy.copy(self)
        other._start(series, {name: state.scaler for name, state in states.items()})
        other.id_dtype_, other.names_ = id_dtype(df, columns), columns.names()
        return other

    def backtest(
        self,
        windows: int = 5,
        step: int | None = None,
        *,
        horizon: int | None = None,
        refit: bool = False,
        df: Any = None,
    ) -> pd.DataFrame:
        """Forecast from earlier points of the series.

        `fit` trained on all but the last `validation_fraction` of its history, so without `refit`
        forecasts of earlier values look too good. `eattn.timeseries.metrics.scores` summarises the
        result.

        Parameters
        ----------
        windows : int, default 5
            Number of forecasts per series. The last forecast ends with the series.
        step : int, optional
            Number of values between two forecasts; by default the horizon.
        horizon : int, optional
            Number of steps to forecast; by default the horizon of training, which it may exceed.
        refit : bool, default False
            For each window, train a new forecaster with the same parameters on the values of all
            series up to their cutoffs.
        df : DataFrame, Series, array or list, optional
            Other history; required after `load`.

        Returns
        -------
        DataFrame
            Columns unique_id, cutoff, ds, y, EAForecaster, one for each quantile, and scale: the
            mean absolute seasonal difference up to the cutoff, for MASE. The names of `fit`
            replace unique_id, ds and y.
        """
        check_is_fitted(self, "states_")
        windows = check_size("windows", store.plain(windows))
        horizon = self.horizon if horizon is None else check_size("horizon", store.plain(horizon))
        step = horizon if step is None else check_size("step", store.plain(step))
        source = self if df is None else self.with_history(df)
        if source.series_ is None:
            raise ValueError("df is required: a loaded forecaster has no history")
        options = dict(windows=windows, step=step, horizon=horizon)
        options["min_past"] = self.predictor_.window or 1
        lengths = [cutoffs(series, **options) for series in source.series_]
        if refit:
            table = source._refitted(lengths, horizon)
        else:
            states = [
                state
                for series, own in zip(source.series_, lengths, strict=True)
                for state in replay(
                    self.predictor_, series, source.states_[series.unique_id].scaler, own
                )
            ]
            table = source._table(states, horizon)
        ends = [(s, n) for s, own in zip(source.series_, lengths, strict=True) for n in own]
        last = [times_of(s)[n - 1] for s, n in ends]
        table.insert(1, "cutoff", pd.Index(last).repeat(horizon))
        table.insert(3, VALUE, np.concatenate([s.y[n : n + horizon] for s, n in ends]))
        table["scale"] = np.repeat([_scale(s, n) for s, n in ends], horizon)
        return source._renamed(table)

    def score(
        self,
        df: Any,
        y: None = None,
        *,
        id_col: str | None = None,
        time_col: str | None = None,
        target_col: str | None = None,
    ) -> float:
        """Return the negative MASE of the forecasts for the rows that follow the training rows.

        Each series is forecast once, from its last known row to its last row in `df`. The errors
        are divided by the mean absolute seasonal difference of the training rows of their series
        (see `metrics.mase` and `metrics.seasonal_scale`), and every value counts once. Series that
        were constant in training are left out. Higher is better, as scikit-learn expects.

        Parameters
        ----------
        df : DataFrame, Series, array or list
            Rows as for `fit`. Rows up to the last known row of a series are ignored; an array or
            list continues the only series.
        y : None
            Ignored; part of the scikit-learn interface.
        id_col, time_col, target_col : str, optional
            Names of the columns; by default those of `fit`.

        Returns
        -------
        float
        """
        check_is_fitted(self, "states_")
        if self.series_ is None:
            raise ValueError(
                "score needs the training rows, which a loaded forecaster does not have;"
                " use backtest(df=...) and metrics.scores"
            )
        columns = self._columns(id_col, time_col, target_col)
        following = self._following(read_series(df, columns))
        if not following:
            raise ValueError("df must have rows that follow the training rows, but it has none")
        scales = {s.unique_id: _scale(s, len(s)) for s in self.series_}
        parts = []
        for series in following:
            state = self._state(series.unique_id)
            values = state.new_rows(series)[1]
            forecast = self._table([state], len(values))[NAME].to_numpy()
            parts.append((values, forecast, np.full(len(values), scales[state.unique_id])))
        return -mase(*map(np.concatenate, zip(*parts, strict=True)))

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Save the model and the state of each series as JSON and safetensors.

        The history is not saved. `predict` and `update` of the loaded forecaster do not need it.

        Parameters
        ----------
        folder : path
            Folder to write.
        force : bool, default False
            Overwrite an existing model.
        """
        check_is_fitted(self, "states_")
        store.save_forecaster(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder, *, dtype: str | None = None) -> Self:
        """Load a saved model to its device, or to the CPU if that is not available.

        Parameters
        ----------
        folder : path
            Folder written by `save`.
        dtype : {"float64", "float32"}, optional
            Type of forecasts and states; by default the saved one.

        Returns
        -------
        EAForecaster
        """
        loaded: Self = store.load_forecaster(cls, folder, dtype=dtype)
        return loaded

    @property
    def freq_(self) -> Freq:
        """Frequency of the series."""
        check_is_fitted(self, "states_")
        return next(iter(self.states_.values())).freq

    @property
    def state_nbytes(self) -> int:
        """Size of the states of all series in bytes, independent of their length."""
        check_is_fitted(self, "states_")
        return sum(state.nbytes for state in self.states_.values())

    def _columns(self, *given: str | None) -> Columns:
        """Return the names of the columns that are given, or else those of fit."""
        known = getattr(self, "names_", None) or Columns().names()
        return Columns(*(name or old for name, old in zip(given, known, strict=True)))

    def _renamed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the names of the columns in fit."""
        names = self._columns(None, None, None).names()
        return table.rename(columns=dict(zip((ID, TIME, VALUE), names, strict=True)))

    def _start(self, series: list[TimeSeries], scalers: dict[Any, Scaler]) -> None:
        self.series_: list[TimeSeries] | None = series
        self.states_ = {
            s.unique_id: self.predictor_.start(
                s, scalers.get(s.unique_id) or Scaler.fit(s.y, limit=LIMIT)
            )
            for s in series
        }

    def _refitted(self, lengths: Sequence[Sequence[int]], horizon: int) -> pd.DataFrame:
        """Return the forecasts of one new forecaster per window, sorted by series and window."""
        assert self.series_ is not None
        tables = []
        for own in zip(*lengths, strict=True):
            model: Self = clone(self).set_params(checkpoint=None)
            pairs = zip(self.series_, own, strict=True)
            past = [replace(s, ds=times_of(s)[:n], y=s.y[:n]) for s, n in pairs]
            model._fit(past, *model._check_params())
            model.id_dtype_ = self.id_dtype_
            tables.append(model._table(list(model.states_.values()), horizon))
        rows = np.arange(len(tables) * len(tables[0])).reshape(len(tables), -1, horizon)
        return pd.concat(tables).iloc[rows.swapaxes(0, 1).ravel()].reset_index(drop=True)

    def _following(self, new: Sequence[TimeSeries]) -> list[TimeSeries]:
        """Return the rows after the last known row of each series, for series that have any."""
        found = [self._state(series.unique_id).following(series) for series in new]
        return [series for series in found if len(series)]

    def _update(self, new: Sequence[TimeSeries]) -> list[SeriesState]:
        """Read all rows, or none if any is invalid; return the new states."""
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
            raise ValueError(f"new rows need a column {ID}: the forecaster has {count} series")
        if unique_id not in self.states_:
            known = ", ".join(map(repr, list(self.states_)[:5]))
            more = ", …" if len(self.states_) > 5 else ""
            raise ValueError(f"unknown series {unique_id!r}; known series are {known}{more}")
        return self.states_[unique_id]

    def _table(self, states: Sequence[SeriesState], horizon: int) -> pd.DataFrame:
        """Return the forecasts and quantiles of these states in long format."""
        times, scaled = self.predictor_.forecast(states, horizon)
        names = [state.unique_id for state in states for _ in range(horizon)]
        columns: dict[str, Any] = {
            ID: pd.Series(names, dtype=self.id_dtype_),
            TIME: times[0].append(times[1:]),
        }
        shifts: dict[str, Any] = {NAME: 0.0}
        for level, shift in zip(self.levels_, extend(self.offsets_, horizon), strict=True):
            shifts[f"{NAME}-q{100 * level:g}"] = shift
        for name, shift in shifts.items():
            rows = zip(states, scaled + shift, strict=True)
            columns[name] = np.concatenate([s.scaler.inverse_transform(row) for s, row in rows])
        return pd.DataFrame(columns)

    def _check_params(self) -> tuple[dict[str, Any], TrainConfig]:
        """Return the checked parameters and the training configuration."""
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
            raise ValueError(
                "mixer 'aft' needs a window, because it has a fixed number of positions"
            )
        return params, training.forecaster_config(params)


def _scale(series: TimeSeries, length: int) -> float:
    """Return the scale of MASE from the first `length` values."""
    assert series.freq is not None
    return seasonal_scale(series.y[:length], season_length(series.freq))
