"""Cross-validation of forecasters: train on the past of all series and test on the next steps."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn._checks import check_size
from eattn.data.freq import Times
from eattn.timeseries.inputs import ID, TIME, read_times
from eattn.timeseries.store import plain

Rows = NDArray[np.int64]


class CutoffSplit:
    """Split the rows of one or many series by time, for `GridSearchCV` and `cross_val_score`.

    All series are cut at the same time, so that no fold trains on values that are later than the
    ones it tests. The training rows of a fold are all rows up to its cutoff, and the test rows are
    those of the next `horizon` times. Test rows of series without training rows are left out.

    Parameters
    ----------
    n_splits : int, default 3
        Number of folds. The last fold ends with the last time.
    horizon : int, default 12
        Number of times in a test fold.
    step : int, optional
        Number of times between two cutoffs; by default the horizon.
    id_col, time_col : str
        Names of the columns unique_id and ds, if `fit` is given others.

    Examples
    --------
    >>> df = pd.DataFrame({"unique_id": ["a"] * 6 + ["b"] * 4, "ds": [*range(6), *range(2, 6)]})
    >>> for train, test in CutoffSplit(2, horizon=2).split(df):
    ...     print(train.tolist(), test.tolist())
    [0, 1] [2, 3]
    [0, 1, 2, 3, 6, 7] [4, 5, 8, 9]
    """

    def __init__(
        self,
        n_splits: int = 3,
        *,
        horizon: int = 12,
        step: int | None = None,
        id_col: str = ID,
        time_col: str = TIME,
    ) -> None:
        self.n_splits = check_size("n_splits", plain(n_splits))
        self.horizon = check_size("horizon", plain(horizon))
        self.step = self.horizon if step is None else check_size("step", plain(step))
        self.id_col, self.time_col = id_col, time_col

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"CutoffSplit({given})"

    def get_n_splits(self, X: Any = None, y: None = None, groups: None = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: Any, y: None = None, groups: None = None) -> Iterator[tuple[Rows, Rows]]:
        """Yield the training rows and the test rows of each fold, oldest first.

        Parameters
        ----------
        X : DataFrame, Series, array or list
            Data frame with a column ds and, for several series, unique_id; or one series.
        y, groups : None
            Ignored; part of the scikit-learn interface.

        Yields
        ------
        train, test : int arrays
            Positions of rows.
        """
        read, ids = self._rows(X)
        times = pd.factorize(read, sort=True)[0]
        count = int(times.max(initial=-1)) + 1
        first = count - self.horizon - self.step * (self.n_splits - 1)
        if first < 1:
            raise ValueError(
                f"X has {count} different times, but {self.n_splits} splits of horizon"
                f" {self.horizon} and step {self.step} need at least {count - first + 1}"
            )
        for start in range(first, count, self.step)[: self.n_splits]:
            train = times < start
            test = ~train & (times < start + self.horizon) & ids.isin(ids[train]).to_numpy()
            yield np.flatnonzero(train), np.flatnonzero(test)

    def _rows(self, X: Any) -> tuple[Times, "pd.Series[Any]"]:
        """Return the time and the unique_id of each row."""
        one = pd.Series(np.zeros(len(X)))
        if isinstance(X, pd.Series) and isinstance(X.index, pd.DatetimeIndex | pd.PeriodIndex):
            return read_times(X.index.to_series()), one
        if not isinstance(X, pd.DataFrame):
            return np.arange(len(X)), one
        frame = X.reset_index(drop=X.index.name != self.id_col)  # older Nixtla frames
        for name in (self.time_col, self.id_col):
            if name not in frame and name != ID:
                raise ValueError(f"X must have a column {name!r}, got {', '.join(map(str, frame))}")
        ids = frame.get(self.id_col)
        return read_times(frame[self.time_col], ids), one if ids is None else ids
