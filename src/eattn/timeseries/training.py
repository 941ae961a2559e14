"""Train the models of both estimators from their parameters and data."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn.models import Forecaster, SequenceClassifier
from eattn.timeseries.arrays import pad, validation_samples
from eattn.timeseries.predictor import read, roll_out
from eattn.timeseries.windows import WindowBatch, WindowDataset
from eattn.train import History, ListDataset, Processes, Task, TrainConfig, isolated, move, train

CLASSIFIER_EPOCHS, CLASSIFIER_STEPS = 60, 600  # minimum, unless `epochs` is set
FORECASTER_STEPS = 500  # unless `epochs` is set
EVALUATE_EVERY = 25  # steps between evaluations, unless `epochs` is set
VALIDATION_WINDOWS = 256  # windows per evaluation
CALIBRATION_WINDOWS = 2048  # windows that quantiles are computed from
BATCH_SIZE = 64  # batch size of evaluation and prediction


def seed_of(random_state: Any) -> int:
    """Return the seed for `random_state`: an int itself, or one drawn on rank 0 for all ranks."""
    if random_state is None:
        drawn = int(np.random.SeedSequence().generate_state(1)[0])
        return int(Processes.current().broadcast(drawn))
    if isinstance(random_state, np.random.RandomState):
        return int(Processes.current().broadcast(int(random_state.randint(2**31))))
    if isinstance(random_state, bool) or not isinstance(random_state, int):
        kind = type(random_state).__name__
        raise TypeError(f"random_state must be an int, a RandomState or None, got {kind}")
    return random_state


def _digest(tensors: Iterable[Tensor]) -> str:
    """Hash the data, so that a run is resumed only with the same data."""
    found = hashlib.sha256()
    for x in tensors:
        found.update(f"{x.dtype} {list(x.shape)}".encode())
        found.update(x.contiguous().numpy().data)
    return found.hexdigest()[:16]


# ---- classifier ----

Labelled = tuple[Tensor, int]  # a series [length, channels] and the index of its class


def classifier_config(params: Mapping[str, Any], samples: int) -> TrainConfig:
    """Return the training configuration for this many samples."""
    names = ("batch_size", "optimizer", "lr", "weight_decay", "schedule", "clip", "patience")
    epochs = params["epochs"]
    config = TrainConfig(
        **{name: params[name] for name in (*names, "device", "checkpoint")},
        epochs=CLASSIFIER_EPOCHS if epochs is None else epochs,
        seed=seed_of(params["random_state"]),
    )
    if epochs is None:  # an epoch of few samples has few steps
        per_epoch = -(-samples // config.batch_size)
        config = replace(config, epochs=max(CLASSIFIER_EPOCHS, -(-CLASSIFIER_STEPS // per_epoch)))
    return config


def train_classifier(
    series: Sequence[Tensor],
    y: NDArray[np.int64],
    design: Mapping[str, Any],
    config: TrainConfig,
    *,
    validation_fraction: float,
    class_weight: NDArray[np.float64] | None,
    progress: bool,
) -> tuple[SequenceClassifier, History]:
    """Train a `SequenceClassifier(**design)` and keep its best weights on validation samples.

    The loss of each sample, in both parts, is multiplied by the `class_weight` of its class.
    """
    samples = list(zip(series, y.tolist(), strict=True))
    chosen = set(validation_samples(y, validation_fraction, seed=config.seed).tolist())
    validation = [samples[i] for i in sorted(chosen)]
    training = [sample for i, sample in enumerate(samples) if i not in chosen]
    with isolated(config.seed):
        model = SequenceClassifier(**design)
    weight = None if class_weight is None else torch.from_numpy(class_weight).float()

    def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
        if weight is None:
            return F.cross_entropy(logits, label)
        # The weighted mean of F.cross_entropy would ignore the weights in a batch of one class.
        return (F.cross_entropy(logits, label, reduction="none") * weight.to(logits)[label]).mean()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor | None, Tensor]) -> Tensor:
        x, key_mask, label = batch
        return cross_entropy(model(x, key_mask=key_mask), label)

    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = torch.cat([x.float().cpu() for x in logits_of(model, [x for x, _ in validation])])
        label = torch.tensor([label for _, label in validation])
        right = logits.argmax(-1) == label
        val_loss = cross_entropy(logits, label).item()
        return {"val_loss": val_loss, "val_accuracy": right.double().mean().item()}

    data = _digest([*series, torch.from_numpy(y), *([] if weight is None else [weight])])
    task = Task(ListDataset(training, _collate), loss, data=data)
    if validation:
        task = replace(task, evaluate=evaluate, metric="val_loss", better="lower")
    else:
        config = replace(config, patience=None)
    return model, train(model, task, config, progress=progress)


def logits_of(model: nn.Module, series: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the logits [samples, classes] of series [length, channels], in batches."""
    device = next(model.parameters()).device
    for start in range(0, len(series), BATCH_SIZE):
        x, key_mask = move(pad(series[start : start + BATCH_SIZE]), device)
        yield model(x, key_mask=key_mask)


