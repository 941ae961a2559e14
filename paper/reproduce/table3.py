"""`eattn reproduce table3`: accuracy on four sets, only the mixer differing (Table 3).

Two protocols. `tslib` is how Time-Series-Library, and by its numbers the paper, does it: all of
TRAIN is learnt from and the epoch is the one that is best on TEST, so the result is too good by
construction. `clean` cuts a fifth of TRAIN off to pick the epoch, and looks at TEST once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from eattn.data import Cases, load_classification
from eattn.models import SequenceClassifier
from eattn.nn import check_mixer
from eattn.train import Task, TensorDataset, TrainConfig, isolated, train
from paper.bench import show
from paper.bench.experiment import carry_out
from paper.bench.measure import Row
from paper.bench.target import Promise, Rows
from paper.report import table3 as report
from paper.reproduce.pool import run_all

PROTOCOLS = ("tslib", "clean")
VALIDATION = 0.2  # of TRAIN, for `clean`
EVALUATED = 64  # cases at a time


@dataclass(frozen=True)
class Setting:
    """One configuration per data set, the same for every mixer: chosen on a part of TRAIN."""

    patch: int
    epochs: int
    lr: float = 1e-3
    embed: str = "linear"
    dropout: float = 0.1
    pooling: str = "flatten"
    cost: float = 30.0  # seconds of a run, roughly

    def model(self, mixer: str, channels: int, classes: int, length: int) -> SequenceClassifier:
        return SequenceClassifier(
            channels,
            classes,
            mixer=mixer,
            dim=128,
            depth=3,
            heads=8,
            ffn=256,
            dropout=self.dropout,
            max_len=length,
            pooling=self.pooling,  # type: ignore[arg-type]
            embed=self.embed,  # type: ignore[arg-type]
            patch=self.patch,
        )


SETTINGS = {
    "JapaneseVowels": Setting(patch=1, embed="conv", epochs=30, cost=25.0),
    "SelfRegulationSCP1": Setting(patch=8, epochs=30, lr=3e-4, cost=50.0),
    "SelfRegulationSCP2": Setting(patch=8, epochs=30, lr=3e-4, cost=50.0),
    "UWaveGestureLibrary": Setting(patch=5, epochs=40, cost=35.0),
}


@dataclass(frozen=True)
class Plan:
    """What to run: every mixer, set, protocol and seed."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", "sa")
    sets: tuple[str, ...] = tuple(SETTINGS)
    protocols: tuple[str, ...] = PROTOCOLS
    seeds: int = 5
    epochs: float = 1.0  # of those of the setting

    def __post_init__(self) -> None:
        for mixer in self.mixers:
            check_mixer(mixer)

    @classmethod
    def quick(cls) -> "Plan":
        """One seed, one protocol, a quarter of the epochs."""
        return cls(protocols=("clean",), seeds=1, epochs=0.25)

    def work(self) -> Iterator[tuple[Row, float]]:
        """Every run, and about how many seconds it takes."""
        for seed in range(self.seeds):
            for name in self.sets:
                for protocol in self.protocols:
                    for mixer in self.mixers:
                        key = {"what": "run", "data": name, "protocol": protocol}
                        yield key | {"mixer": mixer, "seed": seed}, self._cost(name)

    def _cost(self, name: str) -> float:
        return SETTINGS[name].cost * self.epochs


def run(
    plan: Plan,
    console: Console,
    out: Path,
    *,
    name: str = "table3",
    data_dir: Path | None = None,
    jobs: int | None = None,
) -> list[Path]:
    """Rows to out/name.jsonl as they come, and the table on the console."""
    out.mkdir(parents=True, exist_ok=True)
    for known in plan.sets:
        # Fails, or downloads, before the work.
        load_classification(known, "TRAIN", data_dir=data_dir)
    settings = {known: asdict(SETTINGS[known]) for known in plan.sets}
    path, work = out / f"{name}.jsonl", list(plan.work())
    measure = partial(measure_run, epochs=plan.epochs, data_dir=data_dir)
    rows = carry_out(
        path,
        "table3",
        asdict(plan) | {"settings": settings},
        console,
        costs=work,
        measure=lambda journal, tick: run_all(journal, work, measure, tick, jobs=jobs),
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path]


# ---- one run -------------------------------------------------------------------------------------


def measure_run(key: Row, *, epochs: float, data_dir: Path | None) -> Row:
    """Accuracy on TEST after one training."""
    return fit(key, epochs=epochs, data_dir=data_dir).row


class Fitted(NamedTuple):
    """A trained model, the cases it was tested on, and what came out."""

    model: SequenceClassifier
    test: list[Tensor]
    row: Row


