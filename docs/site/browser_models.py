"""Models and examples of the page "In the browser": exported steps that share their weights.

Usage: python docs/site/browser_models.py FOLDER. The folder gets `models.json`, a graph for each
combination of season lengths, `weights.bin` with the tensors that graphs have in common, and
examples as CSV files. All random numbers have fixed seeds.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn import export
from eattn.timeseries import EAForecaster
from eattn.timeseries.anomalies import DIGITS, LARGEST, LEVEL, RECENT, USUAL, WARMUP, WEIGHT
from eattn.timeseries.calendar import usual_seasons
from eattn.timeseries.calibration import LARGEST as LARGEST_FACTOR
from eattn.timeseries.calibration import RATE
from eattn.timeseries.predictor import TURN

HORIZON = 24
FREQUENCIES = (1, "QS", "B", "D", "MS", "W", "s", "min", "h", "30min", "15min", "10min", "5min")
SHARED = 1024  # bytes: larger tensors are stored in weights.bin
WEIGHTS, INDEX = "weights.bin", "models.json"


def forecaster(seasons: Sequence[int]) -> EAForecaster:
    """Return the forecaster of the page for series with these season lengths.

    It is pretrained; the series that it reads here only has to be long enough for its seasons.
    """
    model = EAForecaster(HORIZON, season_length=seasons, fallback=False, validation_fraction=0)
    return model.fit(np.random.default_rng(0).normal(size=2 * max(seasons, default=8)))


def _noise(rng: np.random.Generator, length: int, memory: float) -> NDArray[np.float64]:
    """Return noise around a random walk that returns to 0."""
    walk, noise = 0.0, rng.normal(size=(length, 2))
    values = np.empty(length)
    for i, (step, own) in enumerate(noise):
        walk = 0.97 * walk + 0.3 * memory * step
        values[i] = walk + rng.uniform(0.3, 0.5) * own
    return values


def season_lengths() -> list[tuple[int, ...]]:
    """Return the season lengths of all frequencies of the page."""
    return [usual_seasons(freq) for freq in FREQUENCIES]


def write(folder: Path, models: Iterable[EAForecaster]) -> None:
    """Write the graphs of forecasters, their shared weights and `models.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, shared = bytearray(), dict[bytes, int]()
    index = [_write_graph(folder, model, weights, shared) for model in models]
    (folder / WEIGHTS).write_bytes(weights)
    constants = {
        "turn": TURN,
        "rate": RATE,
        "largestFactor": LARGEST_FACTOR,
        "recent": RECENT,
        "usual": USUAL,
        "levelRate": LEVEL,
        "weight": WEIGHT,
        "warmup": WARMUP,
        "largest": LARGEST,
        "digits": DIGITS,
    }
    text = json.dumps({"weights": WEIGHTS, "constants": constants, "models": index})
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _write_graph(
    folder: Path, model: EAForecaster, weights: bytearray, shared: dict[bytes, int]
) -> dict[str, Any]:
    """Write one graph and return its entry in `models.json`.

    The page adapts the calibration to the stream, so the graph returns quantiles without it.
    """

    calibration, own = model.predictor_.calibration, model.candidates_[0]
    try:
        raw = replace(own, factors=calibration.initial())
        model.candidates_ = (raw, *model.candidates_[1:])
        graph = export.step(model)
    finally:
        model.candidates_ = (own, *model.candidates_[1:])
    proto = graph.onnx().model_proto
    for tensor in proto.graph.initializer:
        _share(tensor, weights, shared)
    seasons = model.predictor_.seasons
    name = "-".join(["step", *map(str, seasons)]) + ".onnx"
    (folder / name).write_bytes(proto.SerializeToString())
    return {
        "seasons": seasons,
        "file": name,
        "horizon": calibration.horizon,
        "levels": calibration.levels,
        "steps": calibration.steps.tolist(),
        "factors": own.factors.tolist(),
        "state": [
            {
                "name": port.name,
                "dtype": str(port.dtype).removeprefix("torch."),
                "shape": [1, *port.shape[1:]],
                "start": "inf" if port.start == np.inf else port.start,
            }
            for port in graph.state
        ],
    }


def _share(tensor: Any, weights: bytearray, shared: dict[bytes, int]) -> None:
    """Move the content of a large tensor to the end of the weights, unless they contain it."""
    import onnx

    content = onnx.numpy_helper.to_array(tensor).tobytes()
    if len(content) < SHARED:
        return
    digest = hashlib.sha256(content).digest()
    if digest not in shared:
        weights.extend(bytes(-len(weights) % 64))  # tensors must be aligned
        shared[digest] = len(weights)
        weights.extend(content)
    tensor.raw_data = content
    onnx.external_data_helper.set_external_data(
        tensor, WEIGHTS, offset=shared[digest], length=len(content)
    )
    tensor.ClearField("raw_data")
    for field in ("float_data", "double_data", "int64_data"):
        tensor.ClearField(field)


def write_examples(folder: Path) -> None:
    """Write simulated series as CSV files."""
    rng = np.random.default_rng(7)
    hours = pd.date_range("2026-01-05", periods=2016, freq="h")
    t = np.arange(len(hours))
    day, week = np.sin(2 * np.pi * (t - 7) / 24), np.where(t // 24 % 7 < 5, 1.0, 0.45)
    load = 62 + 18 * week * np.maximum(day, -0.4) + 6 * np.cos(2 * np.pi * t / 2016)
    load += _noise(rng, len(t), memory=0.8) * 1.6
    load[700] += 45  # a faulty reading
    load[1180:1192] = load[1179]  # a sensor that hangs
    load[1600:1606] -= 30  # an outage
    _write_csv(folder / "heat.csv", hours, "heat_kW", load.round(2))

    days = pd.date_range("2024-01-01", periods=1000, freq="D")
    t = np.arange(len(days))
    usual = (320 + 0.12 * t) * np.array([0.9, 0.85, 0.9, 1.0, 1.25, 1.5, 0.6])[t % 7]
    visits = rng.poisson(usual * np.exp(0.06 * rng.normal(size=len(t)))).astype(float)
    visits[400:404] = (2.2 * visits[400:404]).round()  # a campaign
    visits[655] = 12  # a closed day
    visits[300:303] = np.nan
    _write_csv(folder / "visits.csv", days, "visits", visits)

    minutes = pd.date_range("2026-03-02", periods=8640, freq="5min")
    t = np.arange(len(minutes))
    rate = 900 + 500 * np.sin(2 * np.pi * (t - 96) / 288) + 120 * np.sin(2 * np.pi * t / 144)
    requests = rate * np.exp(0.08 * _noise(rng, len(t), memory=0.5))
    requests[5200:5212] *= 0.15  # an outage
    requests[7001] *= 4
    _write_csv(folder / "requests.csv", minutes, "requests", requests.round(1))


def _write_csv(path: Path, times: pd.DatetimeIndex, name: str, values: Any) -> None:
    table = pd.DataFrame({"time": times, name: values})
    exact = "%Y-%m-%d" if (times == times.normalize()).all() else "%Y-%m-%d %H:%M"
    table.to_csv(path, index=False, date_format=exact, float_format="%g", lineterminator="\n")


def main(folder: Path) -> None:
    write(folder, map(forecaster, season_lengths()))
    write_examples(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
