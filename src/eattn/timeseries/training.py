"""From series to a trained forecaster: what is learnt from, what is held out, and how."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eattn.models import Forecaster
from eattn.nn import calendar_fields
from eattn.timeseries.grid import Record
from eattn.timeseries.scaling import Scale, carried_forward
from eattn.timeseries.settings import seed_of
from eattn.timeseries.steps import varying_fields
from eattn.timeseries.windows import WindowCases, errors, rollout_loss
from eattn.train import History, Task, TrainConfig, isolated, train

CONTEXT = 512  # values of a past to learn from, where neither `window` nor `context` says how many
STEPS = 500  # of training, where `epochs` is left to us
EVERY = 25  # steps between two looks at what was held out
JUDGED = 256  # windows to look at then
CALIBRATED = 2048  # windows for quantiles
HORIZONS = 50  # held out at the most: the latest values are needed to learn from


def design_of(params: dict[str, Any], material: "Material") -> dict[str, Any]:
    """The arguments of `Forecaster` that an estimator's make."""
    shape = {name: params[name] for name in ("mixer", "dim", "depth", "heads", "dropout")}
    places = material.window + material.horizon
    return shape | {
        "channels": min(params["lags"], material.window),
        "calendar": list(material.fields) or None,
        "residual": True,
        "max_len": places if params["mixer"] == "aft" else None,
    }


def config_of(params: dict[str, Any]) -> TrainConfig:
    """The run that an estimator's arguments make."""
    length: dict[str, Any] = dict(epochs=None, max_steps=STEPS, evaluate_every=EVERY)
    if params["epochs"] is not None:
        length = dict(epochs=params["epochs"])
    names = ("batch_size", "lr", "weight_decay", "patience", "device")
    return TrainConfig(
        **{name: params[name] for name in names},
        **length,
        schedule="cosine",
        warmup=0.1,
        precision="float32",
        seed=seed_of(params["random_state"]),
    )


def check_length(record: Record, window: int | None, horizon: int) -> None:
    """That a series is long enough for a window."""
    if window is not None and len(record) < window + horizon:
        also = f" and horizon = {horizon} need {window + horizon}" if horizon else " needs as many"
        raise ValueError(
            f"series {record.name!r} has {len(record)} values, window = {window}{also}"
        )


