"""From windows to a trained forecaster: its design, the run, and the errors that are left."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn.models import Forecaster
from eattn.timeseries.dataset import Material
from eattn.timeseries.settings import seed_of
from eattn.timeseries.windows import errors, rollout_loss
from eattn.train import History, Task, TrainConfig, isolated, train

STEPS = 500  # of training, where `epochs` is left to us
EVERY = 25  # steps between two looks at what was held out
JUDGED = 256  # windows to look at then
CALIBRATED = 2048  # windows for quantiles


def design_of(params: dict[str, Any], material: Material) -> dict[str, Any]:
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
    names = ("batch_size", "lr", "weight_decay", "patience", "device", "checkpoint")
    return TrainConfig(
        **{name: params[name] for name in names},
        **length,
        schedule="cosine",
        warmup=0.1,
        precision="float32",
        seed=seed_of(params["random_state"]),
    )


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
    task = Task(
        cases,
        lambda model, batch: rollout_loss(model, batch, horizon),
        **judge,
        data=material.digest(),
    )
    return model, train(model, task, config, progress=progress)


def calibration(model: Forecaster, material: Material) -> NDArray[np.float64]:
    """Errors on windows that were held out, in units of the scale -> [windows, horizon]."""
    cases = material.held_out(CALIBRATED)
    if not len(cases):
        return np.empty((0, material.horizon))
    found: NDArray[np.float64] = errors(model, cases).squeeze(-1).double().numpy()
    return found
