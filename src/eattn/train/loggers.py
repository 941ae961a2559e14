"""What can be seen of a run while it goes on: a bar, lines, TensorBoard."""

import os
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eattn.train.history import Row, Standing
from eattn.train.schedule import Plan

REFRESH = 0.2  # seconds


class View(Protocol):
    """Told of every step and every row, and closed at the end, whatever it is."""

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None: ...

    def row(self, row: Row) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A bar on a terminal: epoch, loss, the last metrics, the time gone and the time left."""

    def __init__(self, console: Console, plan: Plan, standing: Standing) -> None:
        self.plan, self.loss, self.shown = plan, "", 0.0
        self.metrics = _metrics(standing.rows[-1]) if standing.rows else ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # no thread of its own beside the work
        )
        self.bar.start()
        self.task = self.bar.add_task(
            _epoch(plan, standing.step), total=plan.steps, completed=standing.step, figures=""
        )

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None:
        self.loss = f"loss {loss:.4f}"
        now = time.monotonic()
        refresh = now - self.shown >= REFRESH
        self.shown = now if refresh else self.shown
        self._show(step, refresh)

    def row(self, row: Row) -> None:
        self.metrics = _metrics(row)
        self._show(row.step, True)

    def close(self) -> None:
        self.bar.refresh()
        self.bar.stop()

    def _show(self, step: int, refresh: bool) -> None:
        self.bar.update(
            self.task,
            completed=step,
            description=_epoch(self.plan, step - 1),
            figures=f"{self.loss}{self.metrics}",
            refresh=refresh,
        )


class Lines:
    """A plain line for each evaluation, where there is no terminal: for logs."""

    def __init__(self, console: Console, plan: Plan, standing: Standing) -> None:
        self.console, self.plan = console, plan
        self.first, self.start = standing.step, time.monotonic()

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None:
        pass

    def row(self, row: Row) -> None:
        pace = (time.monotonic() - self.start) / (row.step - self.first)
        left = pace * (self.plan.steps - row.step)
        figures = f"loss {row.loss:.4f}{_metrics(row)}"
        line = (
            f"{_epoch(self.plan, row.step - 1)} {figures}, {row.seconds:.0f} s, {left:.0f} s left"
        )
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


class Board:
    """TensorBoard's scalars: loss, lr and gradient norm of each step, metrics of each row."""

    def __init__(self, folder: str | os.PathLike[str], standing: Standing) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                'tensorboard needs the package tensorboard: pip install "eattn[timeseries]"'
            ) from error
        # What a killed run wrote after its last checkpoint comes again.
        self.writer: Any = SummaryWriter(os.fspath(folder), purge_step=standing.step + 1)

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None:
        for name, value in (("loss", loss), ("lr", lr), ("gradient_norm", norm)):
            self.writer.add_scalar(f"train/{name}", value, step)

    def row(self, row: Row) -> None:
        for name, value in row.metrics.items():
            self.writer.add_scalar(f"evaluation/{name}", value, row.step)

    def close(self) -> None:
        self.writer.close()


def views(progress: bool | Console, plan: Plan, standing: Standing) -> list[View]:
    """Those that were asked for, at the place where the run stands."""
    found: list[View] = []
    if plan.config.tensorboard is not None:
        found.append(Board(plan.config.tensorboard, standing))
    if progress is not False:
        console = Console(stderr=True) if progress is True else progress
        found.append((Bar if console.is_terminal else Lines)(console, plan, standing))
    return found


def _epoch(plan: Plan, step: int) -> str:
    return f"epoch {plan.epoch(step) + 1}/{plan.epoch(plan.steps - 1) + 1}"


def _metrics(row: Row) -> str:
    return "".join(f", {name} {value:.4f}" for name, value in row.metrics.items())
