"""`eattn reproduce table4`: forecasting errors, only the mixer differing (Table 4).

OT from 6 values, 6 and 12 steps ahead, token by token through the state; trained through its own
forecasts. Beside it what costs nothing (the last value again) and LightGBM on the same features,
one model for each step. `random` deals windows out at random: neighbours share rows, so it leaks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from eattn.data import load_forecasting
from eattn.models import Forecaster
from eattn.nn import calendar_fields, check_mixer
from eattn.nn.embedding import FIELDS
from eattn.train import Task, TensorDataset, TrainConfig, isolated, train
from paper.bench import show
from paper.bench.experiment import carry_out
from paper.bench.measure import Row
from paper.bench.target import Promise, Rows
from paper.report import table4 as report
from paper.reproduce.pool import run_all
from paper.tables.windows import cuts, windows

WINDOW = 6
SPLITS = ("chronological", "random")
BASELINES = ("persistence", "lightgbm")
# What models and trees read of the time. A year of training says little about the same day of the
# next, and the months of `val` were never seen: `val` is foretold better without. Where windows are
# dealt out at random the day tells nearly all.
FIELDS_READ = {"chronological": ("weekday", "hour", "minute"), "random": tuple(FIELDS)}
TREES = 400
EVALUATED = 4096  # windows at a time


@dataclass(frozen=True)
class Setting:
    """One configuration per data set, the same for every mixer: chosen on the part `val`."""

    dim: int
    epochs: int
    cost: float  # seconds of a run to horizon 6, roughly

    def model(self, mixer: str, split: str) -> Forecaster:
        return Forecaster(
            1,
            mixer=mixer,
            dim=self.dim,
            depth=2,
            heads=4,
            calendar=FIELDS_READ[split],
            positions=True,
            residual=True,
            differences=True,
            max_len=64,
        )


SETTINGS = {
    "ETTh2": Setting(dim=32, epochs=15, cost=27.0),
    "ETTm2": Setting(dim=32, epochs=5, cost=37.0),
    "Traffic": Setting(dim=64, epochs=10, cost=40.0),
}


@dataclass(frozen=True)
class Plan:
    """What to run: every mixer, set, horizon, split and seed; the baselines once."""

    mixers: tuple[str, ...] = ("ea-2", "ea-6", "sa")
    sets: tuple[str, ...] = tuple(SETTINGS)
    horizons: tuple[int, ...] = (6, 12)
    splits: tuple[str, ...] = SPLITS
    seeds: int = 5
    share: float = 1.0  # of the epochs of the setting, and of the windows to train on

    def __post_init__(self) -> None:
        for mixer in self.mixers:
            check_mixer(mixer)

    @classmethod
    def quick(cls) -> "Plan":
        """One seed, one split, half of epochs and windows."""
        return cls(splits=("chronological",), seeds=1, share=0.4)

    def work(self) -> Iterator[tuple[Row, float]]:
        """Every run, and about how many seconds it takes."""
        for name in self.sets:
            for split in self.splits:
                for horizon in self.horizons:
                    key = {"what": "run", "data": name, "split": split, "horizon": horizon}
                    for model in BASELINES:
                        yield key | {"model": model, "seed": 0}, 2.0 * horizon
                    cost = SETTINGS[name].cost * horizon / WINDOW * self.share**2
                    for seed in range(self.seeds):
                        for model in self.mixers:
                            yield key | {"model": model, "seed": seed}, cost


def run(
    plan: Plan,
    console: Console,
    out: Path,
    *,
    name: str = "table4",
    data_dir: Path | None = None,
    jobs: int | None = None,
) -> list[Path]:
    """Rows to out/name.jsonl as they come, and the table on the console."""
    out.mkdir(parents=True, exist_ok=True)
    for known in plan.sets:
        load_forecasting(known, data_dir=data_dir)  # fails, or downloads, before the work
    settings = {known: asdict(SETTINGS[known]) for known in plan.sets}
    path, work = out / f"{name}.jsonl", list(plan.work())
    measure = partial(measure_run, share=plan.share, data_dir=data_dir)
    rows = carry_out(
        path,
        "table4",
        asdict(plan) | {"settings": settings},
        console,
        costs=work,
        measure=lambda journal, tick: run_all(journal, work, measure, tick, jobs=jobs),
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path]


# ---- one run -------------------------------------------------------------------------------------


class Windows:
    """A standardised series, its times, and the starts of the windows of every part."""

    def __init__(self, key: Row, data_dir: Path | None) -> None:
        table = load_forecasting(key["data"], data_dir=data_dir)
        values = table.frame[table.target].to_numpy(np.float64)
        at = cuts(key["data"], len(values))
        self.horizon: int = key["horizon"]
        self.starts = {
            part: windows(at, WINDOW, self.horizon, part, split=key["split"])
            for part in ("train", "val", "test")
        }
        mean, std = values[: at.train].mean(), values[: at.train].std()
        self.values = torch.from_numpy((values - mean) / std).float()
        self.calendar = calendar_fields(
            table.frame["ds"].to_numpy(), fields=FIELDS_READ[key["split"]]
        )
        # The paper's levels fit ETT in its own units, and Traffic standardised.
        self.unit = 1.0 if key["data"] == "Traffic" else float(std)

    def at(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Values [B, window + horizon] and times [B, window + horizon, F]."""
        rows = starts.unsqueeze(1) + torch.arange(WINDOW + self.horizon)
        return self.values[rows], self.calendar[rows]

    def part(self, part: str) -> Tensor:
        return torch.from_numpy(self.starts[part])


