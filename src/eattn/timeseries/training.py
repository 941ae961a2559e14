"""Train the models of both estimators from their parameters and data."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.models import (
    ClassifierEnsemble,
    KernelClassifier,
    QuantileForecaster,
    ShapeClassifier,
)
from eattn.nn.padding import mean_valid
from eattn.timeseries.arrays import pad, validation_samples
from eattn.timeseries.augment import augment
from eattn.timeseries.ridge import fit_ridge
from eattn.timeseries.windows import ForecastWindows, TrainingWindows, WindowBatch
from eattn.train import History, ListDataset, Processes, Task, TrainConfig, isolated, move, train

CLASSIFIER_EPOCHS, CLASSIFIER_STEPS = 30, 400  # minimum, unless `epochs` is set
CLASSIFIER_WARMUP = 0.1  # share of the steps
THRESHOLD_SERIES = 200  # training series whose outputs set the thresholds of kernels
EPOCHS, STEPS = 20, (200, 1000)  # of a forecaster; the smallest and the largest number of steps
NEW_LR, TUNED_LR = 1.5e-3, 5e-4  # of new weights or covariates, and of pretrained weights alone
EVALUATIONS = 20  # of a forecaster
VALIDATION_WINDOWS = 256  # windows per evaluation
DIRECT_STEPS, DIRECT_LR = 150, 0.02
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of trained weights that are tried
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
        warmup=CLASSIFIER_WARMUP,
        epochs=CLASSIFIER_EPOCHS if epochs is None else epochs,
        seed=seed_of(params["random_state"]),
    )
    if epochs is None:  # an epoch of few samples has few steps
        per_epoch = -(-samples // config.batch_size)
        config = replace(config, epochs=max(CLASSIFIER_EPOCHS, -(-CLASSIFIER_STEPS // per_epoch)))
    return config


def make_classifier(
    network: Mapping[str, Any], kernels: Mapping[str, Any] | None, ensemble: int, *, seed: int = 0
) -> ClassifierEnsemble:
    """Make an untrained classifier of `ensemble` networks and, unless None, kernels."""
    networks = []
    for own in _seeds(seed, ensemble):
        with isolated(own):
            networks.append(ShapeClassifier(**network))
    with isolated():  # a linear layer draws its initial weights
        fixed = None if kernels is None else KernelClassifier(**kernels)
    return ClassifierEnsemble(networks, fixed)


def _seeds(first: int, count: int) -> list[int]:
    return [(first + number) % 2**32 for number in range(count)]


def train_classifier(
    series: Sequence[Tensor],
    y: NDArray[np.int64],
    design: Mapping[str, Any],
    config: TrainConfig,
    *,
    values: int,
    validation_fraction: float,
    class_weight: NDArray[np.float64] | None,
    label_smoothing: float,
    augmented: bool,
    progress: bool,
) -> tuple[ClassifierEnsemble, list[History]]:
    """Train a `make_classifier(**design)`, each network on its own, and fit the kernels.

    A network keeps its best weights on validation samples, if there are any. The loss of each
    sample, in both parts, is multiplied by the `class_weight` of its class. The first `values`
    channels hold values, and those after them mark missing ones.
    """
    model = make_classifier(**design, seed=config.seed)
    weight = None if class_weight is None else torch.from_numpy(class_weight).float()
    labelled = list(zip(series, y.tolist(), strict=True))
    histories = []
    seeds = _seeds(config.seed, len(model.networks))
    for number, (network, seed) in enumerate(zip(model.networks, seeds, strict=True)):
        folder = config.checkpoint
        if number and folder is not None:
            folder = Path(folder) / f"network{number}"
        own = replace(config, seed=seed, checkpoint=folder)
        task = _classifier_task(
            labelled,
            validation_samples(y, validation_fraction, seed=seed),
            weight,
            label_smoothing,
            values if augmented else None,
            causal=model.config.causal,
        )
        own = own if task.metric else replace(own, patience=None)
        histories.append(train(network, task, own, progress=progress))
    if isinstance(model.kernels, KernelClassifier):
        fit_kernels(model.kernels, series, torch.from_numpy(y), weight, seed=config.seed)
    return model.eval().to(next(model.networks.parameters()).device), histories


def _classifier_task(
    samples: Sequence[Labelled],
    chosen: NDArray[np.int64],
    weight: Tensor | None,
    label_smoothing: float,
    augmented: int | None,
    *,
    causal: bool,
) -> Task:
    """Return the task of one network; the `chosen` samples are for validation."""
    validation = [samples[i] for i in chosen]
    kept = set(range(len(samples))) - set(chosen.tolist())
    training = [samples[i] for i in sorted(kept)]

    def cross_entropy(logits: Tensor, label: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each row."""
        loss = F.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing)
        # The weighted mean of F.cross_entropy would ignore the weights in a batch of one class.
        return loss if weight is None else loss * weight.to(logits)[label]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor | None, Tensor]) -> Tensor:
        x, key_mask, label = batch
        if not causal:
            return cross_entropy(model(x, key_mask), label, label_smoothing).mean()
        # Every prefix of a series is classified, so that the probabilities are right at any time.
        logits = model(x, key_mask, every=True)
        each = label.unsqueeze(1).expand(logits.shape[:2])
        losses = cross_entropy(logits.flatten(0, 1), each.flatten(), label_smoothing)
        return mean_valid(losses.view(*each.shape, 1), key_mask).mean()

    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = torch.cat([x.float().cpu() for x in logits_of(model, [x for x, _ in validation])])
        label = torch.tensor([label for _, label in validation])
        right = logits.argmax(-1) == label
        val_loss = cross_entropy(logits, label).mean().item()
        return {"val_loss": val_loss, "val_accuracy": right.double().mean().item()}

    def collate(batch: Sequence[Labelled]) -> tuple[Tensor, Tensor | None, Tensor]:
        x, key_mask = pad([x for x, _ in batch])
        if augmented is not None:
            x = augment(x, key_mask, augmented)
        return x, key_mask, torch.tensor([label for _, label in batch])

    labels = torch.tensor([label for _, label in samples])
    options = torch.tensor([label_smoothing, float(augmented is not None)])
    own = [*(x for x, _ in samples), labels, options, *([] if weight is None else [weight])]
    task = Task(ListDataset(training, collate), loss, data=_digest(own))
    if validation:
        task = replace(task, evaluate=evaluate, metric="val_loss", better="lower")
    return task


