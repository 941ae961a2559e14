"""Show a run: a progress bar on a terminal, lines in a log, scalars in TensorBoard."""

import os
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eattn._checks import need
from eattn.train.history import Row, RunState
from eattn.train.schedule import Schedule

REFRESH = 0.2  # seconds


class Logger(Protocol):
    """Receives every step and every row; closed when the run ends or fails."""

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None: ...

    def row(self, row: Row) -> None: ...

    def close(self) -> None: ...


class ConsoleLogger:
    """A progress bar on a terminal, or else a plain line per evaluation."""

    def __init__(self, console: Console, schedule: Schedule, state: RunState) -> None:
        self.console, self.schedule, self.loss, self.shown = console, schedule, "", 0.0
        self.first, self.start = state.step, time.monotonic()
        self.metrics = _metrics(state.rows[-1]) if state.rows else ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # no thread during the computation
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=schedule.steps, completed=self.first, figures="")
        self.bar.start()

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None:
        self.loss = f"loss {loss:.4f}"
        if time.monotonic() - self.shown >= REFRESH:
            self._show(step)

    def row(self, row: Row) -> None:
        self.metrics = _metrics(row)
        if self.console.is_terminal:
            self._show(row.step)
            return
        pace = (time.monotonic() - self.start) / (row.step - self.first)
        left = pace * (self.schedule.steps - row.step)
        line = (
            f"{self._epoch(row.step)} loss {row.loss:.4f}{self.metrics},"
            f" {row.seconds:.0f} s, {left:.0f} s left"
        )
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.bar.stop()

    def _show(self, step: int) -> None:
        self.shown = time.monotonic()
        figures = f"{self.loss}{self.metrics}"
        epoch = self._epoch(step)
        self.bar.update(self.task, completed=step, description=epoch, figures=figures, refresh=True)

    def _epoch(self, step: int) -> str:
        last = self.schedule.epoch(self.schedule.steps - 1)
        return f"epoch {self.schedule.epoch(step - 1) + 1}/{last + 1}"


class TensorBoard:
    """Scalars: loss, learning rate and gradient norm of each step, metrics of each row."""

    def __init__(self, folder: str | os.PathLike[str], state: RunState) -> None:
        need("tensorboard", extra="timeseries")
        from torch.utils.tensorboard import SummaryWriter

        # Drop the steps that an interrupted run logged after its last checkpoint.
        self.writer: Any = SummaryWriter(os.fspath(folder), purge_step=state.step + 1)

    def step(self, step: int, *, loss: float, lr: float, norm: float) -> None:
        for name, value in (("loss", loss), ("lr", lr), ("gradient_norm", norm)):
            self.writer.add_scalar(f"train/{name}", value, step)

    def row(self, row: Row) -> None:
        for name, value in row.metrics.items():
            self.writer.add_scalar(f"evaluation/{name}", value, row.step)

    def close(self) -> None:
        self.writer.close()


def make_loggers(progress: bool | Console, schedule: Schedule, state: RunState) -> list[Logger]:
    """Make the loggers that were asked for, starting at the step of the run."""
    found: list[Logger] = []
    if schedule.config.tensorboard is not None:
        found.append(TensorBoard(schedule.config.tensorboard, state))
    if progress is not False:
        console = Console(stderr=True) if progress is True else progress
        found.append(ConsoleLogger(console, schedule, state))
    return found


def _metrics(row: Row) -> str:
    return "".join(f", {name} {value:.4f}" for name, value in row.metrics.items())