def measure_run(key: Row, *, share: float, data_dir: Path | None) -> Row:
    """MAE and RMSE on the test windows."""
    forecast = {"persistence": persistence, "lightgbm": lightgbm}.get(key["model"])
    if forecast is None:
        return fit(key, share=share, data_dir=data_dir).row
    data, began = Windows(key, data_dir), perf_counter()
    errors = forecast(data) - data.at(data.part("test"))[0][:, WINDOW:].double()
    return scores(errors, data) | {"seconds": perf_counter() - began}


class Fitted(NamedTuple):
    """A trained model, its windows, and what came out."""

    model: Forecaster
    data: Windows
    row: Row


def fit(key: Row, *, share: float, data_dir: Path | None) -> Fitted:
    """One training, of `key`'s mixer on its data with its split, horizon and seed."""
    data = Windows(key, data_dir)
    with isolated(key["seed"]):
        model = SETTINGS[key["data"]].model(key["model"], key["split"])
    config = TrainConfig(
        epochs=max(1, round(SETTINGS[key["data"]].epochs * share)),
        batch_size=128,
        lr=4e-3,
        weight_decay=0.01,
        schedule="cosine",
        warmup=0.1,
        clip=1.0,
        seed=key["seed"],
    )
    starts = data.part("train")
    task = Task(
        TensorDataset(starts[: max(1, round(len(starts) * share))] if share < 1 else starts),
        partial(loss, data=data),
        evaluate=lambda model: {"mae": scores(errors_of(model, data, "val"), data)["mae"]},
        metric="mae",
        better="lower",
    )
    history = train(model, task, config)
    assert history.best is not None
    row = scores(errors_of(model, data, "test"), data) | {
        "val_mae": history.best.metrics["mae"],
        "epoch": history.best.epoch,
        "epochs": config.epochs,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": history.seconds,
    }
    return Fitted(model, data, row)


def loss(model: nn.Module, batch: tuple[Tensor], *, data: Windows) -> Tensor:
    """Mean absolute error of the model's own forecast, all steps of it."""
    return _errors(model, *data.at(batch[0])).abs().mean()


def _errors(model: nn.Module, values: Tensor, calendar: Tensor) -> Tensor:
    assert isinstance(model, Forecaster)
    horizon = values.shape[1] - WINDOW
    past = values[:, :WINDOW].unsqueeze(-1)
    forecast: Tensor = model.rollout(past, horizon, calendar=calendar)
    return forecast.squeeze(-1) - values[:, WINDOW:]


@torch.no_grad()
def errors_of(model: nn.Module, data: Windows, part: str) -> Tensor:
    parts = data.part(part).split(EVALUATED)
    return torch.cat([_errors(model, *data.at(starts)) for starts in parts]).double()


def scores(errors: Tensor, data: Windows) -> Row:
    """Over all windows and steps."""
    return {
        "mae": float(errors.abs().mean()) * data.unit,
        "rmse": float(errors.square().mean().sqrt()) * data.unit,
        "windows": len(errors),
    }


# ---- baselines -----------------------------------------------------------------------------------


def persistence(data: Windows) -> Tensor:
    """The last value again, at every step."""
    values, _ = data.at(data.part("test"))
    return values[:, WINDOW - 1 : WINDOW].double().expand(-1, data.horizon)


def lightgbm(data: Windows) -> Tensor:
    """Gradient-boosted trees for the change from the last value, one model for each step.

    They see what the forecasters see: the last value, how far the others are from it, and its time.
    Given plain values they are much worse: a tree cannot subtract.
    """
    from lightgbm import LGBMRegressor

    x, y = _features(data, "train")
    x_test, _ = _features(data, "test")
    steps = []
    for step in range(data.horizon):
        trees = LGBMRegressor(
            n_estimators=TREES, objective="l1", random_state=0, n_jobs=1, verbose=-1
        )
        steps.append(trees.fit(x, y[:, step]).predict(x_test))
    return persistence(data) + torch.from_numpy(np.stack(steps, 1))


def _features(data: Windows, part: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values, calendar = data.at(data.part(part))
    now = values[:, WINDOW - 1 : WINDOW]
    x = torch.cat([now, values[:, : WINDOW - 1] - now, calendar[:, WINDOW - 1]], 1)
    return x.double().numpy(), (values[:, WINDOW:] - now).double().numpy()


# ---- what is aimed at, and the table -------------------------------------------------------------


def _beside(other: str, data: str, horizon: int) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        means = report.means(rows)
        ea, beside = (means.get((data, "chronological", horizon, m)) for m in ("ea-6", other))
        if ea is None or beside is None:
            raise LookupError(f"no runs of {other} on {data}")
        return ea["mae"][0] / beside["mae"][0]

    return value


def _promises() -> Iterator[Promise]:
    for data in SETTINGS:
        for horizon in (6, 12):
            of = f"{data}/{horizon}"
            yield Promise(f"{of}: MAE, EA-6 / SA", _beside("sa", data, horizon), 1.02)
            trees = _beside("lightgbm", data, horizon)
            yield Promise(f"{of}: MAE, EA-6 / LightGBM", trees, 1.05, 1.0)


PROMISES = tuple(_promises())


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The table, what was aimed at, and where it was measured."""
    for split in SPLITS:
        for error in ("mae", "rmse"):
            lines = list(report.lines(rows, split, error))
            if lines:
                # Eighty columns are few.
                heads = (name.replace("Traffic", "Traf.") for name in report.COLUMNS)
                out = show.table(f"{error.upper()}, {report.TITLES[split]}", *heads)
                for name, *cells in lines:
                    out.add_row(name.replace("'s", ""), *cells)
                console.print(out)
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
