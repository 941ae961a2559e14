"""EAForecaster: forecast many time series, and update the forecasts value by value."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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
from eattn.data.freq import Freq, Times, check_freq, times_until
from eattn.nn import check_mixer
from eattn.timeseries import store, training
from eattn.timeseries.backtesting import cutoffs, replay, times_of
from eattn.timeseries.calibration import check_quantiles
from eattn.timeseries.choice import fit_report
from eattn.timeseries.fitting import check_seasons, fit_forecaster
from eattn.timeseries.holiday_calendar import HolidayCalendar
from eattn.timeseries.inputs import (
    ID,
    TIME,
    VALUE,
    Columns,
    TimeSeries,
    check_column,
    id_dtype,
    read_series,
    regularize,
)
from eattn.timeseries.metrics import mase, season_length, seasonal_scale
from eattn.timeseries.predictor import SeriesState
from eattn.timeseries.pretrained import load_pretrained
from eattn.timeseries.tracking import Track
from eattn.train import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "EAForecaster"
SCORE = "score"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(eq=False, repr=False)
class EAForecaster(BaseEstimator):
    """Forecast many time series with one model: quantiles, covariates, streams and anomalies.

    A causal encoder reads each series into a state of constant size. From the state, and from what
    is known about a step ahead (earlier seasons, calendar, covariates), the model predicts the
    quantiles of all steps at once; the forecast is the median. It corrects simple forecasts such
    as the value one season ago, so it does not need long series. By default its weights are
    pretrained on synthetic series, and `fit` only reads the history.

    Times must be evenly spaced, but rows may be missing and in any order. Times may have a zone;
    forecasts come back in the zone of the history, and steps of a day or more follow its local
    clock. A missing value, or a single one far outside the usual range, is replaced by the last
    value. The scale of a series adapts to its recent values. The model reads those calendar fields
    that vary from step to step and complete at least two cycles in the data.

    Parameters
    ----------
    horizon : int, default 12
        Number of steps to forecast. `predict` continues a longer forecast from its own medians.
    mixer : str, optional
        Name of a causal mixer, by default "ea-6+decay"; see `eattn.nn.make_mixer`. Needs
        `pretrained=None`.
    pretrained : str or None, default "small"
        Weights to start from: "small", or a file of `paper.beyond.pretraining`. None trains a new
        model.
    finetune_steps : int, default 0
        Number of steps to train pretrained weights further. With covariates or holidays, which
        they do not know, 0 stands for a number that depends on the amount of data. Only as much of
        the change is kept as is better on the validation part.
    quantiles : sequence of float, optional
        Levels such as (0.1, 0.9), which add columns EAForecaster-q10 and so on. They are trained in
        addition to 0.1, 0.2, ..., 0.9 and calibrated on the validation part. `update` keeps
        adapting their distance from the median, so that they cover the right share of values.
    freq : str or int, optional
        Pandas frequency, or step of integer times. By default, the greatest step that fits all
        times of all series; see `freq_`.
    season_length : int or sequence of int, optional
        Season lengths in steps, such as (24, 168) for hours; by default those that are usual for
        the frequency. Seasons that no series completes twice are not used.
    futr_exog_list : sequence of str, optional
        Columns with numbers or categories that are known in advance, such as prices or weather
        forecasts; `predict` needs their values for the steps ahead.
    hist_exog_list : sequence of str, optional
        Columns with numbers or categories that are known for the past only.
    stat_exog_list : sequence of str, optional
        Columns with numbers or categories that are constant in each series.
    holidays : str, optional
        Code of a country or subdivision, such as "DE" or "DE-BY", whose public holidays and the
        days before and after them the model reads.
    lower : float, optional
        Lower bound of all forecasts; by default 0 for series of counts until a value is negative,
        and none for others.
    dim : int, optional
        Number of channels in the model, by default 64. Needs `pretrained=None`.
    depth : int, optional
        Number of Transformer blocks, by default 1. Needs `pretrained=None`.
    heads : int, default 4
        Number of heads, for mixers that have heads.
    dropout : float, default 0.1
        Dropout probability.
    epochs : int, optional
        Number of epochs; by default the number of steps depends on the amount of data. Needs
        `pretrained=None`.
    batch_size : int, default 32
        Number of windows per step.
    lr : float, optional
        Learning rate; by default 1.5e-3, and 5e-4 for pretrained weights without covariates.
    weight_decay : float, default 0.05
        Weight decay.
    validation_fraction : float, default 0.2
        Last part of each series, which selects the best weights, calibrates the quantiles and
        compares the model with simple forecasts. Very short series have none.
    patience : int or None, default 8
        Stop after this many evaluations without improvement on the validation part.
    fallback : bool, default True
        Forecast a series by the last value, the last season or the drift from the first value
        instead of the model if that is clearly better on its validation part.
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
    fit_report_ : DataFrame
        Column unique_id, the choice for each series, and the mean pinball loss of the model and of
        each simple forecast on its validation part, relative to its scale; NaN without one. The
        model is called "zero-shot", "fine-tuned" or, without pretrained weights, "trained".
    candidates_ : tuple of Candidate
        The model and the simple forecasts, each with the calibration of its quantiles.
    chosen_ : dict of int
        Index of the chosen candidate of each series by unique_id; 0 is the model.
    model_ : QuantileForecaster
        Trained model.
    predictor_ : Predictor
        Reads series into states and forecasts from them. Holds the `seasons`, the calendar
        `fields` and the `covariates` in use.
    states_ : dict of SeriesState
        State of each series by unique_id.
    series_ : list of TimeSeries or None
        History of `fit` or `with_history`; None after `load`.
    history_ : History or None
        Metrics of training; None without training and after `load`.
    levels_ : tuple of float
        Levels of `quantiles` in ascending order.
    freq_ : str or int
        Frequency of the series.
    seed_ : int
        Seed of the run.

    Examples
    --------
    >>> y = np.sin(np.arange(120) / 3)
    >>> model = EAForecaster(horizon=6).fit(y)
    >>> model.predict().columns.tolist(), len(model.update(y[:3]).predict(horizon=9))
    (['unique_id', 'ds', 'EAForecaster'], 9)
    """

    horizon: int = 12
    mixer: str | None = None
    _: KW_ONLY
    pretrained: str | None = "small"
    finetune_steps: int = 0
    quantiles: Sequence[float] | None = None
    freq: str | int | None = None
    season_length: int | Sequence[int] | None = None
    futr_exog_list: Sequence[str] | None = None
    hist_exog_list: Sequence[str] | None = None
    stat_exog_list: Sequence[str] | None = None
    holidays: str | None = None
    lower: float | None = None
    dim: int | None = None
    depth: int | None = None
    heads: int = 4
    dropout: float = 0.1
    epochs: int | None = None
    batch_size: int = 32
    lr: float | None = None
    weight_decay: float = 0.05
    validation_fraction: float = 0.2
    patience: int | None = 8
    fallback: bool = True
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
            Data frame with columns unique_id (optional for one series), ds (times or integers),
            y, and the covariates; or with times and one column per series; or the values of one
            series.
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
        params = self._check_params()
        columns = replace(self._columns(), id=id_col, time=time_col, target=target_col)
        self._fit(regularize(read_series(df, columns), params["freq"]), columns, params)
        self.id_dtype_, self.names_ = id_dtype(df, columns), columns.names()
        return self

    def _fit(self, series: list[TimeSeries], columns: Columns, params: dict[str, Any]) -> None:
        """Train on series with a row for every step."""
        fit = fit_forecaster(series, columns, params, progress=bool(self.verbose))
        self.history_: History | None = fit.history  # None after load
        self.design_, self.seed_ = fit.design, fit.seed
        self.levels_ = check_quantiles(params["quantiles"])
        self.predictor_, self.candidates_ = fit.predictor, fit.choice.candidates
        self.model_ = fit.predictor.model.to(DTYPES[params["dtype"]])
        best = fit.choice.best if params["fallback"] else np.zeros_like(fit.choice.best)
        self.chosen_ = {s.unique_id: int(i) for s, i in zip(series, best, strict=True)}
        self.fit_report_ = fit_report(self.chosen_, self.candidates_, fit.choice.losses)
        self._start(series, fit.tracks)

    def predict(
        self, horizon: int | None = None, futr_df: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Forecast the next steps of every series.

        Parameters
        ----------
        horizon : int, optional
            Number of steps; by default the horizon of training, which it may exceed.
        futr_df : DataFrame, optional
            Columns unique_id, ds and those of `futr_exog_list`, with a row for each of these steps
            of each series; required if there are such columns. Other rows are ignored.

        Returns
        -------
        DataFrame
            Columns unique_id and ds, or `id_col` and `time_col` of `fit`, EAForecaster, and one
            for each quantile.
        """
        check_is_fitted(self, "states_")
        horizon = self.horizon if horizon is None else check_size("horizon", store.plain(horizon))
        return self._renamed(self._next(list(self.states_.values()), horizon, futr_df))

    def update(
        self,
        new_rows: Any,
        *,
        skip_known: bool = False,
        return_scores: bool = False,
        id_col: str | None = None,
        time_col: str | None = None,
        target_col: str | None = None,
    ) -> Any:
        """Read new values of known series, in constant time and memory per value.

        Parameters
        ----------
        new_rows : DataFrame, Series, array or list
            Rows as for `fit` that follow the last row of their series; an array or list continues
            the only series. Missing steps and values are replaced by the last known value.
        skip_known : bool, default False
            Skip rows up to the last known time of their series instead of raising.
        return_scores : bool, default False
            Return an anomaly score of each new value instead of the forecaster.
        id_col, time_col, target_col : str, optional
            Names of the columns; by default those of `fit`.

        Returns
        -------
        EAForecaster
            The forecaster itself; with `return_scores` a data frame with the columns unique_id,
            ds, y and score. A score of s in [0, 1] says that a value so far from the forecast that
            was made before, or so far outside the range of earlier values, has a probability of
            about 10^(-7 s).

        Raises
        ------
        ValueError
            If any row is invalid or belongs to an unknown series; then no row is read. A time
            that is more than 1000 steps, and more steps than the series has values, after the
            last one is taken for a mistake. Use `with_history` for such times and new series.
        """
        check_is_fitted(self, "states_")
        columns = self._columns(id_col, time_col, target_col)
        series = read_series(new_rows, columns, static=False)
        read = self._update(self._following(series) if skip_known else series)
        if not return_scores:
            return self
        parts = [pd.DataFrame({ID: s.unique_id, TIME: s.ds, VALUE: s.y, SCORE: x}) for s, x in read]
        empty = pd.DataFrame(columns=[ID, TIME, VALUE, SCORE])
        return self._renamed(pd.concat(parts, ignore_index=True) if parts else empty)

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
            the choice of `fit`; a new series is forecast by the model.
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
        other = copy.copy(self)
        other._start(series)
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
        lengths = [cutoffs(series, **options) for series in source.series_]
        pairs = list(zip(source.series_, lengths, strict=True))
        if refit:
            table = source._refitted(lengths, horizon)
        else:
            starts = source._started([s.take(slice(own[0])) for s, own in pairs])
            states = [
                state
                for start, (series, own) in zip(starts, pairs, strict=True)
                for state in replay(self.predictor_, start, series, own)
            ]
            ahead = [s.take(slice(n, n + horizon)) for s, own in pairs for n in own]
            table = source._forecast_of(states, ahead)
        ends = [(s, n) for s, own in pairs for n in own]
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
            new = state.new_rows(series)
            forecast = self._forecast_of([state], [new])[NAME].to_numpy()
            parts.append((new.y, forecast, np.full(len(new), scales[state.unique_id])))
        return -mase(*map(np.concatenate, zip(*parts, strict=True)))

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        horizon: int | None = None,
        futr_df: pd.DataFrame | None = None,
        ids: Sequence[Any] | None = None,
        history: int | None = None,
        scores: pd.DataFrame | None = None,
        threshold: float = 0.5,
    ) -> "Figure":
        """Plot the history, the forecast with its quantiles, and anomalies of up to six series.

        Parameters
        ----------
        path : path, optional
            File to write, .png or .svg.
        horizon, futr_df
            As for `predict`.
        ids : sequence, optional
            The unique_id of each series to plot; by default the first ones.
        history : int, optional
            Number of past values to show; by default four horizons, and at least 48. After `load`,
            only values that the states hold are known, without outliers.
        scores : DataFrame, optional
            Result of `update(..., return_scores=True)`, whose anomalies are marked.
        threshold : float, default 0.5
            Lowest score of an anomaly.

        Returns
        -------
        Figure
            The matplotlib figure, which notebooks show. The quantiles 0.1 to 0.9 are always drawn.
        """
        from eattn.plots import MAX_SERIES, check_picture, plot_forecast

        check_is_fitted(self, "states_")
        file = None if path is None else Path(path)
        if file is not None:
            check_picture(file)
        horizon = self.horizon if horizon is None else check_size("horizon", store.plain(horizon))
        past = max(4 * horizon, 48) if history is None else check_size("history", history)
        states = [self._state(name) for name in (self.states_ if ids is None else ids)]
        known = self._scored_rows(scores)
        every = copy.copy(self)
        every.levels_ = tuple(q for q in self.predictor_.calibration.levels if q != 0.5)
        table = every._next(states, horizon, futr_df)
        shown = [self._history(s, past, known) for s in states[:MAX_SERIES]]
        before = pd.concat(shown, ignore_index=True)
        marked = before[before[SCORE] >= threshold]
        return plot_forecast(before, table, file, anomalies=marked)

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

    def _columns(
        self, id_col: str | None = None, time_col: str | None = None, target_col: str | None = None
    ) -> Columns:
        """Return the names of the columns that are given, or else those of fit."""
        known = getattr(self, "names_", None) or Columns().names()
        names = (
            given or old for given, old in zip((id_col, time_col, target_col), known, strict=True)
        )
        exog = (self.futr_exog_list, self.hist_exog_list, self.stat_exog_list)
        return Columns(*names, *(() if names is None else names for names in exog))

    def _renamed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the names of the columns in fit."""
        names = self._columns().names()
        return table.rename(columns=dict(zip((ID, TIME, VALUE), names, strict=True)))

    def _start(self, series: list[TimeSeries], tracks: Sequence[Track] | None = None) -> None:
        """Read the history of each series."""
        self.series_: list[TimeSeries] | None = series
        self.states_ = {state.unique_id: state for state in self._started(series, tracks)}

    def _started(
        self, series: Sequence[TimeSeries], tracks: Sequence[Track] | None = None
    ) -> list[SeriesState]:
        """Return states with the choices of `fit` for known series, and the model for new ones."""
        states = []
        for state, s in zip(self.predictor_.start(series, tracks), series, strict=True):
            chosen = self.candidates_[self.chosen_.get(s.unique_id, 0)]
            lower = self.lower
            if lower is None:
                known = s.y[~np.isnan(s.y)]
                counts = (known >= 0).all() and (known == np.floor(known)).all()
                lower = 0.0 if counts else -np.inf
            states.append(
                replace(state, rule=chosen.rule, factors=chosen.factors, lower=float(lower))
            )
        return states

    def _scored_rows(self, scores: pd.DataFrame | None) -> pd.DataFrame:
        """Return a table of anomaly scores with the standard names of its columns."""
        wanted = [ID, TIME, VALUE, SCORE]
        if scores is None:
            return pd.DataFrame(columns=wanted)
        names = [*self._columns().names(), SCORE]
        for name in names:
            check_column(name, "as update returns it", scores, "scores")
        return scores[names].set_axis(wanted, axis=1)

    def _history(self, state: SeriesState, rows: int, scores: pd.DataFrame) -> pd.DataFrame:
        """Return the last rows of a series: unique_id, ds, y and score.

        Values come from the scores, the history, or else the state, which holds the last ones.
        """
        times = times_until(state.freq, state.ds, min(rows, state.count))
        own = scores[scores[ID] == state.unique_id].set_index(TIME)
        history = [s for s in self.series_ or () if s.unique_id == state.unique_id]
        kept, values = state.recent()
        parts = [own[VALUE], *(pd.Series(s.y, s.ds) for s in history), pd.Series(values, kept)]
        y = pd.concat([part for part in parts if len(part)])
        y = y[~y.index.duplicated()].reindex(times)
        score = own[SCORE].reindex(times).to_numpy(float)
        table = pd.DataFrame({ID: state.unique_id, TIME: times, VALUE: y.array, SCORE: score})
        return table.loc[table[VALUE].first_valid_index() :]

    def _refitted(self, lengths: Sequence[Sequence[int]], horizon: int) -> pd.DataFrame:
        """Return the forecasts of one new forecaster per window, sorted by series and window."""
        assert self.series_ is not None
        tables = []
        for own in zip(*lengths, strict=True):
            model: Self = clone(self).set_params(checkpoint=None)
            pairs = list(zip(self.series_, own, strict=True))
            model._fit([s.take(slice(n)) for s, n in pairs], self._columns(), model._check_params())
            model.id_dtype_ = self.id_dtype_
            ahead = [s.take(slice(n, n + horizon)) for s, n in pairs]
            tables.append(model._forecast_of(list(model.states_.values()), ahead))
        rows = np.arange(len(tables) * len(tables[0])).reshape(len(tables), -1, horizon)
        return pd.concat(tables).iloc[rows.swapaxes(0, 1).ravel()].reset_index(drop=True)

    def _following(self, new: Sequence[TimeSeries]) -> list[TimeSeries]:
        """Return the rows after the last known row of each series, for series that have any."""
        found = [self._state(series.unique_id).following(series) for series in new]
        return [series for series in found if len(series)]

    def _update(self, new: Sequence[TimeSeries]) -> list[tuple[TimeSeries, list[float]]]:
        """Read all rows, or none if any is invalid; return all rows and their scores."""
        found = [(self._state(series.unique_id), series) for series in new]
        rows = [state.new_rows(series) for state, series in found]
        states = [self._lifted(state, s) for (state, _), s in zip(found, rows, strict=True)]
        advanced = self.predictor_.advance(states, rows)
        self.states_ |= {state.unique_id: state for state, _ in advanced}
        pairs = zip(advanced, rows, strict=True)
        return [(replace(s, unique_id=state.unique_id), scores) for (state, scores), s in pairs]

    def _lifted(self, state: SeriesState, new: TimeSeries) -> SeriesState:
        """Return the state without its inferred lower bound if a new value is lower."""
        if self.lower is not None or state.lower == -np.inf or not (new.y < state.lower).any():
            return state
        return replace(state, lower=-np.inf)

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

    def _next(
        self, states: Sequence[SeriesState], horizon: int, futr_df: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Forecast the next steps of series."""
        times = self.predictor_.next_times(states, horizon)
        wanted = {state.unique_id: each for state, each in zip(states, times, strict=True)}
        futr = self.predictor_.covariates.encode_future(futr_df, wanted, self._columns())
        return self._table(states, times, list(futr.values()))

    def _forecast_of(
        self, states: Sequence[SeriesState], ahead: Sequence[TimeSeries]
    ) -> pd.DataFrame:
        """Forecast known rows, whose values are not used, but their covariates."""
        futr = [
            self.predictor_.covariates.encode_rows(rows, before=(state.futr, state.hist))[0]
            for state, rows in zip(states, ahead, strict=True)
        ]
        return self._table(states, [times_of(rows) for rows in ahead], futr)

    def _table(
        self, states: Sequence[SeriesState], times: Sequence[Times], futr: Sequence[Any]
    ) -> pd.DataFrame:
        """Return the forecasts and quantiles of these states in long format."""
        names = [state.unique_id for state in states for _ in times[0]]
        columns: dict[str, Any] = {
            ID: pd.Series(names, dtype=self.id_dtype_),
            TIME: times[0].append(list(times[1:])),
        }
        values = self._forecasts(states, times, futr)
        return pd.DataFrame(columns | {name: x.ravel() for name, x in values.items()})

    def _forecasts(
        self, states: Sequence[SeriesState], times: Sequence[Times], futr: Sequence[Any]
    ) -> dict[str, Any]:
        """Return the forecast and the quantiles [series, horizon] by name of their column."""
        quantiles = self.predictor_.forecast(states, times, futr)
        trained = self.predictor_.calibration.levels
        wanted = {NAME: 0.5} | {f"{NAME}-q{100 * level:g}": level for level in self.levels_}
        return {name: quantiles[..., trained.index(level)] for name, level in wanted.items()}

    def _check_params(self) -> dict[str, Any]:
        """Return the checked parameters."""
        params = store.plain_params(self)
        check_size("horizon", params["horizon"])
        _check_pretrained(params)
        check_quantiles(params["quantiles"])
        if params["freq"] is not None:
            check_freq(params["freq"])
        if params["lower"] is not None:
            check_number("lower", params["lower"])
        if params["holidays"] is not None:
            HolidayCalendar(params["holidays"])
        check_seasons(params["season_length"])
        check_number("validation_fraction", params["validation_fraction"], least=0, below=1)
        if params["dtype"] not in DTYPES:
            raise ValueError(f"dtype must be 'float32' or 'float64', got {params['dtype']!r}")
        self._columns()
        training.forecaster_config(params, 1, training.seed_of(params["random_state"]))
        return params


def _check_pretrained(params: Mapping[str, Any]) -> None:
    """Check the parameters that pretrained weights exclude, and those that need them."""
    if params["pretrained"] is not None:
        load_pretrained(params["pretrained"])
        for name in ("mixer", "dim", "depth", "epochs"):
            if params[name] is not None:
                raise ValueError(
                    f"{name} cannot be set for pretrained weights: use pretrained=None"
                    " (--pretrained none) to train a new model, or finetune_steps"
                    " (--finetune-steps) to train them further"
                )
        check_number("finetune_steps", params["finetune_steps"], least=0)
    elif params["finetune_steps"]:
        raise ValueError("finetune_steps needs pretrained weights: set epochs instead")
    elif params["mixer"] is not None:
        check_mixer(params["mixer"])
        if params["mixer"] == "aft":
            raise ValueError(
                "mixer 'aft' has a fixed number of positions, but series may have any length;"
                " choose another mixer"
            )


def _scale(series: TimeSeries, length: int) -> float:
    """Return the scale of MASE from the first `length` values."""
    assert series.freq is not None
    return seasonal_scale(series.y[:length], season_length(series.freq))
