"""Pretrained weights, adapted to the seasons, covariates and quantiles of the series at hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from eattn.timeseries.features import (
    PLAIN_RULES,
    SEASON_FEATURES,
    SEASON_RULES,
    STEP_FEATURES,
    TOKEN_FEATURES,
)

NAMES = ("small",)
FOLDER = Path(__file__).with_name("weights")
SEASONS = 2  # that pretrained weights read
LEVELS = tuple(n / 10 for n in range(1, 10))  # of their quantiles


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Weights of a `QuantileForecaster` for two seasons, and the design of its encoder."""

    design: Mapping[str, Any]
    weights: Mapping[str, Tensor]


def load_pretrained(name: str) -> Pretrained:
    """Read the weights of this name from the package, or else from a file of this path."""
    path = FOLDER / f"{name}.safetensors" if name in NAMES else Path(name)
    if not path.is_file():
        known = ", ".join(map(repr, NAMES))
        raise ValueError(f"pretrained must be one of {known}, a file or None, got {name!r}")
    with safetensors.safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
        if "design" not in about:
            raise ValueError(f"{path} has no pretrained weights of EAForecaster")
        design = json.loads(about["design"])
        weights = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118
    return Pretrained(design, weights)


def adapt(
    weights: Mapping[str, Tensor],
    *,
    seasons: int,
    tokens: int,
    features: int,
    levels: Sequence[float] = LEVELS,
) -> dict[str, Tensor]:
    """Return the weights of a model with other inputs and outputs.

    Inputs and outputs of missing seasons are left out. Those of further seasons, and of `tokens`
    and `features` that pretraining does not know, such as covariates, are zero, so they change
    nothing before training. Further quantiles continue the distribution of the others.
    """
    token = [*range(TOKEN_FEATURES), *_seasons(SEASON_FEATURES, seasons, TOKEN_FEATURES)]
    rules = _seasons(len(SEASON_RULES), seasons, 0)
    rules += _after(len(SEASON_RULES) * SEASONS, len(PLAIN_RULES))
    count = len(SEASON_RULES) * SEASONS + len(PLAIN_RULES)
    step = rules + _after(count, STEP_FEATURES)
    below = [sum(known <= level for known in LEVELS) - 1 for level in levels[:-1]]
    gaps = [count + 2 + min(max(gap, 0), len(LEVELS) - 2) for gap in below]
    outputs = [*rules, *_after(count, 2), *gaps]
    return dict(weights) | {
        "embed.weight": _take(weights["embed.weight"], token, 1, tokens),
        "from_step.weight": _take(weights["from_step.weight"], step, 1, len(rules) + features),
        "head.weight": _take(weights["head.weight"], outputs, 0),
        "direct.weight": _take(weights["direct.weight"], outputs, 0),
    }


def _seasons(size: int, seasons: int, start: int) -> list[int]:
    """Return the indices of `size` entries per season, and -1 for seasons that are not known."""
    known = _after(start, size * min(seasons, SEASONS))
    return known + [-1] * (size * max(seasons - SEASONS, 0))


def _after(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def _take(x: Tensor, index: Sequence[int], dim: int, size: int | None = None) -> Tensor:
    """Return entries of x along `dim`, with zeros at -1 and after the last up to `size`."""
    index = [*index, *[-1] * ((size or 0) - len(index))]
    at = torch.tensor(index, device=x.device)
    shape = [-1 if axis == dim else 1 for axis in range(x.dim())]
    return x.index_select(dim, at.clamp(min=0)) * (at >= 0).to(x.dtype).view(shape)
