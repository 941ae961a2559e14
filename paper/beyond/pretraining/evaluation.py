"""Learning curves and zero-shot errors of the recipe with several mixers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import numpy as np

from eattn.timeseries.metrics import mase, seasonal_scale
from paper.beyond.pretraining.recipe import TOKENS
from paper.beyond.pretraining.training import GROUPS, Run, pretrain, save
from paper.forecasting import classics
from paper.forecasting.files import data_file
from paper.forecasting.plan import ZERO_SHOT
from paper.forecasting.plan import Plan as ForecastingPlan
from paper.harness.chart import Chart, lines
from paper.harness.pool import run_all
from paper.harness.runlog import Key, Row, RunLog, group
from paper.harness.table import Table

TITLE = "Pretraining"
SETS = ("m1", "m3", "tourism")
OURS = Run.mixer
LOSS = "loss / seasonal naive"


@dataclass(frozen=True)
class Plan:
    """Mixers to train, the options of their runs, and the folder of checkpoints and weights."""

    steps: int = Run.steps  # of the weights in the package
    mixers: tuple[str, ...] = (OURS, "sa", "gru", "linear-rnn")
    compared: int = 1000  # steps of each mixer
    precision: str = "float32"  # of these runs; few CPUs have instructions for bfloat16
    lr: float = Run.lr
    seed: int = Run.seed
    series: int = 0  # first series of a dataset; 0 for all
    folder: str = "build/pretraining"
    jobs: int | None = None  # runs side by side; one per core by default


def plan(quick: bool) -> Plan:
    """Return the full plan, or two mixers, a few steps and 20 series of each dataset."""
    if not quick:
        return Plan()
    folder = "build/pretraining-quick"
    return Plan(steps=30, mixers=(OURS, "gru"), compared=20, series=20, folder=folder)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Train and evaluate the missing mixers; an interrupted training continues."""
    data_file("forecasting")
    fixed = {"lr": plan.lr, "seed": plan.seed, "first": plan.series or None}
    compared = None if plan.precision == Run.precision else plan.precision
    runs = [(OURS, plan.steps, None), *((m, plan.compared, compared) for m in plan.mixers)]
    keys = [
        {"what": "recipe", "mixer": mixer, "steps": steps, "precision": precision} | fixed
        for mixer, steps, precision in runs
    ]
    yield from run_all(log, keys, partial(measure, folder=plan.folder), jobs=plan.jobs)


def measure(key: Key, folder: str) -> Row:
    """Train a model, and forecast without further training."""
    names = ("mixer", "steps", "precision", "lr", "seed")
    run = Run(**{name: key[name] for name in names if key[name] is not None})
    own = Path(folder) / f"{run.mixer}-{run.steps}"
    model, history = pretrain(run, own / "checkpoint")
    weights = own / "weights.safetensors"
    save(model, run, weights)
    points = [
        {"tokens": row.step * GROUPS * TOKENS, "loss": row.metrics["val_loss"]}
        for row in history.rows
    ]
    began = perf_counter()
    errors = zero_shot_errors(weights.resolve(), key["first"])
    return {
        "parameters": sum(p.numel() for p in model.full.parameters()),
        "seconds": history.seconds,
        "points": points,
        "errors": errors,
        "evaluation_seconds": perf_counter() - began,
    }


def zero_shot_errors(weights: Path, first: int | None) -> dict[str, float]:
    """Return MASE by dataset and frequency, relative to seasonal naive, of the split `dev`."""
    options = (f"pretrained={weights}",)
    made = ForecastingPlan(
        sets=SETS, models=(ZERO_SHOT,), split="dev", series=first or 0, options=options
    )
    return {
        f"{key['set']} {key['group']}": classics.measure(key)["mase"] / _naive(key)
        for key in classics.keys(made)
    }


def _naive(key: Key) -> float:
    """Return the mean MASE of the last season, repeated."""
    errors = [
        mase(y, np.resize(past[-group.season :], group.horizon), seasonal_scale(past, group.season))
        for group in classics.load(key["set"], key["group"], key["split"], key["first"])
        for past, y in zip(group.past, group.future, strict=True)
    ]
    return float(np.nanmean(errors))


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the loss, the error, the size and the time of each run, long and good ones first."""
    rows = sorted(rows, key=lambda row: (-row["steps"], _loss(row)))
    body = [
        [
            _name(row),
            f"{_loss(row):.4f}",
            f"{_error(row):.3f}",
            f"{row['parameters']:,}",
            f"{row['seconds'] / 3600:.1f}",
        ]
        for row in rows
    ]
    note = (
        f"Steps of {GROUPS * TOKENS:,} tokens, learning rate {rows[0]['lr']:g}, one thread;"
        f" {_precisions(rows)}. Hours were measured on shared machines. MASE: geometric mean over"
        " datasets and frequencies, zero-shot."
    )
    head = ["mixer", LOSS, "MASE / naive", "parameters", "training, hours"]
    yield Table("The same recipe with other mixers", head, body, [note])
    names = list(rows[0]["errors"])
    body = [[_name(row), *(f"{row['errors'][n]:.3f}" for n in names)] for row in rows]
    yield Table("Zero-shot MASE / naive before the test parts", ["mixer", *names], body)


def _name(row: Row) -> str:
    return f"{row['mixer']}, {row['steps']:,} steps"


def _precisions(rows: Sequence[Row]) -> str:
    found = {row["steps"]: row.get("precision", Run.precision) for row in rows}
    return ", ".join(f"{steps:,} steps in {precision}" for steps, precision in found.items())


def draw(rows: Sequence[Row]) -> Chart:
    """Draw the loss along the tokens read, a panel for each number of steps."""
    panels, options = [], dict[str, Any](zero=False, markers=False)
    for steps, own in group(rows, "steps").items():
        points: list[dict[str, Any]] = [
            {"series": row["mixer"], "x": point["tokens"] / 1e6, "y": point["loss"]}
            for row in own
            for point in row["points"]
        ]
        title = f"{steps:,} steps: loss of new synthetic series"
        panels.append(lines(title, points, x="tokens read, millions", y=LOSS, **options))
    return Chart(panels)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield mixers that have a lower loss or a lower error than ours after as many steps."""
    for steps, found in group(rows, "steps").items():
        own = {row["mixer"]: row for row in found}
        if OURS not in own:
            continue
        for name, value in ((LOSS, _loss), ("zero-shot MASE / naive", _error)):
            ours = value(own[OURS])
            better = [f"`{m}` {value(row):.4f}" for m, row in own.items() if value(row) < ours]
            if better:
                what = f"{name} after {steps:,} steps"
                yield f"Pretraining, {what}: {', '.join(better)}; `{OURS}` {ours:.4f}."


def _loss(row: Row) -> float:
    return float(row["points"][-1]["loss"])


def _error(row: Row) -> float:
    return geometric_mean(row["errors"].values())
