"""Plots of forecasts: labels, panels and reproducible bytes."""

import pandas as pd
import pytest

from eattn.plots import plot_forecast as plot

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
    [([], []), (["2.5", "50", "97.5"], ["2.5 to 97.5 %", "50 %"]), (["90"], ["90 %"])],
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
