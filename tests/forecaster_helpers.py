"""Series, small forecasters, and predictors with random weights, which need no training."""

import numpy as np
import pandas as pd
import torch
from pandas.testing import assert_frame_equal

from eattn.models import QuantileForecaster
from eattn.timeseries import EAForecaster
from eattn.timeseries.calendar import varying_fields
from eattn.timeseries.calibration import Calibration, all_levels
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.features import STEP_FEATURES, rule_names
from eattn.timeseries.fitting import make_table
from eattn.timeseries.inputs import Columns, TimeSeries, read_series, regularize
from eattn.timeseries.predictor import Predictor

NAME = "EAForecaster"
TINY = dict(pretrained=None, horizon=3, dim=8, depth=1, heads=2, epochs=2, batch_size=16, lr=0.02)
LEVELS = all_levels(())


def tiny(**changes) -> EAForecaster:
    return EAForecaster(**TINY | changes)


def wave(length: int, seed: int = 0, noise: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sin(np.arange(length) / 2 + seed) + noise * rng.normal(size=length)


def long(lengths: dict, freq: str = "h", start: str = "2024-01-01") -> pd.DataFrame:
    """Return series of these lengths, each with its own level and deviation."""
    parts = [
        pd.DataFrame(
            {
                "unique_id": name,
                "ds": pd.date_range(start, periods=length, freq=freq),
                "y": 10.0 * number + (number + 1) * wave(length, number),
            }
        )
        for number, (name, length) in enumerate(lengths.items())
    ]
    return pd.concat(parts, ignore_index=True)


def same(a: pd.DataFrame, b: pd.DataFrame, tolerance: float = 1e-9) -> None:
    assert_frame_equal(a.reset_index(drop=True), b.reset_index(drop=True), rtol=0, atol=tolerance)


def read(data, columns: Columns | None = None, freq=None) -> list[TimeSeries]:
    """Return the series of a frame, array or list with a row for every step."""
    return regularize(read_series(data, columns), freq)


def randomize(model: QuantileForecaster, std: float = 0.3) -> QuantileForecaster:
    """Set the weights of the outputs, which are zero before training."""
    torch.manual_seed(1)
    for layer in (model.head, model.direct):
        torch.nn.init.normal_(layer.weight, std=std)
    return model.eval()


def random_predictor(
    series: list[TimeSeries],
    *,
    horizon: int = 5,
    seasons: tuple[int, ...] = (4,),
    columns: Columns | None = None,
    dtype: torch.dtype = torch.float64,
    **options,
) -> Predictor:
    """Return a predictor for these series, with random weights."""
    fields = varying_fields(s.ds for s in series)
    covariates = Covariates.fit(series, columns or Columns())
    table = make_table(series, fields, covariates, seasons=seasons, horizon=horizon)
    torch.manual_seed(0)
    model = QuantileForecaster(
        table.tokens.shape[1],
        len(rule_names(seasons)),
        STEP_FEATURES + table.known.shape[1],
        STEP_FEATURES,
        LEVELS,
        **dict(dim=8, depth=2, heads=2, norm="pre", short_conv=4, mixer="ea-6+decay") | options,
    )
    model = randomize(model).to(dtype)
    return Predictor(model, fields, seasons, Calibration(LEVELS, horizon), covariates)