def fit(key: Row, *, epochs: float, data_dir: Path | None) -> Fitted:
    """One training, of `key`'s mixer on its data with its protocol and seed."""
    setting, seed = SETTINGS[key["data"]], key["seed"]
    first, second = (
        load_classification(key["data"], split, data_dir=data_dir) for split in ("TRAIN", "TEST")
    )
    learnt, test = tensors(first, second)
    if key["protocol"] == "clean":
        learnt, judged = stratified(learnt, VALIDATION, seed=seed)
    else:
        judged = test
    with isolated(seed):
        length, channels = learnt[0].shape[1:]
        model = setting.model(key["mixer"], channels, len(first.classes), length)
    config = TrainConfig(
        epochs=max(1, round(setting.epochs * epochs)),
        batch_size=16,
        optimizer="radam",
        lr=setting.lr,
        weight_decay=0.0,
        clip=4.0,
        seed=seed,
    )
    task = Task(
        TensorDataset(*learnt),
        loss,
        evaluate=lambda model: {"accuracy": accuracy(model, judged)},
        metric="accuracy",
        better="higher",
    )
    history = train(model, task, config)
    assert history.best is not None
    row = {
        "accuracy": accuracy(model, test),
        "epoch": history.best.epoch,
        "epochs": config.epochs,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": history.seconds,
    }
    return Fitted(model, test, row)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, key_mask, y = batch
    return F.cross_entropy(model(x, key_mask=key_mask), y)


def accuracy(model: nn.Module, cases: Sequence[Tensor]) -> float:
    """The share of cases whose largest logit is that of their label."""
    return float((labels(model, cases) == cases[-1]).double().mean())


@torch.no_grad()
def labels(model: nn.Module, cases: Sequence[Tensor]) -> Tensor:
    """The class of each case that has the largest logit."""
    x, key_mask, _ = cases
    parts = zip(x.split(EVALUATED), key_mask.split(EVALUATED), strict=True)
    return torch.cat([model(a, key_mask=mask).argmax(1) for a, mask in parts])


def tensors(first: Cases, second: Cases) -> tuple[list[Tensor], list[Tensor]]:
    """x [N, L, C] standardised by the channels of TRAIN, its real samples, and labels; of both."""
    every = np.concatenate(first.X, axis=1)
    mean, std = every.mean(1, keepdims=True), every.std(1, keepdims=True) + 1e-8
    length = max(int(part.lengths.max()) for part in (first, second))
    classes = first.classes
    return (
        _padded(first, mean, std, length, classes),
        _padded(second, mean, std, length, classes),
    )


def _padded(
    cases: Cases, mean: Any, std: Any, length: int, classes: tuple[str, ...]
) -> list[Tensor]:
    if cases.y is None:
        raise ValueError(f"{cases.name} has no labels to learn")
    x = torch.zeros(len(cases.X), length, cases.channels)
    for row, case in zip(x, cases.X, strict=True):
        row[: case.shape[1]] = torch.from_numpy(((case - mean) / std).T)
    key_mask = torch.arange(length) < torch.from_numpy(cases.lengths).unsqueeze(1)
    y = torch.tensor([classes.index(label) for label in cases.y])
    return [x, key_mask, y]


def stratified(
    cases: Sequence[Tensor], share: float, *, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Two parts of the cases, the second with `share` of every class and at least one of it."""
    y, rng = cases[-1], np.random.default_rng(seed)
    second = np.zeros(len(y), dtype=bool)
    for label in y.unique():
        of = rng.permutation(np.flatnonzero(y.numpy() == int(label)))
        second[of[: max(1, round(share * len(of)))]] = True
    chosen = torch.from_numpy(second)
    return [x[~chosen] for x in cases], [x[chosen] for x in cases]


# ---- what is expected, and the table -------------------------------------------------------------


def _margin(of: Callable[[Mapping[str, float]], float], data: str) -> Callable[[Rows], float]:
    """`of` the mean accuracies by mixer, under `tslib`."""

    def value(rows: Rows) -> float:
        means = {
            m: mean
            for (d, p, m), (mean, *_) in report.means(rows).items()
            if (d, p) == (data, "tslib")
        }
        if not means:
            raise LookupError(f"no runs of {data} under tslib")
        return of(means)

    return value


def _promises() -> Iterator[Promise]:
    for data, short in report.SHORT.items():
        paper = report.PAPER["ea-6"][data]
        near = _margin(lambda means, paper=paper: means["ea-6"] - paper, data)  # type: ignore[misc]
        yield Promise(f"{short}: EA-6 less the paper's", near, -0.01, at_most=False, unit="")
        beside = _margin(lambda means: means["ea-6"] - means["sa"], data)
        yield Promise(f"{short}: EA-6 less SA", beside, -0.01, at_most=False, unit="")


PROMISES = tuple(_promises())


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what was aimed at, and where it was measured."""
    for protocol in PROTOCOLS:
        lines = list(report.lines(rows, protocol))
        if lines:
            out = show.table(f"accuracy, protocol {protocol}", *report.SHORT.values())
            for *cells, _, _ in lines:  # eighty columns hold no more
                out.add_row(*cells)
            costs = (f"{name} {size} and {time} s" for name, *_, size, time in lines if time)
            out.caption = "parameters in millions and seconds a run: " + ", ".join(costs)
            console.print(out)
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
