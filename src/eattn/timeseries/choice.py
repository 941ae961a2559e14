"""Choose between the trained model and simple forecasts for each series, on validation windows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from eattn.models import QuantileForecaster
from eattn.timeseries.calibration import Calibration
from eattn.timeseries.features import PLAIN_RULES, rule_names
from eattn.timeseries.inputs import ID
from eattn.timeseries.windows import ForecastWindows
from eattn.train import move

Array = NDArray[np.float64]
NAMES = {"last": "naive", "drift": "drift"}  # of simple forecasts, by rule
NORMAL_MEAN = 1.2533  # standard deviation of a normal distribution by its mean deviation
SMALLEST = 1e-3  # standard deviation, in scales
MARGIN = 0.97  # a simple forecast must be better than the model by this factor
PRIOR = 4.0  # windows of a series as many as which all series count


@dataclass(frozen=True)
class Candidate:
    """The model (rule None) or a simple forecast, and the factors of its quantiles."""

    name: str
    rule: int | None
    factors: Array


@dataclass(frozen=True)
class Choice:
    """Candidates, the index of the best one for each series, and their mean losses."""

    candidates: tuple[Candidate, ...]
    best: NDArray[np.int64]  # [series]; 0 is the model
    losses: Array  # [series, candidates], NaN without validation windows


def fit_report(
    chosen: Mapping[Any, int], candidates: Sequence[Candidate], losses: Array
) -> pd.DataFrame:
    """Return the choice for each series by its unique_id, and the losses of all candidates."""
    names = [candidate.name for candidate in candidates]
    report = pd.DataFrame(losses, columns=names)
    report.insert(0, ID, list(chosen))
    report.insert(1, "choice", [names[i] for i in chosen.values()])
    return report


def rule_quantiles(
    rules: Array, rule: int, move: Array, steps: NDArray[np.int64], model: QuantileForecaster
) -> Array:
    """Return normal quantiles [..., H, levels] around a simple forecast, in scales.

    The standard deviation is one scale for the last season; for the last value and drift it is that
    of a random walk with steps of the size `move` [...].
    """
    width = np.ones(1)
    if is_walk(rule, rules.shape[-1]):
        width = np.maximum(NORMAL_MEAN * move, SMALLEST)[..., None] * np.sqrt(steps)
    result: Array = rules[..., rule, None] + width[..., None] * normal_levels(model)
    return result


def is_walk(rule: int | None, rules: int) -> bool:
    """Return whether a simple forecast, the last value or drift, assumes a random walk."""
    return rule is not None and rule >= rules - len(PLAIN_RULES)


def normal_levels(model: QuantileForecaster) -> Array:
    """Return the quantiles of the standard normal distribution at the levels of a model."""
    normal = np.concatenate([[0.0], np.cumsum(model.gaps.cpu().double().numpy())])
    result: Array = normal - normal[model.below]
    return result


@torch.no_grad()
def choose(
    model: QuantileForecaster,
    windows: ForecastWindows,
    calibration: Calibration,
    count: int,
    *,
    name: str,
) -> Choice:
    """Compare the model, called `name`, and simple forecasts on the windows of `count` series."""
    seasons = windows.table.seasons
    names = rule_names(seasons)
    simple = {"seasonal naive": 0} if seasons else {}
    simple |= {NAMES[rule]: names.index(rule) for rule in PLAIN_RULES if rule in NAMES}
    device = next(model.parameters()).device
    empty = (0, windows.table.horizon)
    found: dict[str | None, list[Array]] = {None: [np.empty((*empty, len(model.levels)))]}
    found |= {name: [np.empty((*empty, len(model.levels)))] for name in simple}
    steps = np.arange(1, windows.table.horizon + 1)
    values = [np.empty(empty)]
    for each in windows:
        batch = move(each, device)
        inputs = (batch[name] for name in ("tokens", "origins", "rules", "features"))
        found[None].append(model(*inputs)[batch["given"]].double().cpu().numpy())
        simply = {name: each[name][each["given"]] for name in ("rules", "move", "counts", "y")}
        rules, move_size = simply["rules"].double().numpy(), simply["move"].double().numpy()
        for simple_name, rule in simple.items():
            found[simple_name].append(rule_quantiles(rules, rule, move_size, steps, model))
        values.append(np.where(simply["counts"], simply["y"].double(), np.nan))
    y = np.concatenate(values)
    candidates, losses = [], []
    for which, parts in found.items():
        q = np.concatenate(parts)
        factors = calibration.fit(q, y)
        error = y[..., None] - calibration.apply(factors, q)
        level = np.array(model.levels)
        loss = np.maximum(level * error, (level - 1) * error).mean(-1)
        with np.errstate(invalid="ignore"):
            known = np.isfinite(loss)
            losses.append(np.where(known, loss, 0).sum(1) / known.sum(1))
        candidates.append(
            Candidate(which or name, None if which is None else simple[which], factors)
        )
    table = np.full((count, len(candidates)), np.nan)
    for number in np.unique(windows.numbers):
        own = np.stack([loss[windows.numbers == number] for loss in losses], -1)
        table[number] = np.nanmean(own, 0) if np.isfinite(own).any() else np.nan
    return Choice(tuple(candidates), best_candidates(table, _independent(windows, count)), table)


def _independent(windows: ForecastWindows, count: int) -> Array:
    """Return the number of validation windows of each series that do not overlap."""
    found = np.zeros(count)
    for number in np.unique(windows.numbers):
        own = windows.origins[windows.numbers == number]
        found[number] = 1 + np.ptp(own) / windows.table.horizon
    return found


def best_candidates(losses: Array, windows: Array) -> NDArray[np.int64]:
    """Return the best candidate of each series; the model where nothing is known.

    Few windows of a series say little, so the mean losses of all series count as well, like PRIOR
    windows.
    """
    found = np.zeros(len(losses), np.int64)
    known = np.isfinite(losses).all(1)
    if known.any():
        own, count = np.maximum(losses[known], 1e-9), windows[known, None]
        logs = count * np.log(own) + PRIOR * np.log(own.mean(0))
        logs[:, 0] += (count[:, 0] + PRIOR) * np.log(MARGIN)
        found[known] = logs.argmin(1)
    return found
