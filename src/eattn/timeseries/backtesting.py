"""Backtests: forecasts from earlier points of a series and their errors."""

import numpy as np
import pandas as pd

from eattn.timeseries.inputs import ID, VALUE, TimeSeries
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.scaling import Scaler


def replay(
    predictor: Predictor,
    series: TimeSeries,
    scaler: Scaler,
    *,
    windows: int,
    step: int,
    horizon: int,
) -> list[SeriesState]:
    """Return the states at `windows` cutoffs that are `step` values apart.

    The last cutoff is `horizon` values before the end. Each state continues from the previous one,
    so that every value is read once.
    """
    cutoffs = [len(series) - horizon - step * i for i in reversed(range(windows))]
    min_past = predictor.window or 1
    if cutoffs[0] < min_past:
        raise ValueError(
            f"series {series.unique_id!r} has {len(series)} values, but {windows} windows of"
            f" horizon {horizon} and step {step} need {len(series) - cutoffs[0] + min_past}"
        )
    assert series.ds is not None
    states = [predictor.start(series, scaler, cutoffs[0])]
    for cutoff in cutoffs[1:]:
        new = slice(cutoff - step, cutoff)
        states.append(predictor.advance(states[-1], series.ds[new], series.y[new]))
    return states


def scores(backtest: pd.DataFrame, column: str = "EAForecaster") -> pd.DataFrame:
    """Compute the MAE and RMSE of each series and of all series together.

    Parameters
    ----------
    backtest : DataFrame
        Result of `EAForecaster.backtest`, with columns unique_id, y and the forecasts. Missing
        values of y are ignored.
    column : str, default "EAForecaster"
        Name of the forecast column.

    Returns
    -------
    DataFrame
        Columns MAE and RMSE; one row per series and a row "all".
    """
    error = backtest[column] - backtest[VALUE]

    def row(error: pd.Series) -> dict[str, float]:
        return {"MAE": error.abs().mean(), "RMSE": float(np.sqrt(error.pow(2).mean()))}

    groups = error.groupby(backtest[ID], sort=False, observed=True)
    found = {name: row(group) for name, group in groups} | {"all": row(error)}
    return pd.DataFrame.from_dict(found, orient="index").rename_axis(ID)
