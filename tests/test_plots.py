"""Plots of forecasts: labels, panels and reproducible bytes."""

import numpy as np
import pandas as pd
import pytest

from eattn.plots import plot_forecast as plot
from eattn.timeseries import EAForecaster

DAYS = pd.date_range("2024-01-01", periods=10, freq="D")


def frames(names: list[str], columns: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    past = pd.concat(
        pd.DataFrame({"unique_id": name, "ds": DAYS[:6], "y": [1.0, 2, None, 4, 5, None]})
        for name in names
    )
    ahead = pd.concat(
        pd.DataFrame({"unique_id": name, "ds": DAYS[6:]} | dict.fromkeys(columns, 3.0))
        for name in names
    )
    return past, ahead


@pytest.mark.parametrize(
    ("quantiles", "labels"),
    [
        ([], []),
        (["2.5", "50", "97.5"], ["2.5 to 97.5 %", "50 %"]),
        (["90"], ["90 %"]),
        (["5", "10", "20", "80", "90"], ["5 %", "10 to 90 %", "20 to 80 %"]),
    ],
)
def test_plot_labels_every_line_and_band(tmp_path, quantiles, labels):
    past, ahead = frames(["sales"], ["Model", *(f"Model-q{q}" for q in quantiles)])
    plot(past, ahead, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("sales", "history", "forecast", *labels))


def test_same_frames_give_the_same_bytes(tmp_path):
    pictures = []
    for name in ("a.png", "b.png"):
        plot(*frames(["a", "b"], ["Model"]), tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith(b"\x89PNG")


def test_plot_is_limited_to_six_series(tmp_path):
    plot(*frames(list("abcdefgh"), ["Model"]), tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "The first 6 of 8 series" in text


def test_other_file_types_raise(tmp_path):
    with pytest.raises(ValueError, match=r"a \.png or \.svg file, got .*plot\.pdf"):
        plot(*frames(["a"], ["Model"]), tmp_path / "plot.pdf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["10s", "7min", "h", "2h", "5h", "D", "4D", "W", "MS", "QS", "YS"])
@pytest.mark.parametrize("count", [7, 50, 103])
def test_dates_of_any_step_get_some_ticks(step, count):
    times = pd.date_range("2024-01-01", periods=count + 4, freq=step)
    past = pd.DataFrame({"unique_id": "a", "ds": times[:count], "y": 1.0})
    ahead = pd.DataFrame({"unique_id": "a", "ds": times[count:], "Model": 1.0})
    [axes] = plot(past, ahead).axes  # matplotlib warns if it finds no ticks
    assert 2 <= len(axes.get_xticks()) <= 9


def labels(figure) -> list[str]:
    [legend] = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    return [text.get_text() for text in legend.get_texts()]


def test_anomalies_are_marked():
    past, ahead = frames(["a", "b"], ["Model"])
    figure = plot(past, ahead, anomalies=past[past["unique_id"] == "a"].iloc[[1, 3]])
    assert labels(figure) == ["history", "forecast", "anomaly"]
    circles = [[line for line in axes.lines if line.get_marker() == "o"] for axes in figure.axes]
    assert [len(lines) for lines in circles] == [1, 0]
    assert circles[0][0].get_ydata().tolist() == [2, 4]


def test_notebooks_show_the_figure_without_pyplot():
    figure = plot(*frames(["a"], ["Model"]))
    assert figure._repr_png_().startswith(b"\x89PNG")


# ---- EAForecaster.plot ----

HOURS = pd.date_range("2024-01-01", periods=90, freq="h")
FAN = ["10 to 90 %", "20 to 80 %", "30 to 70 %", "40 to 60 %"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    waves = {name: 5 + np.sin(np.arange(90) / 4 + i) for i, name in enumerate("ab")}
    parts = [pd.DataFrame({"shop": name, "t": HOURS, "z": y}) for name, y in waves.items()]
    both = pd.concat(parts, ignore_index=True)
    both.loc[(both["shop"] == "b") & (both["t"] == HOURS[85]), "z"] = 99.0
    return both


@pytest.fixture
def model(table) -> EAForecaster:
    columns = dict(id_col="shop", time_col="t", target_col="z")
    model = EAForecaster(3, pretrained=None, dim=8, depth=1, epochs=1, random_state=0)
    return model.fit(table[table["t"] < HOURS[80]], **columns)


def history(figure) -> list[tuple[list[pd.Timestamp], list[float]]]:
    """Return the times and values of the history in each panel."""
    lines = [axes.lines[0] for axes in figure.axes]
    return [([*map(pd.Timestamp, x.get_xdata())], x.get_ydata().tolist()) for x in lines]


def test_forecaster_plots_history_and_all_quantiles(model, table, tmp_path):
    assert labels(model.plot()) == ["history", *FAN, "forecast"]
    figure = model.plot(tmp_path / "plot.svg", ids=["b"])
    assert [axes.get_title("left") for axes in figure.axes] == ["b"]
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert all(word in text for word in FAN)
    [(times, values)] = history(figure)
    assert times == [*HOURS[32:80]]
    np.testing.assert_allclose(values, table[table["shop"] == "b"]["z"][32:80])
    forecast = figure.axes[0].lines[-1].get_ydata()
    own = model.predict()
    np.testing.assert_allclose(forecast[1:], own[own["shop"] == "b"]["EAForecaster"])


def test_forecaster_plots_new_rows_and_their_anomalies(model, table):
    scores = model.update(table[table["t"] >= HOURS[80]], return_scores=True)
    figure = model.plot(scores=scores, history=20, horizon=5)
    for name, (times, values) in zip("ab", history(figure), strict=True):
        assert times == [*HOURS[70:]]
        np.testing.assert_allclose(values, table[table["shop"] == name]["z"][70:])
    circles = [line for line in figure.axes[1].lines if line.get_marker() == "o"]
    assert HOURS[85] in pd.DatetimeIndex(circles[0].get_xdata())
    assert labels(model.plot(scores=scores, threshold=2)) == ["history", *FAN, "forecast"]
    with pytest.raises(ValueError, match="scores must have a column 'score'"):
        model.plot(scores=table)


def test_loaded_forecaster_plots_the_values_of_its_states(model, table, tmp_path):
    model.save(tmp_path / "model")
    [(times, values), _] = history(EAForecaster.load(tmp_path / "model").plot())
    assert times == [*HOURS[80 - len(times) : 80]]
    assert len(times) > 3
    np.testing.assert_allclose(values, table["z"][80 - len(times) : 80])


def test_invalid_arguments_of_a_plot_raise(model, tmp_path):
    with pytest.raises(ValueError, match=r"a \.png or \.svg file, got .*plot\.pdf"):
        model.plot(tmp_path / "plot.pdf")
    with pytest.raises(ValueError, match="unknown series 'c'; known series are 'a', 'b'"):
        model.plot(ids=["c"])
    with pytest.raises(ValueError, match="history must be at least 1"):
        model.plot(history=0)