class Material:
    """Scaled series one after another, cut into windows to learn from and windows held out.

    A window reads `window` values; with `padded`, fewer where a series has only just begun.
    """

    context: int | None = None  # of `StateMemory`

    def __init__(
        self,
        records: Sequence[Record],
        fields: tuple[str, ...],
        *,
        window: int,
        padded: bool,
        horizon: int,
        fraction: float,
    ) -> None:
        self.fields, self.window, self.horizon = fields, window, horizon
        self.padding = window if padded else 0
        self.least = 1 if padded else window  # past values of a window
        self.held = [self._held(len(record), fraction) for record in records]
        self.scales = [
            Scale.of(record.values[: len(record) - held])
            for record, held in zip(records, self.held, strict=True)
        ]
        parts = [self._columns(r, s, fields) for r, s in zip(records, self.scales, strict=True)]
        x, known, real, *calendar = (np.concatenate(c) for c in zip(*parts, strict=True))
        self.x = torch.from_numpy(x).float().unsqueeze(1)
        self.known, self.real = torch.from_numpy(known), torch.from_numpy(real)
        self.calendar = torch.from_numpy(calendar[0]) if calendar else None
        self.lengths = [len(record) for record in records]

    @classmethod
    def of(cls, records: Sequence[Record], params: dict[str, Any]) -> "Material":
        """What an estimator's arguments make of these series."""
        window, context, horizon = params["window"], params["context"], params["horizon"]
        for record in records:
            check_length(record, window, horizon)
        longest = max(map(len, records))
        material = cls(
            records,
            varying_fields(record.times for record in records),
            window=window or max(1, min(context or CONTEXT, longest - horizon)),
            padded=window is None,
            horizon=horizon,
            fraction=params["validation_fraction"],
        )
        # States of twice what there is to learn from are not too far beyond it.
        material.context = context and min(context, 2 * longest)
        return material

    def _held(self, length: int, fraction: float) -> int:
        """How many of the last values are not learnt from; none where that would leave nothing."""
        held = min(max(int(fraction * length), self.horizon), HORIZONS * self.horizon)
        enough = length - held >= self.least + self.horizon
        return held if fraction and enough else 0

    def _columns(
        self, record: Record, scale: Scale, fields: tuple[str, ...]
    ) -> tuple[NDArray[Any], ...]:
        """Values, whether they are known and real, and their calendar, with padding in front."""
        x = scale.apply(record.values)
        known = ~np.isnan(x)
        columns = [carried_forward(x, x[0]), known, np.ones_like(known)]
        if fields:
            columns.append(calendar_fields(record.times.to_numpy(), fields).numpy())
        padded = [np.concatenate([c[:1].repeat(self.padding, 0), c]) for c in columns]
        for mask in padded[1:3]:
            mask[: self.padding] = False
        return tuple(padded)

    def _cases(self, origins: Sequence[range], vary: int | None, limit: int | None) -> WindowCases:
        """Windows whose first values to foretell are these of each series."""
        starts, offset = [], 0
        for length, span in zip(self.lengths, origins, strict=True):
            starts.append(offset + self.padding - self.window + np.array(span, dtype=np.int64))
            offset += self.padding + length
        chosen = np.concatenate(starts)
        ahead = chosen[:, None] + self.window + np.arange(self.horizon)
        chosen = chosen[self.known.numpy()[ahead].any(1)]
        if limit is not None and len(chosen) > limit:
            chosen = chosen[np.linspace(0, len(chosen) - 1, limit).round().astype(np.int64)]
        real = self.real if self.padding else None
        return WindowCases(
            self.x,
            self.calendar,
            chosen,
            self.window,
            self.horizon,
            real=real,
            known=self.known,
            vary=vary,
        )

    def learnt(self, seed: int) -> WindowCases:
        """All windows that lie before what is held out."""
        spans = [
            range(self.least, length - held - self.horizon + 1)
            for length, held in zip(self.lengths, self.held, strict=True)
        ]
        return self._cases(spans, seed if self.padding else None, None)

    def held_out(self, limit: int) -> WindowCases:
        """Windows whose values to foretell are all held out, evenly spread."""
        spans = [
            range(length - held, length - self.horizon + 1 if held else 0)
            for length, held in zip(self.lengths, self.held, strict=True)
        ]
        return self._cases(spans, None, limit)


def learn(
    material: Material, design: dict[str, Any], config: TrainConfig, *, progress: bool
) -> tuple[Forecaster, History]:
    """A forecaster of this design, trained; the best on what is held out, if anything is."""
    cases, judged = material.learnt(config.seed), material.held_out(JUDGED)
    if not len(cases):
        needed = material.least + material.horizon
        raise ValueError(
            f"the longest series has {max(material.lengths)} values, too few to learn from:"
            f" horizon = {material.horizon} needs {needed} known ones"
        )
    with isolated(config.seed):
        model = Forecaster(**design)

    def evaluate(model: Any) -> dict[str, float]:
        return {"val_mae": float(errors(model, judged).abs().nanmean())}

    judge: dict[str, Any] = dict(evaluate=evaluate, metric="val_mae", better="lower")
    if not len(judged):
        judge, config = {}, replace(config, patience=None)
    horizon = material.horizon
    task = Task(cases, lambda model, batch: rollout_loss(model, batch, horizon), **judge)
    return model, train(model, task, config, progress=progress)


def calibration(model: Forecaster, material: Material) -> NDArray[np.float64]:
    """Errors on windows that were held out, in units of the scale -> [windows, horizon]."""
    cases = material.held_out(CALIBRATED)
    if not len(cases):
        return np.empty((0, material.horizon))
    found: NDArray[np.float64] = errors(model, cases).squeeze(-1).double().numpy()
    return found
