"""Small datasets in the formats of the data folder, and a forecaster that trains in a second."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper.forecasting.gift import PUBLISHED, TASKS

OPTIONS = ("dim=8", "depth=1", "epochs=1")
needs_data = pytest.mark.skipif(
    not Path(os.environ.get("EATTN_DATA", ""), "forecasting", "gift_eval_results.csv").is_file(),
    reason="needs the datasets: EATTN_DATA must contain forecasting/ and anomaly/",
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def wave(rows: int, season: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.1, rows)
    return 3 + np.sin(2 * np.pi * np.arange(rows) / season) + noise


def write_gift(folder: Path) -> None:
    """Write two columns of ETTm1 (30 weeks), three series of hospital, and published scores."""
    rows = 30 * 672
    times = pd.date_range("2016-07-01", periods=rows, freq="15min", name="date")
    columns = {"HUFL": wave(rows, 96), "OT": wave(rows, 96, 1)}
    write(folder / "ETTm1" / "ETTm1.csv.gz", pd.DataFrame(columns, times).to_csv())
    months = pd.Index([f"{2000 + n // 12}-{n % 12 + 1:02}" for n in range(84)], name="month")
    columns = {f"T{n}": np.round(20 * wave(84, 12, n)).astype(int) for n in range(3)}
    write(folder / "hospital" / "hospital.csv.gz", pd.DataFrame(columns, months).to_csv())
    lines = [
        f"{model},{task},{1 + number / 10},{0.1 + number / 100}\n"
        for number, model in enumerate(PUBLISHED)
        for task in TASKS
    ]
    write(folder / "gift_eval_results.csv", "model,task,MASE,CRPS\n" + "".join(lines))


def write_classics(folder: Path) -> None:
    """Write six waves and two constant series of m3, and two files of `classics`."""
    for part, span in (("train", slice(0, 40)), ("test", slice(40, 48))):
        lines = []
        for n in range(6):
            cells = ",".join(f"{value:.4f}" for value in wave(48, 4, n)[span])
            lines.append(f"N{n},quarterly,MICRO,8,{cells}\n")
        constant = ",".join(["5"] * (span.stop - span.start))
        lines += [f"C,quarterly,MICRO,8,{constant}\n", f"Y,yearly,MICRO,8,{constant}\n"]
        write(folder / "m3" / f"m3-{part}.csv.gz", "".join(lines))
    monthly = "".join(f"{n + 1},{1949 + n / 12:.6f},{v}\n" for n, v in enumerate(wave(96, 12)))
    write(folder / "classics" / "AirPassengers.csv.gz", "rownames,time,value\n" + monthly)
    yearly = "".join(f"{1871 + n},{v}\n" for n, v in enumerate(["", *wave(60, 11)]))
    write(folder / "classics" / "Nile.csv.gz", "time,value\n" + yearly)


def write_loads(folder: Path) -> None:
    """Write 70 days of two zones, and of demand that follows the temperature."""
    zones = [f"{n},8766,2004,{','.join(map(str, wave(70 * 24, 24, n)))}\n" for n in (1, 2)]
    zones[0] = zones[0].replace(zones[0].split(",")[200], "NA")
    write(folder / "gefcom2012_load" / "gefcom2012_load.csv.gz", "".join(zones))
    times = pd.date_range("2012-03-01 13:00", periods=70 * 48, freq="30min")
    temperature = 20 + 5 * np.random.default_rng(0).normal(size=70).repeat(48)
    frame = pd.DataFrame({"time_utc": times, "demand": wave(70 * 48, 48) + temperature / 5})
    frame = frame.assign(temperature=temperature, holiday=0)
    write(folder / "vic_elec" / "vic_elec.csv.gz", frame.to_csv(index=False))


def write_nab(folder: Path) -> None:
    """Write three files of 240 rows, in one of them a jump, and the scoreboard."""
    labels = {}
    for name in ("artificialNoAnomaly/flat.csv", "realTweets/jump.csv", "realKnownCause/jump.csv"):
        times = pd.date_range("2014-04-01", periods=240, freq="h").astype(str)
        values = np.full(240, 4.0) if "flat" in name else wave(240, 24)
        if "jump" in name:
            values[150] += 50
        frame = pd.DataFrame({"timestamp": times, "value": values})
        write(folder / "data" / f"{name}.gz", frame.to_csv(index=False))
        window = [[f"{times[148]}.000000", f"{times[158]}.000000"]]
        labels[name] = window if "jump" in name else []
    write(folder / "labels" / "combined_windows.json", json.dumps(labels))
    board = "detector,standard,reward_low_FP,reward_low_FN\nPerfect,100.0,100.0,100.0\n"
    board += "Numenta HTM,70.5-69.7,62.6-61.7,75.2-74.2\nRandom,11.0,1.2,19.5\n"
    write(folder / "scoreboard.csv", board)


def write_all(folder: Path) -> None:
    """Write all datasets into a data folder."""
    for part in (write_gift, write_classics, write_loads):
        part(folder / "forecasting")
    write_nab(folder / "anomaly" / "NAB")
