"""Embeddings of time series: values, learned positions and sampling times.

Axes: B batch, L tokens, C channels of the series, D channels of the model, F calendar fields.
Masked tokens are never read and take up no position.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.nn.base import check_tokens
from eattn.nn.padding import zero_masked
from eattn.ops.checks import is_readable

KINDS = ("linear", "conv")
INIT_STD = 0.02  # standard deviation of new position and calendar embeddings, as in BERT

# Lowest and highest value of each calendar field, numbered as in Python's datetime (Monday is 0).
FIELDS: dict[str, tuple[int, int]] = {
    "month": (1, 12),
    "day": (1, 31),
    "weekday": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
}


class TokenEmbedding(nn.Module):
    """Embed the values of a series, x [B, L, C] -> [B, L, D].

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    dim : int
        Number of channels D of the model.
    kind : {"linear", "conv"}, default "linear"
        A linear map of each token, or a convolution of width 3 over time. The convolution reads 0
        for masked tokens and beyond the ends, so valid tokens should be contiguous.

    Examples
    --------
    >>> TokenEmbedding(3, 16, kind="conv")(torch.randn(2, 5, 3)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, channels: int, dim: int, *, kind: Literal["linear", "conv"] = "linear"
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        self.channels, self.dim = check_size("channels", channels), check_size("dim", dim)
        self.project: nn.Module
        if kind == "conv":
            self.project = nn.Conv1d(channels, dim, 3, padding=1)
        else:
            self.project = nn.Linear(channels, dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is not None:
            x = zero_masked(x, key_mask)
        if isinstance(self.project, nn.Conv1d):
            y: Tensor = self.project(x.transpose(1, 2)).transpose(1, 2).contiguous()
        else:
            y = self.project(x)
        return y


class LearnedPositions(nn.Module):
    """Add a learned vector for each absolute position, x_i + p_(start + i).

    Parameters
    ----------
    dim : int
        Number of channels D.
    max_len : int
        Number of positions.

    Examples
    --------
    >>> positions = LearnedPositions(16, max_len=100)
    >>> positions(torch.randn(2, 5, 16), start=95).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, dim: int, max_len: int) -> None:
        super().__init__()
        self.dim, self.max_len = check_size("dim", dim), check_size("max_len", max_len)
        self.table = nn.Embedding(max_len, dim)
        nn.init.normal_(self.table.weight, std=INIT_STD)

    def extra_repr(self) -> str:
        return f"{self.dim}, max_len={self.max_len}"

    def forward(self, x: Tensor, start: int | Tensor = 0, key_mask: Tensor | None = None) -> Tensor:
        """Add positions to x.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Tokens.
        start : int or int Tensor of shape (B,), default 0
            Position of the first token.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid tokens. Positions count only valid tokens.

        Returns
        -------
        y : Tensor, shape (B, L, D)
        """
        check_tokens("x", x, "[B, L, D]", self.dim)
        if key_mask is None:
            position = torch.arange(x.shape[1], device=x.device)
        else:
            position = key_mask.cumsum(1) - 1
        if isinstance(start, Tensor):
            if start.shape != x.shape[:1]:
                raise ValueError(
                    f"start must be an int or [B] = [{x.shape[0]}], got shape {tuple(start.shape)}"
                )
            start = start.unsqueeze(1)
        position = position + start
        if key_mask is not None:
            position = position.masked_fill(~key_mask, 0)
        self._check(position, x.shape[1], start, key_mask)
        return x + self.table(position)

    def _check(
        self, position: Tensor, L: int, start: int | Tensor, key_mask: Tensor | None
    ) -> None:
        """Raise if a position is outside the table, unless reading positions would need a sync."""
        if isinstance(start, int) and key_mask is None:
            first, last = (start, start + L - 1) if L else (0, 0)
        elif not is_readable(position):
            return  # the lookup itself fails then, with an error from PyTorch
        else:
            first, last = int(position.min()), int(position.max())
        if first < 0:
            raise ValueError(f"start must be at least 0, got {first}")
        if last >= self.max_len:
            first = start if isinstance(start, int) else int(start.max())
            raise ValueError(
                f"x of length L = {L} at start = {first} needs {last + 1} positions,"
                f" but max_len = {self.max_len}: increase max_len or shorten x"
            )


class CalendarEmbedding(nn.Module):
    """Embed sampling times as the sum of one learned vector per calendar field.

    This is the paper's absolute positional embedding based on sampling times (Sec. 4.1).

    Parameters
    ----------
    dim : int
        Number of channels D.
    fields : sequence of str, optional
        Names of the calendar fields; month, day, weekday, hour and minute by default.

    Examples
    --------
    >>> times = np.datetime64("2016-07-01") + np.arange(48) * np.timedelta64(1, "h")
    >>> CalendarEmbedding(16)(calendar_fields(times)).shape
    torch.Size([48, 16])
    """

    def __init__(self, dim: int, fields: Sequence[str] = tuple(FIELDS)) -> None:
        super().__init__()
        self.dim, self.fields = check_size("dim", dim), check_fields(fields)
        sizes = {name: FIELDS[name][1] - FIELDS[name][0] + 1 for name in self.fields}
        self.tables = nn.ModuleDict({name: nn.Embedding(n, dim) for name, n in sizes.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=INIT_STD)  # type: ignore[arg-type]

    def forward(self, calendar: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Embed calendar fields.

        Parameters
        ----------
        calendar : int Tensor, shape (..., F)
            Calendar fields, as returned by `calendar_fields`.
        key_mask : bool Tensor, shape (...), optional
            True for valid times. Values of masked times are ignored.

        Returns
        -------
        y : Tensor, shape (..., D)
        """
        if not isinstance(calendar, Tensor) or calendar.dtype not in (torch.int64, torch.int32):
            kind = calendar.dtype if isinstance(calendar, Tensor) else type(calendar).__name__
            raise TypeError(f"calendar must be an int64 or int32 tensor, got {kind}")
        if calendar.dim() < 1 or calendar.shape[-1] != len(self.fields):
            raise ValueError(
                f"calendar must be [..., {len(self.fields)}] for {', '.join(self.fields)},"
                f" got shape {tuple(calendar.shape)}"
            )
        lowest = calendar.new_tensor([FIELDS[name][0] for name in self.fields])
        index = calendar - lowest
        if key_mask is not None:
            index = index.masked_fill(~key_mask.unsqueeze(-1), 0)
        self._check(index)
        parts = zip(self.tables.values(), index.unbind(-1), strict=True)
        return functools.reduce(torch.add, (table(column) for table, column in parts))

    def _check(self, index: Tensor) -> None:
        """Raise if a field is out of range, unless reading the values would need a sync."""
        if not is_readable(index):
            return
        least, most = index.flatten(0, -2).aminmax(dim=0) if index.dim() > 1 else (index, index)
        for name, a, b in zip(self.fields, least.tolist(), most.tolist(), strict=True):
            low, high = FIELDS[name]
            if a < 0 or b > high - low:
                wrong = low + (a if a < 0 else b)
                raise ValueError(f"{name} must be between {low} and {high}, got {wrong}")


def calendar_fields(times: ArrayLike, fields: Sequence[str] = tuple(FIELDS)) -> Tensor:
    """Return calendar fields of sampling times: month, day, weekday, hour and minute.

    Parameters
    ----------
    times : array_like of datetime64, shape (...)
        Times as a NumPy datetime64 array of any unit, a pandas column, or a list of datetimes or
        ISO strings. Integers raise, as their unit is unknown: use `x.astype("datetime64[ns]")`.
    fields : sequence of str, optional
        Names of the fields to return, in order; all five by default.

    Returns
    -------
    calendar : int64 Tensor, shape (..., F)
        Weekdays start with Monday = 0.

    Examples
    --------
    >>> calendar_fields(np.array(["2016-02-29T13:45"], dtype="datetime64[m]")).tolist()
    [[2, 29, 0, 13, 45]]
    """
    at = _as_times(times)
    month, day = at.astype("datetime64[M]"), at.astype("datetime64[D]")
    hour = at.astype("datetime64[h]")
    values = {
        "month": month.astype(np.int64) % 12 + 1,
        "day": (day - month.astype("datetime64[D]")).astype(np.int64) + 1,
        "weekday": (day.astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday
        "hour": (hour - day).astype(np.int64),
        "minute": (at.astype("datetime64[m]") - hour).astype(np.int64),
    }
    return torch.from_numpy(np.stack([values[name] for name in check_fields(fields)], -1))


def check_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return `fields` as a tuple after checking that the names are known and unique."""
    if isinstance(fields, str):
        raise TypeError(f"fields must be a sequence of names, got the string {fields!r}")
    for name in fields:
        if name not in FIELDS:
            raise ValueError(f"fields must be among {', '.join(FIELDS)}, got {name!r}")
    if not fields or len(set(fields)) != len(fields):
        raise ValueError(f"fields must be at least one name without repetition, got {fields!r}")
    return tuple(fields)


def _as_times(times: ArrayLike) -> NDArray[np.datetime64]:
    raw = np.asarray(times)
    if raw.dtype.kind not in "MUO":
        raise TypeError(
            f"times must be datetime64, got {raw.dtype}: state the unit of numbers with"
            " times.astype('datetime64[ns]')"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns when it drops a time zone
            at = raw if raw.dtype.kind == "M" else raw.astype("datetime64[us]")
    except (ValueError, TypeError, Warning) as error:
        raise TypeError(f"times must be datetime64 or convertible to it: {error}") from None
    missing = np.isnat(at)
    if missing.any():
        where = tuple(int(i) for i in np.argwhere(missing)[0])
        raise ValueError(f"times must not be missing, got NaT at index {where}")
    return at