@torch.no_grad()
def fit_kernels(
    kernels: KernelClassifier,
    series: Sequence[Tensor],
    y: Tensor,
    class_weight: Tensor | None,
    *,
    seed: int,
) -> None:
    """Draw the kernels, and fit their linear map to logits."""
    generator = torch.Generator().manual_seed(seed)
    known = [x.unsqueeze(0) for x in series if len(x)]
    few = torch.randperm(len(known), generator=generator)[:THRESHOLD_SERIES]
    kernels.draw([known[i] for i in few], generator)
    features = torch.cat(list(_in_batches(kernels.features, series, torch.device("cpu"))))
    weight = torch.ones(len(y)) if class_weight is None else class_weight[y]
    linear, bias = fit_ridge(features, y, weight)
    kernels.head.weight.copy_(linear)
    kernels.head.bias.copy_(bias)


def logits_of(
    model: nn.Module, series: Sequence[Tensor], *, every: bool = False
) -> Iterator[Tensor]:
    """Yield the logits [samples, classes] of series [length, channels], in batches.

    With `every`, they are those of a causal model after each sample, [samples, length, classes].
    """
    function = partial(model, every=True) if every else model
    return _in_batches(function, series, next(model.parameters()).device)


def _in_batches(
    function: Callable[..., Tensor], series: Sequence[Tensor], device: torch.device
) -> Iterator[Tensor]:
    for start in range(0, len(series), BATCH_SIZE):
        x, key_mask = move(pad(series[start : start + BATCH_SIZE]), device)
        yield function(x, key_mask=key_mask)


# ---- forecaster ----


def has_covariates(params: Mapping[str, Any]) -> bool:
    """Return whether there are inputs that pretrained weights do not know."""
    names = ("futr_exog_list", "hist_exog_list", "stat_exog_list", "holidays")
    return any(params[name] for name in names)


