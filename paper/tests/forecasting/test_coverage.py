"""Coverage: values are compared with the intervals that were forecast before them."""

import numpy as np
import pytest
from forecasting_helpers import OPTIONS

from paper.forecasting import coverage
from paper.forecasting.plan import Plan


def test_intervals_are_compared_with_the_values_they_forecast():
    values = np.array([[1.0, 2.0, 3.0, 4.0]])
    low = np.array([[1.0, 2.5], [2.0, 3.5], [0.0, 0.0]])[:, None, None]
    bounds = np.concatenate([low, low + 0.4], 2)
    found = coverage.contained(values, bounds)
    assert found[:, 0].tolist() == [[1, 0], [1, 0], [0, 0]]


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("split", [None, "dev"])
def test_a_stream_is_forecast_before_every_row(split, monkeypatch):
    monkeypatch.setattr(coverage, "HORIZON", 3)
    key = {"stream": "ett1/D", "rows": 10, "split": split, "first": None, "options": OPTIONS}
    row = coverage.measure(key)
    assert len(row["by_step"]) == 3 and len(row["by_series"]) == 2
    assert row["coverage"] == pytest.approx(np.mean(row["by_step"]))
    assert 0 < row["coverage"] <= 1
    assert row["fit_seconds"] > row["seconds_per_row"] > 0


def run(stream: str, covered: float):
    row = {"what": "coverage", "stream": stream, "coverage": covered, "by_step": [covered] * 12}
    return row | {"by_series": [0.7, 0.9], "seconds_per_row": 2e-3, "fit_seconds": 1.0}


def test_targets_need_all_streams():
    rows = [run(stream, 0.79 + n / 50) for n, stream in enumerate(Plan.streams)]
    lowest, highest = coverage.TARGETS
    assert (lowest.value(rows), highest.value(rows)) == (0.79, pytest.approx(0.85))
    with pytest.raises(LookupError, match="streams without rows: ett1/15T"):
        lowest.value(rows[1:])
    assert list(coverage.losses(rows)) == ["ett2/H: the 80 % interval covers 85 %."]
    (table,) = coverage.tables(rows)
    assert table.lines[0] == ["ett1/15T", *["79 %"] * 4, "70 % – 90 %", "2 ms"]
    with pytest.raises(ValueError, match=r"streams must be of .*, got 'ett1'"):
        list(coverage.keys(Plan(streams=("ett1",))))
