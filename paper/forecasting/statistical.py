"""Statistical models of statsforecast, one series at a time and with a limit of time.

A model that takes too long cannot be interrupted from Python, so it runs in a process that can be
killed.
"""

import multiprocessing
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from paper.forecasting.ours import Array
from paper.forecasting.rolling import forward_fill

LAST = 500  # values that a model sees
SECONDS = 60.0  # for one series


class Forecasts(NamedTuple):
    """Forecasts of some series, their seconds, and how many of them failed."""

    values: list[Array]
    seconds: float
    failures: int = 0


def forecast_all(
    worker: "Worker", name: str, past: Sequence[Array], horizon: int, season: int
) -> Forecasts:
    """Forecast every series with a model of statsforecast.

    If a model raises, takes too long or forecasts no numbers, its forecast is replaced by the last
    season.
    """
    found, failures, began = [], 0, perf_counter()
    for values in past:
        y = forward_fill(values[-LAST:])
        forecast = worker.forecast(name, y, horizon, season)
        if forecast is None or not np.isfinite(forecast).all():
            failures += 1
            back = min(season, len(y))
            forecast = y[len(y) - back + np.arange(horizon) % back]
        found.append(forecast)
    return Forecasts(found, perf_counter() - began, failures)


class Worker:
    """A process that forecasts one series at a time; it is replaced when it exceeds its time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._start()

    def forecast(self, name: str, y: Array, horizon: int, season: int) -> Array | None:
        """Return a forecast, or None if the model failed."""
        self.connection.send((name, y, horizon, season))
        if self.connection.poll(self.seconds):
            try:
                answer: Array | None = self.connection.recv()
                return answer
            except EOFError:  # the model has crashed its process
                pass
        self._stop()
        self._start()
        return None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.connection.recv()  # the imports take time that no series should pay for
        except EOFError:
            raise RuntimeError("the process for statsforecast did not start") from None

    def _stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()


def _serve(connection: Connection) -> None:
    """Answer requests until the connection is closed."""
    from statsforecast import models

    warnings.simplefilter("ignore")
    connection.send("ready")
    while True:
        try:
            name, y, horizon, season = connection.recv()
        except EOFError:
            return
        try:
            forecast = getattr(models, name)(season_length=season).forecast(y=y, h=horizon)["mean"]
        except Exception:  # any failure of a model counts as one
            forecast = None
        connection.send(forecast)