def forecaster_config(params: Mapping[str, Any], windows: int, seed: int) -> TrainConfig:
    """Return the training configuration for this number of windows."""
    epochs, batch_size = params["epochs"], check_size("batch_size", params["batch_size"])
    if epochs is not None:
        check_size("epochs", epochs)
    per_epoch = -(-windows // batch_size)
    steps = int(np.clip(EPOCHS * per_epoch, *STEPS)) if epochs is None else epochs * per_epoch
    steps, lr = params["finetune_steps"] or steps, params["lr"]
    if lr is None:
        known = params["pretrained"] is not None and not has_covariates(params)
        lr = TUNED_LR if known else NEW_LR
    names = ("batch_size", "weight_decay", "patience", "device", "checkpoint")
    return TrainConfig(
        **{name: params[name] for name in names},
        lr=lr,
        epochs=None,
        max_steps=steps,
        evaluate_every=max(steps // EVALUATIONS, 1),
        betas=(0.9, 0.99),
        schedule="cosine",
        warmup=0.1,
        clip=0.5,
        precision="float32",
        seed=seed,
    )


def train_forecaster(
    model: QuantileForecaster,
    windows: TrainingWindows,
    validation: ForecastWindows,
    config: TrainConfig,
    *,
    progress: bool,
) -> History:
    """Train a new model; the best weights on the validation windows are kept.

    First only the direct path is trained: a constant mixture of simple forecasts, for which short
    series suffice. Both paths are then scaled down as far as that is better on the validation
    windows, down to the seasonal naive forecast.
    """
    chosen = validation.some(VALIDATION_WINDOWS)
    train_direct(model, windows, config)
    _, before = _shrink(model, {"direct.weight": torch.zeros_like(model.direct.weight)}, chosen)
    direct = _weights(model)
    history = _train_all(model, windows, chosen, config, progress=progress)
    _, after = _shrink(model, {"head.weight": torch.zeros_like(model.head.weight)}, chosen)
    if after > before:
        model.load_state_dict(direct)
    return history


def finetune_forecaster(
    model: QuantileForecaster,
    windows: TrainingWindows,
    validation: ForecastWindows,
    config: TrainConfig,
    *,
    progress: bool,
) -> tuple[History, float]:
    """Train pretrained weights further; return the share of the change that was kept.

    The rest is undone because the forecasts of the validation windows are as good without it.
    """
    chosen, before = validation.some(VALIDATION_WINDOWS), _weights(model)
    history = _train_all(model, windows, chosen, config, progress=progress)
    share, _ = _shrink(model, before, chosen)
    return history, share


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def _train_all(
    model: QuantileForecaster,
    windows: TrainingWindows,
    chosen: ForecastWindows,
    config: TrainConfig,
    *,
    progress: bool,
) -> History:
    """Train all weights."""
    task = Task(windows, window_loss, data=_digest([torch.from_numpy(windows.table.values)]))
    if len(chosen):
        task = replace(
            task,
            evaluate=lambda model: {"val_loss": _mean_loss(model, chosen)},
            metric="val_loss",
            better="lower",
        )
    else:
        config = replace(config, patience=None)
    return train(model, task, config, progress=progress)


@torch.no_grad()
def _shrink(
    model: QuantileForecaster, before: Mapping[str, Tensor], windows: ForecastWindows
) -> tuple[float, float]:
    """Undo a part of the change since the weights `before`; return the other part and its loss.

    That is the smallest of SHARES that is about as good as the best: few windows decide little.
    """
    after, losses = _weights(model), []

    def blend(share: float) -> None:
        mixed = {n: torch.lerp(x.to(after[n]), after[n], share) for n, x in before.items()}
        model.load_state_dict(after | mixed)

    for share in SHARES if len(windows) else (1.0,):
        blend(share)
        losses.append(_mean_loss(model, windows))
    enough = min(losses) * (1 + 1 / max(len(windows), 1))
    share, loss = [each for each in zip(SHARES, losses, strict=False) if each[1] <= enough][-1]
    blend(share)
    return share, loss


def train_direct(model: QuantileForecaster, windows: TrainingWindows, config: TrainConfig) -> None:
    """Train the direct path from the features of a step to the forecast."""
    rng = np.random.default_rng(config.seed)
    weight = model.direct.weight
    optimizer = torch.optim.Adam([weight], lr=DIRECT_LR)
    for step in range(DIRECT_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = DIRECT_LR * (1 - step / DIRECT_STEPS)
        batch = windows.collate(rng.integers(len(windows), size=config.batch_size).tolist())
        loss = _loss(model.quantiles(None, batch["rules"], batch["features"]), batch, model.levels)
        optimizer.zero_grad()
        (weight.grad,) = torch.autograd.grad(
            loss.sum() / batch["counts"].sum().clamp(min=1), weight
        )
        optimizer.step()


def _loss(quantiles: Tensor, batch: WindowBatch, levels: Sequence[float]) -> Tensor:
    """Return the pinball loss of each forecast [B, O, H], in scales; 0 where nothing is known."""
    error = batch["y"].unsqueeze(-1) - quantiles
    level = torch.tensor(levels, device=error.device, dtype=error.dtype)
    loss = torch.maximum(level * error, (level - 1) * error).mean(-1)
    return torch.where(batch["counts"], loss, 0.0)


def window_loss(model: nn.Module, batch: WindowBatch) -> tuple[Tensor, float]:
    """Return the mean pinball loss over the known values, and their number."""
    inputs = (batch[name] for name in ("tokens", "origins", "rules", "features"))
    quantiles = model(*inputs)
    levels: Any = getattr(model, "module", model).levels
    count = batch["counts"].sum()
    loss = _loss(quantiles, batch, levels).sum() / count.clamp(min=1)
    return loss, float(count)


@torch.no_grad()
def window_losses(model: QuantileForecaster, windows: ForecastWindows) -> NDArray[np.float64]:
    """Return the mean pinball loss of each window; NaN if no value is known."""
    device, found = next(model.parameters()).device, [np.empty(0)]
    for each in windows:
        batch = move(each, device)
        names = ("tokens", "origins", "rules", "features")
        loss = _loss(model(*(batch[name] for name in names)), batch, model.levels).sum(2)
        counts = batch["counts"].sum(2)
        found.append((loss / counts)[batch["given"]].double().cpu().numpy())
    return np.concatenate(found)


def _mean_loss(model: Any, windows: ForecastWindows) -> float:
    """Return the mean loss over windows with known values; infinity if there are none."""
    training = model.training
    losses = window_losses(model.eval(), windows)
    model.train(training)
    known = losses[~np.isnan(losses)]
    return float(known.mean()) if len(known) else float("inf")
