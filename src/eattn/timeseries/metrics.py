"""Metrics of forecasts, and the scores of a backtest.

Missing values (NaN) of y are left out. A metric of no values is NaN. Except for `scores`, arguments
are arrays of one shape, or numbers.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

# Steps in a season, as in GluonTS and GIFT-Eval, by the unit of a pandas frequency.
SEASONS = {"s": 3600, "min": 1440, "h": 24, "B": 5, "MS": 12, "ME": 12, "QS": 4, "QE": 4}
Array = NDArray[np.float64]


def mae(y: ArrayLike, forecast: ArrayLike) -> float:
    """Return the mean absolute error, mean |y - forecast|.

    Examples
    --------
    >>> mae([1, 2, np.nan], [2, 2, 5])
    0.5
    """
    return _mean(np.abs(_error(y, forecast)))


def rmse(y: ArrayLike, forecast: ArrayLike) -> float:
    """Return the root of the mean squared error, √mean (y - forecast)².

    Examples
    --------
    >>> rmse([1, 2], [4, -2])
    3.5355339059327378
    """
    return float(np.sqrt(_mean(_error(y, forecast) ** 2)))


def smape(y: ArrayLike, forecast: ArrayLike) -> float:
    """Return the symmetric mean absolute percentage error, mean 2 |y - f| / (|y| + |f|).

    It is a fraction between 0 and 2; multiply it by 100 for percent. The error is 0 where y and
    the forecast are both 0.

    Examples
    --------
    >>> smape([1, 0], [3, 0])
    0.5
    """
    size = np.abs(np.asarray(y, np.float64)) + np.abs(np.asarray(forecast, np.float64))
    return _mean(2 * np.abs(_error(y, forecast)) / np.where(size == 0, 1, size))


def mase(y: ArrayLike, forecast: ArrayLike, scale: ArrayLike) -> float:
    """Return the mean absolute scaled error, mean |y - forecast| / scale.

    Parameters
    ----------
    y, forecast : array
        Values and their forecasts.
    scale : float or array
        Error of the seasonal naive forecast on the training part of the series, from
        `seasonal_scale`. Values with a scale of 0 (a constant series) or NaN are left out, as in
        GIFT-Eval, because there the scaled error is not defined.

    Returns
    -------
    float
        Below 1 if the errors are smaller than those of the seasonal naive forecast.

    Examples
    --------
    >>> mase([1, 2, 3], [2, 2, 9], scale=[2, 2, 0])
    0.25
    """
    scale = np.asarray(scale, np.float64)
    return _mean(np.abs(_error(y, forecast)) / np.where(scale == 0, np.nan, scale))


def seasonal_scale(history: ArrayLike, season: int = 1) -> float:
    """Return the mean absolute difference of values that are one season apart.

    This is the in-sample error of the seasonal naive forecast, by which MASE is scaled.

    Parameters
    ----------
    history : array, shape (n,)
        Training part of one series, at a fixed frequency. Pairs with a missing value are left out.
    season : int, default 1
        Number of steps in a season; see `season_length`. A history that is
        not longer than one season is compared with its previous values instead.

    Returns
    -------
    float
        0 for a constant history, NaN if there is no pair of values.

    Examples
    --------
    >>> seasonal_scale([1, 5, 2, 7], season=2)
    1.5
    """
    values = np.asarray(history, np.float64)
    lag = 1 if season >= len(values) else season
    return _mean(np.abs(values[lag:] - values[:-lag]))


def season_length(freq: str | int) -> int:
    """Return the number of steps in a season: a day, 5 business days or a year.

    Parameters
    ----------
    freq : str or int
        Pandas frequency, or step of integer times.

    Returns
    -------
    int
        1 for days, weeks, years and integer times, and if the step does not divide the season.

    Examples
    --------
    >>> [season_length(freq) for freq in ("15min", "h", "D", "W-SUN", "MS", "QS-OCT", "7h", 1)]
    [96, 24, 1, 1, 12, 4, 1, 1]
    """
    if isinstance(freq, int):
        return 1
    offset = pd.tseries.frequencies.to_offset(freq)
    unit = offset.rule_code.partition("-")[0]
    unit = unit if unit in SEASONS else unit.removeprefix("B")  # business months and quarters
    season, rest = divmod(SEASONS.get(unit, 1), offset.n)
    return 1 if rest else season


def pinball(y: ArrayLike, forecast: ArrayLike, level: float) -> float:
    """Return the pinball (quantile) loss, mean max(level (y - f), (level - 1) (y - f)).

    At level 0.5 it is half the mean absolute error. The weighted quantile loss of GIFT-Eval is
    twice the sum of the pinball losses divided by the sum of |y|.

    Examples
    --------
    >>> pinball([1, 1], [0, 2], level=0.9)
    0.5
    """
    error = _error(y, forecast)
    return _mean(np.maximum(level * error, (level - 1) * error))


def coverage(y: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the fraction of values with low <= y <= high.

    Examples
    --------
    >>> coverage([1, 2, 3, np.nan], low=0, high=[1, 1, 3, 3])
    0.6666666666666666
    """
    y = np.asarray(y, np.float64)
    return _mean(np.where(np.isnan(y), np.nan, (low <= y) & (y <= high)))


def scores(
    backtest: pd.DataFrame,
    column: str = "EAForecaster",
    *,
    id_col: str = "unique_id",
    target_col: str = "y",
) -> pd.DataFrame:
    """Compute the metrics of each series and of all series together.

    Parameters
    ----------
    backtest : DataFrame
        Result of `EAForecaster.backtest`, with columns unique_id, y, the forecasts and, for MASE,
        scale.
    column : str, default "EAForecaster"
        Name of the forecast column. Quantiles are in columns such as "EAForecaster-q10".
    id_col, target_col : str
        Names of the columns unique_id and y, if `fit` was given others.

    Returns
    -------
    DataFrame
        One row per series and a row "all", in which every value counts once. Columns MAE, RMSE,
        sMAPE, MASE and, if there are quantiles, pinball (the mean over all levels) and coverage
        (of the interval between the lowest and the highest quantile).
    """
    prefix = f"{column}-q"
    levels = {name: float(name.removeprefix(prefix)) / 100 for name in backtest.filter(like=prefix)}
    low, high = (
        min(levels, key=levels.__getitem__, default=""),
        max(levels, key=levels.__getitem__, default=""),
    )

    def row(part: pd.DataFrame) -> dict[str, float]:
        y, forecast = part[target_col], part[column]
        found = {"MAE": mae(y, forecast), "RMSE": rmse(y, forecast), "sMAPE": smape(y, forecast)}
        if "scale" in part:
            found["MASE"] = mase(y, forecast, part["scale"])
        if levels:
            losses = [pinball(y, part[name], level) for name, level in levels.items()]
            found["pinball"] = float(np.mean(losses))
        if len(levels) > 1:
            found["coverage"] = coverage(y, part[low], part[high])
        return found

    groups = backtest.groupby(id_col, sort=False, observed=True)
    found = {name: row(group) for name, group in groups} | {"all": row(backtest)}
    return pd.DataFrame.from_dict(found, orient="index").rename_axis(id_col)


def _error(y: ArrayLike, forecast: ArrayLike) -> Array:
    error: Array = np.asarray(y, np.float64) - np.asarray(forecast, np.float64)
    return error


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
