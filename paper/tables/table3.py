"""Table 3: accuracy of time-series classifiers.

The same encoder on four datasets of the UEA archive; only the mixer differs. There are two
protocols. `tslib` follows Time-Series-Library and, judging by its numbers, the paper: it trains on
all of TRAIN and picks the epoch that is best on TEST, so its result is too good by construction.
`clean` picks the epoch on a fifth of TRAIN and looks at TEST once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.data import Cases, load_classification
from eattn.models import SequenceClassifier
from eattn.nn import check_mixer
from eattn.train import Task, TensorDataset, TrainConfig, isolated, train
from paper.harness.chart import Chart
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, group
from paper.harness.scores import Mean, means, panel, seeds_note, trained_row
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Table 3: classification accuracy"
SHORT = {
    "JapaneseVowels": "JAP",
    "SelfRegulationSCP1": "SCP1",
    "SelfRegulationSCP2": "SCP2",
    "UWaveGestureLibrary": "UWG",
}
PAPER: dict[str, Any] = {
    "claims": ("EA-2 falls behind; EA-6, with enough terms, surpasses SA on all four datasets.",),
    "accuracy": {
        "ea-2": dict(zip(SHORT, (0.957, 0.887, 0.500, 0.794), strict=True)),
        "ea-6": dict(zip(SHORT, (0.973, 0.904, 0.533, 0.847), strict=True)),
        "sa": dict(zip(SHORT, (0.970, 0.894, 0.528, 0.822), strict=True)),
    },
}
PROTOCOLS = {
    "tslib": "epoch picked on TEST, as in the paper",
    "clean": "epoch picked on a fifth of TRAIN",
}
MODEL: Any = dict(dim=128, depth=3, heads=8, ffn=256, dropout=0.1, pooling="flatten")
TRAINING: Any = dict(batch_size=16, optimizer="radam", weight_decay=0.0, clip=4.0)
VALIDATION = 0.2  # of TRAIN, for `clean`
EVALUATED = 64  # samples per batch of the evaluation


@dataclass(frozen=True)
class Setting:
    """One configuration per dataset, the same for every mixer, chosen on a part of TRAIN."""

    patch: int
    epochs: int
    lr: float = 1e-3
    embed: str = "linear"

    def model(self, mixer: str, channels: int, classes: int, length: int) -> SequenceClassifier:
        own: dict[str, Any] = {"embed": self.embed, "patch": self.patch, "max_len": length}
        return SequenceClassifier(channels, classes, mixer=mixer, **own, **MODEL)


SETTINGS = {
    "JapaneseVowels": Setting(patch=1, embed="conv", epochs=30),
    "SelfRegulationSCP1": Setting(patch=8, epochs=30, lr=3e-4),
    "SelfRegulationSCP2": Setting(patch=8, epochs=30, lr=3e-4),
    "UWaveGestureLibrary": Setting(patch=5, epochs=40),
}


@dataclass(frozen=True)
class Plan:
    """Every mixer on every dataset, with every protocol and seed."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", "sa")
    sets: tuple[str, ...] = tuple(SETTINGS)
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    seeds: int = 5
    epochs: float = 1.0  # share of the epochs of the setting
    jobs: int | None = None  # runs side by side; one per core by default

    def runs(self) -> Iterator[Key]:
        """Yield the settings of every training run, which are the key of its row."""
        for seed, data in product(range(self.seeds), self.sets):
            epochs = max(1, round(SETTINGS[data].epochs * self.epochs))
            for protocol, mixer in product(self.protocols, self.mixers):
                key = {"what": "run", "data": data, "protocol": protocol}
                yield key | {"mixer": mixer, "seed": seed, "epochs": epochs}


