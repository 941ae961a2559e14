"""Forecast from a state: read values into a model, and keep a state per series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.data.freq import Freq, Time, Times, is_next, times_after, times_until
from eattn.models import QuantileForecaster
from eattn.nn import EncoderState
from eattn.nn.decoding_state import parts, rebuilt
from eattn.timeseries.ahead import Ahead
from eattn.timeseries.anomalies import START, Surprise
from eattn.timeseries.calibration import Calibration
from eattn.timeseries.choice import rule_quantiles
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.fast_model import Arrays, FastModel, fast_model
from eattn.timeseries.features import Index, look_ahead, read_tokens, rows_kept, step_features
from eattn.timeseries.inputs import TimeSeries, Values, check_step, fill_series
from eattn.timeseries.tracking import MOVE, SCALE, VALUE, Rows, Track, follow

TURN = 4  # values between two comparisons with longer forecasts
BATCH = 256  # series read at once
CHUNK = 4096  # values read at once, which bounds memory for long histories
SMALL = 20_000  # elements: for more, PyTorch is faster than NumPy
Array = NDArray[np.float64]
Known = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SeriesState:
    """State of one series after its last value; immutable and of constant size."""

    unique_id: Any
    freq: Freq
    ds: Time  # time of the last row
    track: Track
    encoder: Arrays  # state of the encoder; every array has a first axis of length 1
    outputs: Array  # [n, D], the last outputs of the encoder, at most `horizon`
    factors: Array  # of the calibration
    futr: Known  # [F], encoded known-future covariates of the last row
    hist: Known  # [F], encoded past-only covariates of the last row
    stat: Known  # [F], encoded static covariates
    rule: int | None = None  # simple forecast to use instead of the model
    lower: float = -np.inf  # no forecast lies below
    surprise: Surprise = START

    @property
    def count(self) -> int:
        """Number of values read."""
        return self.track.steps

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        own: Any = (self.track.rows, self.factors, self.outputs, self.futr, self.hist, self.stat)
        return sum(x.nbytes for x in (*own, *self.encoder.values()))

    def next_times(self, count: int) -> Times:
        """Return the next `count` times."""
        return times_after(self.freq, self.ds, count)

    def recent(self) -> tuple[Times, Values]:
        """Return the times and values that the state still holds."""
        values = self.track.rows[:, VALUE]
        return times_until(self.freq, self.ds, len(values)), values

    def following(self, series: TimeSeries) -> TimeSeries:
        """Return the rows of a series after the last row."""
        if series.ds is None:
            return series
        times = self._in_zone(series.ds)
        return replace(series, ds=times).take(times > self.ds)

    def new_rows(self, series: TimeSeries) -> TimeSeries:
        """Return new rows with gaps filled; raise unless they follow the last row."""
        name = self.unique_id
        if series.ds is None:
            return replace(series, ds=self.next_times(len(series)))
        times = self._in_zone(series.ds)
        series, first = series if times is series.ds else replace(series, ds=times), times[0]
        if len(times) == 1 and is_next(self.freq, self.ds, first):
            return series  # the usual case, without the work below
        if first == self.ds:
            raise ValueError(f"series {name!r}: {first} is already known")
        if first < self.ds:
            raise ValueError(f"series {name!r}: {first} is before {self.ds}, the last known time")
        try:
            filled = fill_series(self.freq, series, after=self.ds, count=self.count)
        except ValueError as error:
            raise ValueError(f"series {name!r}: {error}") from None
        check_step(name, times, self.freq)
        return filled

    def _in_zone(self, times: Times) -> Times:
        """Return times in the zone of the series; raise if they cannot be compared with it."""
        if isinstance(self.freq, int) != (times.dtype.kind == "i"):
            kind = "an integer" if isinstance(self.freq, int) else "a time"
            raise ValueError(f"series {self.unique_id!r}: ds must be {kind}, got {times[0]}")
        if isinstance(self.freq, int) or (times.tz is None and self.ds.tz is None):
            return times
        if times.tz is None or self.ds.tz is None:
            zones = (self.ds.tz, times.tz)
            have, new = (f"the time zone {tz}" if tz else "no time zone" for tz in zones)
            raise ValueError(
                f"series {self.unique_id!r}: the history has {have}, but {times[0]} has {new};"
                " use a zone for both or for neither"
            )
        return times.tz_convert(self.ds.tz)


class NewRows(NamedTuple):
    """New rows of a series, with encoded covariates."""

    ds: Times
    y: Values
    futr: Known  # [n, F]
    hist: Known  # [n, F]
    track: Track | None = None  # after these rows, if it is known already


@dataclass(frozen=True, eq=False)
class Predictor:
    """Trained model that reads series and forecasts from their states."""

    model: QuantileForecaster
    fields: tuple[str, ...]  # calendar fields that the model reads
    seasons: tuple[int, ...]
    calibration: Calibration
    covariates: Covariates

    @property
    def horizon(self) -> int:
        return self.calibration.horizon

    def start(
        self, series: Sequence[TimeSeries], tracks: Sequence[Track] | None = None
    ) -> list[SeriesState]:
        """Return the states of series after all their values; `tracks` saves following them."""
        states, new = [], []
        known: Sequence[Track | None] = tracks or [None] * len(series)
        for s, track in zip(series, known, strict=True):
            futr, hist, stat = self.covariates.encode_history(s)
            assert s.freq is not None
            new.append(NewRows(s.ds, s.y, futr, hist, track))
            states.append(
                SeriesState(
                    s.unique_id,
                    s.freq,
                    ds=None,
                    track=Track(np.empty((0, 0))),
                    encoder={},
                    outputs=np.empty((0, self.model.config.dim)),
                    factors=self.calibration.initial(),
                    futr=futr[0],
                    hist=hist[0],
                    stat=stat,
                )
            )
        return [state for state, _ in self._advance_all(states, new)]

    def advance(
        self, states: Sequence[SeriesState], new: Sequence[TimeSeries]
    ) -> list[tuple[SeriesState, list[float]]]:
        """Return the state of each series after new rows, and their anomaly scores."""
        rows = []
        for state, series in zip(states, new, strict=True):
            encoded = self.covariates.encode_rows(series, before=(state.futr, state.hist))
            rows.append(NewRows(series.ds, series.y, *encoded))
        return self._advance_all(states, rows)

    def _advance_all(
        self, states: Sequence[SeriesState], new: Sequence[NewRows]
    ) -> list[tuple[SeriesState, list[float]]]:
        if len(states) == 1:
            return list(self._advance(states, new))
        alike: dict[Any, list[int]] = {}
        for number, state in enumerate(states):
            shapes: list[Any] = [len(new[number].y), len(state.outputs)]
            shapes += [x.shape for x in state.encoder.values()]
            alike.setdefault(tuple(shapes), []).append(number)
        result: list[Any] = [None] * len(states)
        for numbers in alike.values():
            for start in range(0, len(numbers), BATCH):
                some = numbers[start : start + BATCH]
                after = self._advance([states[i] for i in some], [new[i] for i in some])
                for i, each in zip(some, after, strict=True):
                    result[i] = each
        return result

    def _advance(
        self, states: Sequence[SeriesState], new: Sequence[NewRows]
    ) -> Iterator[tuple[SeriesState, list[float]]]:
        """Advance series with equally many new rows and states of equal shapes."""
        fresh, count = not states[0].encoder, len(new[0].y)
        tracks = [
            rows.track or follow(rows.y.tolist(), self.seasons, None if fresh else state.track)[1]
            for state, rows in zip(states, new, strict=True)
        ]
        flat, first, at = _flatten([track.rows for track in tracks], count)
        known = self._known(states, new)
        hist = _batch([rows.hist for rows in new])
        tokens = np.concatenate([read_tokens(flat, at, first, self.seasons), known, hist], -1)
        outputs, encoder = self._read(tokens, _stack([state.encoder for state in states]))
        judged: list[Any] = [(state.factors, state.surprise, [0.0] * count) for state in states]
        if not fresh:
            outputs = np.concatenate([_batch([state.outputs for state in states]), outputs], 1)
            judged = self._judge(states, new, known, (flat, first, at), tracks, outputs)
        for number, (rows, track) in enumerate(zip(new, tracks, strict=True)):
            factors, surprise, scores = judged[number]
            state = replace(
                states[number],
                ds=rows.ds[-1],
                track=track.last(rows_kept(self.seasons, self.horizon)),
                encoder={name: x[number : number + 1].copy() for name, x in encoder.items()},
                outputs=outputs[number, -self.horizon :].copy(),
                factors=factors,
                surprise=surprise,
                futr=rows.futr[-1],
                hist=rows.hist[-1],
            )
            yield state, scores

    def _read(self, tokens: Known, state: Arrays) -> tuple[Array, Arrays]:
        """Read tokens [B, n, T]; return the outputs of the encoder [B, n, D] and its state."""
        if self._fast is not None and state and tokens.shape[1] == 1:
            y, after = self._fast.step(tokens[:, 0], state)
            return y[:, None].astype(np.float64, copy=False), after
        like = next(self.model.parameters())
        x = torch.from_numpy(tokens).to(like)
        encoder = from_arrays(self._example, state, like) if state else None
        outputs = []
        with torch.no_grad():
            for start in range(0, x.shape[1], CHUNK):
                found, encoder = self.model.read(x[:, start : start + CHUNK], encoder)
                outputs.append(found.double().cpu().numpy())
        assert encoder is not None
        return np.concatenate(outputs, 1), to_arrays(encoder)

    @cached_property
    def _steps(self) -> tuple[Index, Known]:
        """All steps ahead, and their functions."""
        steps = np.arange(1, self.horizon + 1)
        return steps, step_features(steps)

    @cached_property
    def ahead(self) -> Ahead:
        """Next times of series and their calendar columns."""
        return Ahead(self.fields)

    @cached_property
    def _fast(self) -> FastModel | None:
        return fast_model(self.model)

    @cached_property
    def _example(self) -> EncoderState:
        """A state of the encoder, for its structure."""
        embed = self.model.embed
        with torch.no_grad():
            return self.model.read(embed.weight.new_zeros(1, 1, embed.in_features))[1]

    def _judge(
        self,
        states: Sequence[SeriesState],
        new: Sequence[NewRows],
        known: Known,
        places: tuple[Rows, Index, Index],
        tracks: Sequence[Track],
        outputs: Array,
    ) -> list[tuple[Array, Surprise, list[float]]]:
        """Compare new values with their forecasts; return the new factors and the scores.

        Each value is compared with the forecast one step before, and every few values with one of
        the longer forecasts in turn.
        """
        count, steps = len(new[0].y), self.calibration.steps
        turn = np.array([[track.steps] for track in tracks]) - count + np.arange(count)
        row = np.where(turn % TURN, 0, turn // TURN % len(steps))  # of the factors
        raw = self._raw_forecasts(states, row, known, places, outputs)
        low, median, high = (self.model.levels.index(level) for level in (0.1, 0.5, 0.9))
        result = []
        for number, state in enumerate(states):
            factors, surprise, scores = state.factors, state.surprise, []
            for j, y in enumerate(new[number].y.tolist()):
                score, longer = 0.0, int(row[number, j])
                for index in (0, longer) if longer else (0,):
                    q = raw[number, j, int(index > 0)]
                    if y != y or q[0] != q[0]:
                        continue
                    q = self.calibration.apply_one(factors[index], q)
                    if state.lower > -np.inf:
                        q = self.calibration.bound(q, state.lower)
                    if not index:
                        surprise, score = surprise.score(y, q[low], q[median], q[high])
                    factors = self.calibration.update(factors, index, q, y)
                scores.append(score)
            result.append((factors, surprise, scores))
        return result

    def _raw_forecasts(
        self,
        states: Sequence[SeriesState],
        row: Index,
        known: Known,
        places: tuple[Rows, Index, Index],
        outputs: Array,
    ) -> Array:
        """Return the forecasts of new values one step before, and the step of `row` before.

        The result has the shape [series, values, 2, levels], with NaN where there was none.
        """
        remembered = states[0].__dict__.get("_raw")
        if remembered is not None and row.shape == (1, 1) and not row.any():
            return remembered[None, None, :1].repeat(2, 2)
        flat, first, at = places[0], places[1][..., None], places[2][..., None]
        ahead = np.stack([np.ones_like(row), self.calibration.steps[row]], -1)
        back = outputs.shape[1] - row.shape[1] + np.arange(row.shape[1])[:, None] - ahead
        usable = at - ahead >= first
        origins = np.where(usable, at - ahead, first)
        beginning = np.broadcast_to(first, origins.shape)
        rules = look_ahead(flat, origins, beginning, ahead[..., None], self.seasons)
        features = step_features(ahead[..., None])
        wide = np.broadcast_to(known[:, :, None, None], (*features.shape[:-1], known.shape[-1]))
        pick = np.arange(len(states))[:, None, None], back.clip(0)
        features = np.concatenate([features, wide], -1)
        now, steps = flat[origins], ahead[..., None]
        found = self._quantiles(outputs[pick], rules, features, now, steps, states)
        return np.where(usable[..., None], found[..., 0, :], np.nan)

    def _quantiles(
        self,
        outputs: Array,
        rules: Array,
        features: Known,
        now: Rows,
        steps: Index,
        states: Sequence[SeriesState],
    ) -> Array:
        """Return raw quantiles [B, ..., H, levels] from outputs of the encoder [B, ..., D]."""
        if self._fast is not None and rules.size < SMALL:
            scaled = self._fast.quantiles(outputs, rules, features)
        else:
            like = next(self.model.parameters())
            given = (torch.from_numpy(x).to(like) for x in (outputs, rules, features))
            with torch.no_grad():
                scaled = self.model.quantiles(*given).double().cpu().numpy()
        for number, state in enumerate(states):
            if state.rule is not None:
                move = now[number, ..., MOVE] / now[number, ..., SCALE]
                scaled[number] = rule_quantiles(
                    rules[number], state.rule, move, steps[number], self.model
                )
        return now[..., None, VALUE, None] + now[..., None, SCALE, None] * scaled

    def next_times(self, states: Sequence[SeriesState], horizon: int) -> list[Times]:
        """Return the next times of each series."""
        return [self.ahead.times(state.freq, state.ds, horizon) for state in states]

    def forecast(
        self, states: Sequence[SeriesState], times: Sequence[Times], futr: Sequence[Known]
    ) -> Array:
        """Return quantiles [series, horizon, levels] at the next times.

        `futr` [horizon, F] holds the encoded known-future covariates of each series.
        """
        horizon, blocks, now = len(times[0]), list[Array](), list(states)
        for start in range(0, horizon, self.horizon):
            part = slice(start, start + self.horizon)
            new = [
                NewRows(t[part], np.empty(0), x[part], np.empty(0, np.float32))
                for t, x in zip(times, futr, strict=True)
            ]
            block = self._block(now, new)
            if blocks:  # uncertainty of the start of the block adds to that within it
                half = self.calibration.levels.index(0.5)
                apart, earlier = (q - q[..., half : half + 1] for q in (block, blocks[-1][:, -1:]))
                block = block - apart + np.sign(apart) * np.hypot(apart, earlier)
            blocks.append(block)
            if start + self.horizon < horizon:
                now = self._continued(now, new, block)
        lower = np.array([state.lower for state in states])[:, None, None]
        return self.calibration.bound(np.concatenate(blocks, 1), lower)

    def _block(self, states: Sequence[SeriesState], new: Sequence[NewRows]) -> Array:
        """Return the calibrated quantiles of up to `self.horizon` steps."""
        known = self._known(states, new)
        flat, first, at = _flatten([state.track.rows for state in states], 1)
        at, first = at[:, 0], first[:, 0]
        count = known.shape[1]
        steps, features = self._steps[0][:count], self._steps[1][:count]
        rules = look_ahead(flat, at, first, steps, self.seasons)
        features = np.concatenate([features[None].repeat(len(states), 0), known], -1)
        outputs = _batch([state.outputs[-1] for state in states])
        steps = steps[None].repeat(len(states), 0)
        raw = self._quantiles(outputs, rules, features, flat[at], steps, states)
        if not self.covariates.futr_width:
            for state, own in zip(states, raw, strict=True):
                state.__dict__["_raw"] = own  # for the comparison with the next value
        return self.calibration.apply(_batch([state.factors for state in states]), raw)

    def _continued(
        self, states: Sequence[SeriesState], new: Sequence[NewRows], block: Array
    ) -> list[SeriesState]:
        """Return the states after the medians of a block, as if they were observed."""
        half = self.calibration.levels.index(0.5)
        medians = [
            rows._replace(y=q[:, half], hist=np.repeat(state.hist[None], len(q), 0))
            for state, rows, q in zip(states, new, block, strict=True)
        ]
        after = [state for state, _ in self._advance_all(states, medians)]
        return [replace(a, factors=s.factors) for a, s in zip(after, states, strict=True)]

    def _known(self, states: Sequence[SeriesState], new: Sequence[NewRows]) -> Known:
        """Return what is known in advance about equally many rows of series: [B, n, columns]."""
        count, parts = len(new[0].ds), []
        if self.fields:
            # Equal times may have different zones.
            keys = [(rows.ds[0], getattr(rows.ds, "tz", None)) for rows in new]
            found = {key: rows.ds for key, rows in zip(keys, new, strict=True)}
            columns = {key: self.ahead.columns(times) for key, times in found.items()}
            parts.append(_batch([columns[key] for key in keys]))
        if self.covariates.futr_width:
            parts.append(_batch([rows.futr for rows in new]))
        if len(states[0].stat):
            static = _batch([state.stat for state in states])
            parts.append(np.repeat(static[:, None], count, 1))
        if not parts:
            return np.empty((len(new), count, 0), np.float32)
        return np.concatenate(parts, -1) if len(parts) > 1 else parts[0]


def _flatten(rows: Sequence[Rows], count: int) -> tuple[Rows, Any, Any]:
    """Return the rows of several series one after the other, and [series, count] positions.

    The positions are those of the first row of the series, and of its last `count` rows.
    """
    if len(rows) == 1:  # as in a stream
        at = np.arange(len(rows[0]) - count, len(rows[0]))[None]
        return rows[0], np.zeros_like(at), at
    ends = np.cumsum([len(each) for each in rows])
    firsts = ends - [len(each) for each in rows]
    at = ends[:, None] + np.arange(-count, 0)
    return np.concatenate(rows), np.broadcast_to(firsts[:, None], at.shape), at


def _batch(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of equal shapes as one batch."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)  # np.stack is slow for one


# ---- states of encoders ----


def to_arrays(encoder: EncoderState) -> Arrays:
    """Return the tensors of a state as arrays by layer and name."""
    return {
        f"{number}.{name}": x.cpu().numpy()
        for number, layer in enumerate(encoder.layers)
        for name, x in parts(layer).items()
    }


def from_arrays(example: EncoderState, arrays: Arrays, like: Tensor) -> EncoderState:
    """Return a state with the structure of `example` and these arrays."""
    layers = []
    for number, layer in enumerate(example.layers):
        start = f"{number}."
        own = {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}
        layers.append(rebuilt(layer, {n: torch.from_numpy(x).to(like) for n, x in own.items()}))
    return EncoderState(tuple(layers))


def _stack(states: Sequence[Arrays]) -> Arrays:
    """Return states of equal shapes as one batch."""
    if len(states) == 1:
        return states[0]
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]}
