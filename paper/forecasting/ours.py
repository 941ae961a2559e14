"""EAForecaster as the study uses it: parameters as text, data frames in, arrays out."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.timeseries import EAForecaster
from paper.forecasting.plan import FINE_TUNED, OURS

Array = NDArray[np.float64]
LEVELS = tuple(n / 10 for n in range(1, 10))
FINETUNE_STEPS = 200
COLUMNS = [f"{OURS}-q{100 * level:g}" for level in LEVELS]


def forecaster(
    horizon: int, options: Iterable[str] | None = (), *, model: str = OURS, **given: Any
) -> EAForecaster:
    """Return a forecaster of the quantiles 0.1 to 0.9; `options` are texts such as lr=1e-3."""
    values: dict[str, Any] = {"horizon": horizon, "quantiles": LEVELS}
    values["pretrained"] = None if model == OURS else "small"
    values["finetune_steps"] = FINETUNE_STEPS if model == FINE_TUNED else 0
    return EAForecaster(**values | given | parsed(options or ()))


def parsed(options: Iterable[str]) -> dict[str, Any]:
    """Return texts such as lr=1e-3 as keyword arguments.

    >>> parsed(["lr=1e-3", "mixer=sa", "lower=None"])
    {'lr': 0.001, 'mixer': 'sa', 'lower': None}
    """
    found = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise ValueError(f"options must be NAME=VALUE, got {option!r}")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):  # a word
            found[name] = text
    return found


def long_frame(
    times: Sequence[Any],
    values: Sequence[Array],
    covariates: Mapping[str, Sequence[Any]] | None = None,
) -> pd.DataFrame:
    """Return series as one data frame, with their numbers as `unique_id`."""
    lengths = list(map(len, values))
    columns: dict[str, Any] = {
        "unique_id": np.repeat(np.arange(len(values)), lengths),
        "ds": pd.concat([pd.Series(part) for part in times], ignore_index=True),
        "y": np.concatenate(values),
    }
    columns |= {name: np.concatenate(parts) for name, parts in (covariates or {}).items()}
    return pd.DataFrame(columns)


def quantiles(forecast: pd.DataFrame, horizon: int) -> Array:
    """Return the quantiles of a forecast as an array, [series, levels, horizon]."""
    ordered = forecast.sort_values(["unique_id", "ds"], kind="stable")
    values: Array = ordered[COLUMNS].to_numpy(np.float64)
    return values.reshape(-1, horizon, len(LEVELS)).swapaxes(1, 2)