def _collate(samples: Sequence[Labelled]) -> tuple[Tensor, Tensor | None, Tensor]:
    x, key_mask = pad([x for x, _ in samples])
    return x, key_mask, torch.tensor([label for _, label in samples])


# ---- forecaster ----


def forecaster_config(params: Mapping[str, Any]) -> TrainConfig:
    """Return the training configuration."""
    length: dict[str, Any] = dict(epochs=params["epochs"])
    if params["epochs"] is None:
        length |= dict(max_steps=FORECASTER_STEPS, evaluate_every=EVALUATE_EVERY)
    names = ("batch_size", "lr", "weight_decay", "patience", "device", "checkpoint")
    return TrainConfig(
        **{name: params[name] for name in names},
        **length,
        schedule="cosine",
        warmup=0.1,
        precision="float32",
        seed=seed_of(params["random_state"]),
    )


def forecaster_design(params: Mapping[str, Any], dataset: WindowDataset) -> dict[str, Any]:
    """Return the arguments of `Forecaster`."""
    names = ("mixer", "dim", "depth", "heads", "dropout")
    longest = dataset.window + dataset.horizon
    return {name: params[name] for name in names} | {
        "channels": min(params["lags"], dataset.window),
        "calendar": list(dataset.fields) or None,
        "residual": True,
        "max_len": longest if params["mixer"] == "aft" else None,
    }


def train_forecaster(
    dataset: WindowDataset, design: Mapping[str, Any], config: TrainConfig, *, progress: bool
) -> tuple[Forecaster, History]:
    """Train a `Forecaster(**design)` and keep the best weights on the validation windows."""
    windows, validation = dataset.train(config.seed), dataset.validation(VALIDATION_WINDOWS)
    horizon = dataset.horizon
    if not len(windows):
        raise ValueError(
            f"the longest series has {max(dataset.lengths)} values, but training with"
            f" horizon={horizon} needs at least {dataset.min_past + horizon} known values"
        )
    with isolated(config.seed):
        model = Forecaster(**design)

    def evaluate(model: Any) -> dict[str, float]:
        return {"val_mae": float(np.nanmean(np.abs(forecast_errors(model, validation))))}

    task = Task(
        windows,
        lambda model, batch: rollout_loss(model, batch, horizon),
        data=_digest(dataset.columns.values()),
    )
    if len(validation):
        task = replace(task, evaluate=evaluate, metric="val_mae", better="lower")
    else:
        config = replace(config, patience=None)
    return model, train(model, task, config, progress=progress)


def forecast_windows(model: Forecaster, batch: WindowBatch, horizon: int) -> Tensor:
    """Forecast the last `horizon` values of each window from the ones before: [B, horizon, 1]."""
    past = {name: column[:, :-horizon] for name, column in batch.items()}
    state = read(model, past["x"], calendar=past.get("calendar"), key_mask=past.get("valid"))
    ahead = batch["calendar"][:, -horizon:] if "calendar" in batch else None
    return roll_out(model, state, horizon, calendar=ahead)


def rollout_loss(model: nn.Module, batch: WindowBatch, horizon: int) -> tuple[Tensor, float]:
    """Return the mean absolute error over the known target values, and their number.

    The model is rolled out through its own forecasts and so learns to correct its errors.
    """
    assert isinstance(model, Forecaster)
    error = (forecast_windows(model, batch, horizon) - batch["x"][:, -horizon:]).abs()
    known = batch["known"][:, -horizon:].unsqueeze(-1).expand_as(error)
    count = known.sum()
    return torch.where(known, error, 0.0).sum() / count.clamp(min=1), float(count)


@torch.no_grad()
def forecast_errors(model: Forecaster, windows: WindowDataset) -> NDArray[np.float64]:
    """Return value - forecast [windows, horizon] in scaled units, NaN where a value is missing."""
    device, horizon = next(model.parameters()).device, windows.horizon
    found = [torch.empty(0, horizon)]
    for start in range(0, len(windows), BATCH_SIZE):
        indices = range(start, min(start + BATCH_SIZE, len(windows)))
        batch = move(windows.collate(list(indices)), device)
        error = batch["x"][:, -horizon:] - forecast_windows(model, batch, horizon)
        known = batch["known"][:, -horizon:]
        found.append(error.squeeze(-1).masked_fill(~known, torch.nan).cpu())
    errors: NDArray[np.float64] = torch.cat(found).double().numpy()
    return errors
