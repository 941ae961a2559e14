"""Graph of a fitted `EAForecaster`: one more row of each series in, calibrated quantiles out.

The graph holds everything from raw values to quantiles in their units, so that a stream in any
language feeds numbers only. The encoder runs in float32, everything around it in float64.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eattn.export.graph import BATCH, Graph, Port
from eattn.export.layers import Named, Stateful, longest
from eattn.export.tracking import Track, empty, follow, look_ahead, read_tokens
from eattn.models import QuantileForecaster
from eattn.timeseries.choice import NORMAL_MEAN, SMALLEST, is_walk, normal_levels
from eattn.timeseries.features import step_features
from eattn.timeseries.tracking import MOVE, SCALE, VALUE

TRACK = "track."


def sequence(model: QuantileForecaster, fitted: Any) -> Graph:
    """Raise: the step reads a history, too."""
    raise ValueError(
        "an EAForecaster has no graph for whole sequences; export its step, which also reads a"
        " history, row by row"
    )


def step(model: QuantileForecaster, fitted: Any) -> Graph:
    """Return the graph from one more row of each series to the quantiles of the steps ahead."""
    module = _Step(model, fitted)
    covariates, horizon, levels = fitted.predictor_.covariates, module.horizon, len(model.levels)
    ahead = model.from_step.in_features - model.rules - model.plain
    row = ahead + covariates.hist_width
    inputs = [
        Port("y", torch.float64, (BATCH,)),
        Port("lower", torch.float64, (BATCH,)),
        Port("choice", torch.int64, (BATCH,), between=(0, len(fitted.candidates_) - 1)),
    ]
    if row:
        inputs.append(Port("row", torch.float32, (BATCH, row)))
    if ahead:
        inputs.append(Port("ahead", torch.float32, (BATCH, horizon, ahead)))
    output = Port("quantiles", torch.float64, (BATCH, horizon, levels))
    return module.graph("step", tuple(inputs), output, longest(model))


class _Step(Stateful):
    """Follow, read and forecast; leading missing values of a series are skipped."""

    factors: Tensor  # [candidates, H, levels]
    rules: Tensor  # [candidates], indices
    walks: Tensor  # [candidates], whether a simple forecast assumes a random walk
    normal: Tensor  # [levels], quantiles of the standard normal distribution
    roots: Tensor  # [H], square roots of the steps
    features: Tensor  # [H, features]
    inner: Tensor  # [levels, levels], 1 if level j lies between level i and the median
    side: Tensor  # [levels], -1 below the median and 1 above

    def __init__(self, model: QuantileForecaster, fitted: Any) -> None:
        predictor, candidates = fitted.predictor_, fitted.candidates_
        start = empty(predictor.seasons)._asdict()
        own = {TRACK + n: x for n, x in start.items() if n != "steps"}
        super().__init__(model, model.encoder.blocks, own)
        self.seasons, self.horizon = predictor.seasons, predictor.horizon
        steps, below, levels = np.arange(1, self.horizon + 1), model.below, len(model.levels)
        factors = np.stack([predictor.calibration.mix @ each.factors for each in candidates])
        rules = [0 if each.rule is None else each.rule for each in candidates]
        place = np.arange(levels) - below
        side, distance = np.sign(place), np.abs(place)
        inner = (distance <= distance[:, None]) & (side == side[:, None])
        for name, table in {
            "factors": np.exp(factors),
            "rules": np.array(rules),
            "walks": np.array([is_walk(each.rule, model.rules) for each in candidates]),
            "normal": normal_levels(model),
            "roots": np.sqrt(steps),
            "features": step_features(steps),
            "inner": inner.astype(np.float64),
            "side": side.astype(np.float64),
        }.items():
            self.register_buffer(name, torch.from_numpy(table))

    def forward(
        self,
        y: Tensor,
        state: Named,
        lower: Tensor,
        choice: Tensor,
        row: Tensor | None = None,
        ahead: Tensor | None = None,
    ) -> tuple[Tensor, Named]:
        own = {n.removeprefix(TRACK): x for n, x in state.items() if n.startswith(TRACK)}
        track = follow(y, Track(**own, steps=state["seen"]), self.seasons)
        token = read_tokens(track, self.seasons)
        token = token if row is None else torch.cat([token, row], 1)
        output, encoder = self.model.step(token, self.take(state))
        scaled = self._scaled(output, track, choice, ahead)
        last = track.rows[:, -1:].unsqueeze(1)
        quantiles = last[..., VALUE] + last[..., SCALE] * scaled
        bound, below = lower[:, None, None], self.model.below
        shift = (bound - quantiles[..., below : below + 1]).clamp(min=0)
        quantiles = torch.maximum(quantiles + shift, bound)

        own = {TRACK + n: x for n, x in track._asdict().items()} | {"seen": track.steps}
        after, unstarted = self.name(encoder.layers, own), (state["seen"] == 0) & y.isnan()
        after = {n: torch.where(_like(unstarted, x), state[n], x) for n, x in after.items()}
        return torch.where(_like(unstarted, quantiles), torch.nan, quantiles), after

    def _scaled(self, output: Tensor, track: Track, choice: Tensor, ahead: Tensor | None) -> Tensor:
        """Return the calibrated quantiles as differences from the last value in scales."""
        rules = look_ahead(track, self.horizon, self.seasons)
        features = self.features.expand(rules.shape[0], -1, -1)
        features = features if ahead is None else torch.cat([features, ahead], -1)
        learned: Tensor = self.model.quantiles(output, rules, features).double()
        index = self.rules[choice].view(-1, 1, 1).expand(-1, self.horizon, 1)
        move = track.rows[:, -1, MOVE] / track.rows[:, -1, SCALE]
        walk = (NORMAL_MEAN * move).clamp(min=SMALLEST).unsqueeze(1) * self.roots
        width = torch.where(self.walks[choice].unsqueeze(1), walk, 1.0)
        simple = rules.double().gather(2, index) + width.unsqueeze(2) * self.normal
        raw = torch.where(_like(choice == 0, learned), learned, simple)
        median = raw[..., self.model.below : self.model.below + 1]
        apart = (raw - median).abs() * self.factors[choice]
        # A level is at least as far from the median as those between, so quantiles do not cross.
        return median + self.side * (self.inner * apart.unsqueeze(-2)).amax(-1)


def _like(flags: Tensor, x: Tensor) -> Tensor:
    """Return flags [B] with as many axes as x."""
    return flags.view(-1, *[1] * (x.dim() - 1))
