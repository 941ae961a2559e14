"""What is kept of a series so that it can go on: a state of constant size, or its last values."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from eattn.models import Forecaster, ForecasterState
from eattn.nn import EncoderState
from eattn.nn.decoding_state import parts, rebuilt
from eattn.timeseries.rollout import Reading, read, roll_out

PIECE = 4096  # values read at once: what a pass needs must not grow with the history
Named = dict[str, Tensor]


class Memory(Protocol):
    """One series: B = 1 in all that is kept."""

    count: int  # values seen

    @property
    def nbytes(self) -> int: ...

    def absorb(self, model: Forecaster, x: Tensor, calendar: Tensor | None) -> None:
        """Further values x [1, n, 1] and their times [1, n, F]."""

    def reading(self, model: Forecaster) -> Reading:
        """What a forecast starts from."""

    def recent(self) -> Tensor:
        """The last values [n], as far as they are kept."""

    def copy(self) -> Self: ...

    def tensors(self) -> list[Named]:
        """All that is kept, by name."""

    def restore(self, model: Forecaster, count: int, kept: Sequence[Named]) -> None:
        """Take back what `tensors` gave after `count` values."""


class StateMemory:
    """Every value through the recurrent state, in constant time and space.

    A mean over ever more values drowns the latest, and a state that has seen more than the model
    was trained on forecasts worse and worse. So with a `context` a second state starts after every
    half of it, and takes over when the first has seen all of it: forecasts come from a state of
    the last context / 2 to context values, or of all if they are fewer. None: one state for ever.
    """

    def __init__(self, context: int | None) -> None:
        self.context, self.count = context, 0
        self.readings: tuple[Reading, ...] = ()

    def starts(self, count: int) -> tuple[int, ...]:
        """Where the states in use after `count` values began, the oldest first."""
        if self.context is None:
            return (0,)
        half = -(-self.context // 2)
        young = (count - 1) // half * half
        return max(young - half, 0), young

    @property
    def nbytes(self) -> int:
        return sum(reading.nbytes for reading in self.readings)

    def absorb(self, model: Forecaster, x: Tensor, calendar: Tensor | None) -> None:
        before = dict(zip(self.starts(self.count), self.readings, strict=False))
        end = self.count + x.shape[1]
        after = {}
        for start in self.starts(end):
            if start not in after:
                skipped = max(start - self.count, 0)
                times = None if calendar is None else calendar[:, skipped:]
                after[start] = _read(model, x[:, skipped:], times, before.get(start))
        self.count, self.readings = end, tuple(after[start] for start in self.starts(end))

    def reading(self, model: Forecaster) -> Reading:
        return self.readings[0]

    def recent(self) -> Tensor:
        return self.readings[0].last[0, -self.count :, 0]

    def copy(self) -> Self:
        return _copy(self)

    def tensors(self) -> list[Named]:
        return [_named(reading) for reading in self.readings]

    def restore(self, model: Forecaster, count: int, kept: Sequence[Named]) -> None:
        like = _example(model)
        self.count, self.readings = count, tuple(_like(like, named) for named in kept)


class WindowMemory:
    """The last `window` values and their times, read anew for each forecast."""

    def __init__(self, window: int) -> None:
        self.window, self.count = window, 0
        self.kept: Named = {}

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.kept.values())

    def absorb(self, model: Forecaster, x: Tensor, calendar: Tensor | None) -> None:
        new = {"x": x} if calendar is None else {"x": x, "calendar": calendar}
        joined = {n: torch.cat([self.kept[n], v], 1) if self.kept else v for n, v in new.items()}
        # A copy, as a view would keep all that it was cut from.
        self.kept = {name: v[:, -self.window :].clone() for name, v in joined.items()}
        self.count += x.shape[1]

    def reading(self, model: Forecaster) -> Reading:
        with torch.no_grad():
            return read(model, self.kept["x"], calendar=self.kept.get("calendar"))

    def recent(self) -> Tensor:
        return self.kept["x"][0, :, 0]

    def copy(self) -> Self:
        return _copy(self)

    def tensors(self) -> list[Named]:
        return [self.kept]

    def restore(self, model: Forecaster, count: int, kept: Sequence[Named]) -> None:
        self.count, [self.kept] = count, kept


@torch.no_grad()
def forecast(
    model: Forecaster, readings: Sequence[Reading], horizon: int, calendar: Tensor | None
) -> Tensor:
    """Of each reading -> [n, horizon, C]; together where they have the same shapes."""
    result: list[Tensor] = [torch.empty(0)] * len(readings)
    for rows, together in alike([_named(reading) for reading in readings]):
        times = None if calendar is None else calendar[rows]
        y = roll_out(model, _like(readings[rows[0]], together), horizon, calendar=times)
        for row, forecast in zip(rows, y, strict=True):
            result[row] = forecast
    return torch.stack(result)


def alike(items: Sequence[Named]) -> Iterable[tuple[list[int], Named]]:
    """The numbers of items with the same names and shapes, and their rows in one tensor each."""

    def shapes(number: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(x.shape)) for name, x in items[number].items()]

    for _, group in groupby(sorted(range(len(items)), key=shapes), key=shapes):
        rows = list(group)
        yield rows, {name: torch.cat([items[i][name] for i in rows]) for name in items[rows[0]]}


def _read(model: Forecaster, x: Tensor, calendar: Tensor | None, before: Reading | None) -> Reading:
    """`read`, in pieces."""
    times = [None] * x.shape[1] if calendar is None else calendar.split(PIECE, 1)
    with torch.no_grad():
        for piece, time in zip(x.split(PIECE, 1), times, strict=False):
            before = read(model, piece, calendar=time, before=before)
    assert before is not None
    return before


def _named(reading: Reading) -> Named:
    state = reading.state
    own = {f"state.{n}": x for n, x in vars(state).items() if n != "encoder"}
    named = {"last": reading.last} | own
    for number, layer in enumerate(state.encoder.layers):
        named |= {f"{number}.{name}": x for name, x in parts(layer).items()}
    return named


def _like(example: Reading, named: Named) -> Reading:
    """A reading of the same kind that holds these."""
    layers = []
    for number, layer in enumerate(example.state.encoder.layers):
        own = {n.partition(".")[2]: x for n, x in named.items() if n.startswith(f"{number}.")}
        layers.append(rebuilt(layer, own))
    own = {n.removeprefix("state."): x for n, x in named.items() if n.startswith("state.")}
    return Reading(ForecasterState(EncoderState(tuple(layers)), **own), named["last"])


def _example(model: Forecaster) -> Reading:
    """What this model's readings look like."""
    like = next(model.parameters())
    fields = 0 if model.embed.calendar is None else len(model.embed.calendar.fields)
    calendar = torch.ones(1, 1, fields, dtype=torch.int64, device=like.device) if fields else None
    return _read(model, like.new_zeros(1, 1, 1), calendar, None)


def _copy(memory: Any) -> Any:
    """One that goes its own way: what is kept is replaced, never changed."""
    twin = object.__new__(type(memory))
    twin.__dict__.update(memory.__dict__)
    return twin
