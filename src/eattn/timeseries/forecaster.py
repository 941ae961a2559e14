"""EAForecaster: the next values of many series, which go on as new ones come."""

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from eattn._checks import check_number, check_size
from eattn.nn import check_mixer
from eattn.timeseries import saved_forecaster, store
from eattn.timeseries.backtesting import replay, with_truth
from eattn.timeseries.conformal import check_quantiles, extended, offsets
from eattn.timeseries.dataset import Material, check_length, check_varies
from eattn.timeseries.freq import check_freq
from eattn.timeseries.inputs import ID, Rows, id_dtype, rows_of
from eattn.timeseries.regularize import Record, records
from eattn.timeseries.scaling import Scale
from eattn.timeseries.settings import plain, plain_params
from eattn.timeseries.tracks import Reader, Track, begin, go_on, long_format
from eattn.timeseries.training import calibration, config_of, design_of, learn
from eattn.train import History, TrainConfig

if TYPE_CHECKING:
    import pandas as pd

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EAForecaster needs the package scikit-learn: pip install "eattn[timeseries]"'
    ) from error

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
        """Learn from all series of a data frame, or from one. `y` is there for scikit-learn."""
        if y is not None:
            raise TypeError("y must be None: values are in the column y of df, or in df itself")
        params, config = self._checked()
        levels = check_quantiles(params["quantiles"])
        found = records(rows_of(df), params["freq"])
        check_varies(found)
        material = Material(
            found,
            fraction=params["validation_fraction"],
            **{name: params[name] for name in ("window", "context", "horizon")},
        )
        if levels and not any(material.held):
            raise ValueError(f"quantiles {NEED}")
        design = design_of(params, material)
        model, history = learn(material, design, config, progress=bool(self.verbose))
        errors = calibration(model, material) if levels else np.empty((0, 1))
        if np.isnan(errors).all(0).any() and levels:
            raise ValueError(f"quantiles {NEED}")
        self.design_, self.history_, self.seed_ = design, history, config.seed
        self.levels_, self.offsets_ = levels, offsets(errors, levels)
        self.model_ = model.to(DTYPES[params["dtype"]])
        self.reader_ = Reader(model, material.fields, params["window"], material.context)
        self._begin(found, dict(zip([r.name for r in found], material.scales, strict=True)))
        self.id_dtype_ = id_dtype(df)
        return self

    def predict(self, horizon: int | None = None) -> "pd.DataFrame":
        """The next values of each series -> unique_id, ds, EAForecaster, and quantiles if any.

        `horizon` is that of training if None, and may be longer. Series come as they came to fit.
        """
        check_is_fitted(self, "tracks_")
        horizon = self.horizon if horizon is None else check_size("horizon", plain(horizon))
        return self._table(list(self.tracks_.values()), horizon)

    def update(self, new_rows: Any) -> Self:
        """Absorb new values, in constant time and memory each, and without the history.

        Rows are as for `fit`, each after the last of its series; values of an array or list follow
        without times. A step that is left out, or has no y, counts as the last value. A series
        that fit has not seen is an error: `with_history` takes new ones. If anything is wrong,
        nothing is absorbed.
        """
        check_is_fitted(self, "tracks_")
        self._absorb(rows_of(new_rows))
        return self

    def with_history(self, df: Any) -> Self:
        """A forecaster with the same weights that stands at the end of other series.

        A series of the same unique_id keeps its scale, a new one gets that of its values here.
        """
        check_is_fitted(self, "tracks_")
        tracks, rows = self.tracks_, rows_of(df)
        if len(rows) == len(tracks) == 1 and rows[0].name is None:
            rows = [replace(rows[0], name=next(iter(tracks)))]
        found = records(rows, self.freq, usual=next(iter(tracks.values())).step)
        for record in found:
            if self.reader_.fields and isinstance(record.step.freq, int):
                raise ValueError(
                    f"series {record.name!r}: ds must be times, as in fit, not integers"
                )
            check_length(record, self.reader_.window, 0)
        other = copy.copy(self)
        other._begin(found, {name: track.scale for name, track in tracks.items()})
        other.id_dtype_ = id_dtype(df)
        return other

    def backtest(
        self, windows: int = 5, step: int | None = None, *, df: Any = None
    ) -> "pd.DataFrame":
        """Forecasts from `windows` earlier moments -> unique_id, cutoff, ds, y, EAForecaster, …

        The last one ends with the series, the others are `step` values earlier each (None: the
        horizon). The model stays as it is, going from one to the next through its state. The
        history is that of fit, of which all but the last `validation_fraction` was learnt from, so
        that earlier forecasts look better than they would have been; or that of `df`, which must
        be there where the forecaster was loaded. `timeseries.backtesting.scores` sums it up.
        """
        check_is_fitted(self, "tracks_")
        windows = check_size("windows", plain(windows))
        step = self.horizon if step is None else check_size("step", plain(step))
        source = self if df is None else self.with_history(df)
        if source.records_ is None:
            raise ValueError("df must be given: a forecaster that was loaded has no history")
        moments = [
            (record, track)
            for record in source.records_
            for track in replay(
                self.reader_,
                record,
                source.tracks_[record.name].scale,
                windows=windows,
                step=step,
                horizon=self.horizon,
            )
        ]
        table = source._table([track for _, track in moments], self.horizon)
        return with_truth(table, moments)

    def save(self, folder: store.Folder, *, force: bool = False) -> None:
        """Write the model, and where each series stands, as JSON and safetensors.

        What was loaded from there predicts and goes on as this one does, without the history.
        `force` replaces a model that is there.
        """
        check_is_fitted(self, "tracks_")
        saved_forecaster.save(self, folder, force=force)

    @classmethod
    def load(cls, folder: store.Folder, *, dtype: str | None = None) -> Self:
        """What `save` wrote, fitted; on a GPU if it was to be there and this machine has one."""
        return saved_forecaster.load(cls, folder, dtype=dtype)

    @property
    def state_nbytes(self) -> int:
        """Bytes kept of all series, however long they are."""
        check_is_fitted(self, "tracks_")
        return sum(track.memory.nbytes for track in self.tracks_.values())

    def _begin(self, found: list[Record], scales: dict[Any, Scale]) -> None:
        self.records_: list[Record] | None = found
        self.tracks_ = {
            r.name: begin(self.reader_, r, scales.get(r.name) or Scale.of(r.values)) for r in found
        }

    def _absorb(self, new: Sequence[Rows]) -> list[Track]:
        """All of it, or nothing if anything is wrong; the tracks that went on."""
        found = [(self._track(rows.name), rows) for rows in new]
        ready = [(track, *track.following(rows)) for track, rows in found]
        reader = self.reader_
        after = [track.after(reader, times, values) for track, times, values in ready]
        self.tracks_ |= {track.name: track for track in after}
        return after

    def _track(self, name: Any) -> Track:
        if name is None and len(self.tracks_) == 1:
            return next(iter(self.tracks_.values()))
        if name is None:
            count = len(self.tracks_)
            raise ValueError(f"new rows must say in {ID} which of {count} series is meant")
        if name not in self.tracks_:
            known = ", ".join(map(repr, list(self.tracks_)[:5]))
            more = ", …" if len(self.tracks_) > 5 else ""
            raise ValueError(f"series {name!r} was not there in fit, which had {known}{more}")
        return self.tracks_[name]

    def _table(self, tracks: Sequence[Track], horizon: int) -> "pd.DataFrame":
        """Forecasts from these tracks, in long format."""
        times, scaled = go_on(self.reader_, tracks, horizon)
        shifts = dict(zip(self.levels_, extended(self.offsets_, horizon), strict=True))
        return long_format(NAME, tracks, times, scaled, shifts, self.id_dtype_)

    def _checked(self) -> tuple[dict[str, Any], TrainConfig]:
        """The arguments in Python's own types, and the run they make."""
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
        return params, config_of(params)