def plan(quick: bool) -> Plan:
    """Return the full plan, or one seed of `clean` with a quarter of the epochs."""
    return Plan(protocols=("clean",), seeds=1, epochs=0.25) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Train every classifier of the plan, several side by side."""
    for mixer in plan.mixers:
        check_mixer(mixer)
    for data in plan.sets:
        load_classification(data, "TRAIN")  # fails, or downloads, before the work
    return run_all(log, plan.runs(), measure_run, jobs=plan.jobs)


def measure_run(key: Key) -> Row:
    """Train one classifier and return its accuracy on TEST."""
    return fit(key)[-1]


def fit(key: Key) -> tuple[SequenceClassifier, list[Tensor], Row]:
    """Train the mixer of a key; return the model, its test samples, and the row of the run."""
    setting, seed = SETTINGS[key["data"]], key["seed"]
    first, second = (load_classification(key["data"], split) for split in ("TRAIN", "TEST"))
    trained, test = tensors(first, second)
    validation = test
    if key["protocol"] == "clean":
        trained, validation = stratified(trained, VALIDATION, seed=seed)
    with isolated(seed):
        length, channels = trained[0].shape[1:]
        model = setting.model(key["mixer"], channels, len(first.classes), length)
    config = TrainConfig(epochs=key["epochs"], lr=setting.lr, seed=seed, **TRAINING)
    evaluate = partial(_validate, samples=validation)
    task = Task(TensorDataset(*trained), loss, evaluate, metric="accuracy", better="higher")
    row = trained_row(model, train(model, task, config))
    return model, test, {"accuracy": accuracy(model, test)} | row


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, key_mask, y = batch
    return F.cross_entropy(model(x, key_mask=key_mask), y)


def _validate(model: nn.Module, *, samples: Sequence[Tensor]) -> dict[str, float]:
    return {"accuracy": accuracy(model, samples)}


def accuracy(model: nn.Module, samples: Sequence[Tensor]) -> float:
    """Return the share of samples whose largest logit is that of their label."""
    return float((labels(model, samples) == samples[-1]).double().mean())


@torch.no_grad()
def labels(model: nn.Module, samples: Sequence[Tensor]) -> Tensor:
    """Return the class with the largest logit of each sample."""
    x, key_mask, _ = samples
    parts = zip(x.split(EVALUATED), key_mask.split(EVALUATED), strict=True)
    return torch.cat([model(a, key_mask=mask).argmax(1) for a, mask in parts])


def tensors(first: Cases, second: Cases) -> tuple[list[Tensor], list[Tensor]]:
    """Return x [N, L, C] standardised by the channels of TRAIN, its mask, and labels; of both."""
    every = np.concatenate(first.X, axis=1)
    mean, std = every.mean(1, keepdims=True), every.std(1, keepdims=True) + 1e-8
    length = max(int(part.lengths.max()) for part in (first, second))

    def padded(part: Cases) -> list[Tensor]:
        if part.y is None:
            raise ValueError(f"{part.name} has no labels to train on")
        x = torch.zeros(len(part.X), length, part.channels)
        for row, series in zip(x, part.X, strict=True):
            row[: series.shape[1]] = torch.from_numpy(((series - mean) / std).T)
        key_mask = torch.arange(length) < torch.from_numpy(part.lengths).unsqueeze(1)
        return [x, key_mask, torch.tensor([first.classes.index(label) for label in part.y])]

    return padded(first), padded(second)


def stratified(
    samples: Sequence[Tensor], share: float, *, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Split samples in two; the second part has `share` of every class, at least one sample."""
    y, rng = samples[-1], np.random.default_rng(seed)
    second = np.zeros(len(y), dtype=bool)
    for label in y.unique():
        of = rng.permutation(np.flatnonzero(y.numpy() == int(label)))
        second[of[: max(1, round(share * len(of)))]] = True
    chosen = torch.from_numpy(second)
    return [x[~chosen] for x in samples], [x[chosen] for x in samples]


def accuracies(rows: Rows) -> dict[tuple[str, str, str], Mean]:
    """Return the accuracy of each (dataset, protocol, mixer) over the seeds."""
    return means(rows, "accuracy", "data", "protocol", "mixer")


def _margin(data: str, paper: float | None, rows: Rows) -> float:
    """Return the accuracy of EA-6 under `tslib` minus the paper's, or minus that of SA."""
    found = accuracies(rows)
    other = found[data, "tslib", "sa"].value if paper is None else paper
    return found[data, "tslib", "ea-6"].value - other


def _targets() -> Iterator[Target]:
    for data, short in SHORT.items():
        near = partial(_margin, data, PAPER["accuracy"]["ea-6"][data])
        yield Target(f"{short}: EA-6 minus the paper's EA-6", near, at_least=-0.01)
        yield Target(f"{short}: EA-6 minus SA", partial(_margin, data, None), at_least=-0.01)


TARGETS = tuple(_targets())


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield a table per protocol: accuracy, parameters and time of a run; then the paper's."""
    found = accuracies(rows)
    for protocol, runs in group(rows, "protocol").items():
        body = []
        for mixer, own in group(runs, "mixer").items():
            every = (found.get((data, protocol, mixer)) for data in SHORT)
            cells = ["" if m is None else f"{m.value:.3f} ± {m.spread:.3f}" for m in every]
            sizes = sorted({f"{row['parameters'] / 1e6:.2f}" for row in own})
            span = " – ".join(dict.fromkeys((sizes[0], sizes[-1])))
            body.append([mixer, *cells, span, f"{fmean(row['seconds'] for row in own):.0f}"])
        for mixer, values in PAPER["accuracy"].items():
            body.append([f"paper's {mixer}", *(f"{v:.3f}" for v in values.values()), "", ""])
        note = seeds_note(mean for (_, name, _), mean in found.items() if name == protocol)
        head = ["mixer", *SHORT.values(), "parameters, M", "seconds per run"]
        title = f"Accuracy on TEST, {PROTOCOLS[protocol]} (`{protocol}`)"
        yield Table(title, head, body, [note])


def draw(rows: Sequence[Row]) -> Chart:
    """Draw a panel per protocol: mean and deviation of ours, and the paper's number, hollow."""
    found, paper, panels = accuracies(rows), PAPER["accuracy"], []
    for letter, protocol in zip("ab", group(rows, "protocol"), strict=False):
        scores = [
            (mixer, SHORT[data], mean, paper.get(mixer, {}).get(data))
            for (data, name, mixer), mean in found.items()
            if name == protocol
        ]
        scores.sort(key=lambda score: list(SHORT.values()).index(score[1]))
        title = f"({letter}) Accuracy, {PROTOCOLS[protocol]}"
        panels.append(panel(title, scores, y="accuracy on TEST"))
    return Chart(panels)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the datasets on which EA-6 is below SA, or below the paper's EA-6."""
    found = accuracies(rows)
    for (data, protocol, mixer), mean in found.items():
        if mixer != "ea-6":
            continue
        others = {"the paper’s EA-6": PAPER["accuracy"]["ea-6"][data]}
        if (data, protocol, "sa") in found:
            others["SA"] = found[data, protocol, "sa"].value
        for name, value in others.items():
            if f"{mean.value:.3f}" < f"{value:.3f}":
                where = f"{SHORT[data]}, {PROTOCOLS[protocol]}"
                yield f"{where}: EA-6 {mean.value:.3f}, {name} {value:.3f}."
