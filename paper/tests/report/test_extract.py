"""A matplotlib figure becomes panels: every kind of mark, where it is and what it says."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from matplotlib.axes import Axes

from paper.report import plots
from paper.report.html.extract import panels
from paper.report.html.labels import words
from paper.report.html.panel import Panel
from paper.report.html.svg import NARROW, draw


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with plots.style():
        yield


def panel(paint: Callable[[Axes], object]) -> Panel:
    """What is read of one axes."""
    figure = plots.new_figure(3)
    paint(figure.add_subplot())
    plots.settle(figure)
    (found,) = panels(figure)
    return found


def test_a_line_is_at_fractions_of_its_frame_and_says_its_values():
    def paint(axes: Axes) -> None:
        axes.plot([1, 10, 100], [0.5, 16384, 1], "--s", color=plots.BLUE, label="one")
        axes.set(xscale="log", xlim=(1, 100), ylim=(0, 16384), xlabel="x", ylabel="y", title="t")

    found = panel(paint)
    (mark,) = found.marks
    assert [point.at[0] for point in mark.points] == pytest.approx([0, 0.5, 1])
    assert mark.points[1].at[1] == pytest.approx(1)
    assert [(point.x, point.y) for point in mark.points] == [
        ("1", "0.5"),
        ("10", "16,384"),
        ("100", "1"),
    ]
    assert (mark.names, mark.colour, mark.dash, mark.marker) == (("one",), plots.BLUE, "--", "s")
    assert (found.title, found.x_label, found.y_label) == ("t", "x", "y")
    assert [tick.label for tick in found.x_ticks] == ["10⁰", "10¹", "10²"]


def test_a_missing_value_breaks_a_line():
    (mark,) = panel(lambda axes: axes.plot([0, 1, 2, 3], [1, np.nan, 2, 3], label="a")).marks
    assert [len(run) for run in mark.runs] == [1, 2]
    assert len(mark.points) == 3


def test_what_lies_outside_the_frame_cannot_be_read_off():
    def paint(axes: Axes) -> None:
        axes.plot([0, 1, 2], [0, 1, 2], label="a")
        axes.set_xlim(0, 1)

    (mark,) = panel(paint).marks
    assert [point.x for point in mark.points] == ["0", "1"]


def test_what_has_no_name_goes_with_those_of_its_colour():
    def paint(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=plots.BLUE, label="a")
        axes.plot([0, 1], [1, 0], color=plots.BLUE, label="b")
        axes.plot([0.5], [0.5], "o", color=plots.BLUE)
        axes.axhline(0, color=plots.BLACK)

    names = [mark.names for mark in panel(paint).marks]
    assert names == [("a",), ("b",), ("a", "b"), ()]


@pytest.mark.parametrize("way", ["bar", "barh"])
def test_bars_are_read_at_their_ends_and_by_their_category(way):
    def paint(axes: Axes) -> None:
        getattr(axes, way)([0, 1], [3.0, 5.0], color=plots.GREEN)
        set_ticks = axes.set_xticks if way == "bar" else axes.set_yticks
        set_ticks([0, 1], ["first", "second-2"])

    marks = panel(paint).marks
    assert [mark.kind for mark in marks] == ["bar", "bar"]
    assert [(p.x, p.y) for mark in marks for p in mark.points] == [
        ("first", "3"),
        ("second-2", "5"),
    ]


def test_error_bars_and_bands_belong_to_their_series():
    def paint(axes: Axes) -> None:
        axes.errorbar([0, 1], [1, 2], [0.1, 0.2], fmt="o", color=plots.SKY, label="mean")
        axes.fill_between([0, 1], [0, 1], [2, 3], color=plots.SKY, alpha=0.2)

    marks = panel(paint).marks
    assert {mark.names for mark in marks} == {("mean",)}
    assert {mark.kind for mark in marks} == {"line", "area"}
    assert panel(paint).named["mean"].marker == "o"


def test_panels_that_share_an_axis_all_have_its_ticks_and_label():
    figure = plots.new_figure(3)
    first, second = figure.subplots(1, 2, sharey=True)
    first.plot([0, 1], [0, 1])
    first.set_ylabel("seconds")
    second.plot([0, 1], [0, 1])
    plots.settle(figure)
    left, right = panels(figure)
    assert right.y_ticks == left.y_ticks != ()
    assert right.y_label == "seconds"


def test_an_image_gives_its_numbers_top_row_first():
    values = [[0.0, 1.0], [2.0, 3.0]]
    upper = panel(lambda axes: axes.imshow(values)).map
    lower = panel(lambda axes: axes.imshow(values, origin="lower")).map
    assert upper is not None
    assert lower is not None
    assert upper.values == ((0, 1), (2, 3))
    assert lower.values == ((2, 3), (0, 1))
    assert upper.png.startswith(b"\x89PNG")


def test_names_are_escaped_in_the_picture():
    source = draw(panel(lambda axes: axes.plot([0, 1], label="</script><b>")), NARROW, key="k")
    assert "<b>" not in source
    assert source.count("</script>") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(16384, "16,384"), (1234.5, "1234"), (0.0123456, "0.01235"), (-3.5, "−3.5"), (1e15, "1e+15")],
)
def test_numbers_are_short(value, text):
    assert words(value) == text
