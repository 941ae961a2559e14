"""Figure 1 from its rows: q and k to scores to weights to y for one channel, and the spikiness."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper.report import plots
from paper.report.plots import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpecBase
    from matplotlib.image import AxesImage

COLOURS = {
    "SA": plots.GREEN,
    "LA": plots.PURPLE,
    "EA": plots.BLACK,
    "EA-6": plots.BLUE,
    "EA-2": plots.VERMILLION,
    "EA-0": plots.GREY,
}
CAPTION = (
    "One sequence of {L} tokens: a smooth random signal through random projections "
    "to {D} channels, q and k scaled to\n"
    "standard deviation σ, which is {sigma:g} in (a) to (f). Channel {channel} "
    "has the median error of EA-6. Misplaced: weight on\n"
    "other keys than in EA. SA and LA: one head of {D} channels, SA scaled by 1/√{D}. "
    "EA-0: e^(−k²) alone, q ignored."
)


def redraw(path: Path) -> list[Path]:
    """fig1.jsonl -> fig1.png and fig1.svg."""
    return plots.redraw(path, draw)


def draw(rows: Sequence[Row]) -> "Figure":
    """Inputs and scores, weights, outputs, and the entropies: a row of panels each."""
    given = next(row for row in rows if row["what"] == "inputs")
    scores = next(row for row in rows if row["what"] == "scores")
    weights = {row["who"]: row for row in rows if row["what"] == "weights"}
    figure = plots.new_figure(11)
    grid = figure.add_gridspec(4, height_ratios=[1.3, 1.45, 1, 1.1])
    top = grid[0].subgridspec(1, 2, width_ratios=[2, 1])
    inputs(figure.add_subplot(top[0]), given)
    right = figure.add_subplot(top[1])
    image = heat(right, scores["o"], "(b) Scores o = −(q − k)²", cmap="cividis")
    figure.colorbar(image, ax=right)
    weight_maps(figure, grid[1].subgridspec(1, len(weights)), weights)
    outputs(figure.add_subplot(grid[2]), given["v"], weights)
    found = [row for row in rows if row["what"] == "entropy"]
    entropies(figure.add_subplot(grid[3]), found, given)
    figure.supxlabel(CAPTION.format(**given), x=0.01, ha="left", fontsize=9)
    return figure


def inputs(axes: "Axes", row: Row) -> None:
    """q and k of the channel over the tokens."""
    axes.set_title(f"(a) Queries and keys of channel {row['channel']}, σ = {row['sigma']:g}")
    axes.plot(row["q"], color=plots.GREEN, label="q")
    axes.plot(row["k"], "--", color=plots.PURPLE, label="k")
    axes.set(xlabel="token", xlim=(0, len(row["q"]) - 1))
    plots.legend_beside(axes)


def weight_maps(figure: "Figure", places: "GridSpecBase", weights: dict[str, Row]) -> None:
    """The weights of every form, in the same colours."""
    panels = [figure.add_subplot(places[number]) for number in range(len(weights))]
    top = max(max(map(max, row["weights"])) for row in weights.values())
    for letter, axes, (name, row) in zip("cde", panels, weights.items(), strict=True):
        title = f"({letter}) {name} misplaces {plots.percent(row['misplaced'])}"
        if name == "EA":
            title = f"({letter}) Weights of EA, softmax(o)"
        image = heat(axes, row["weights"], title, cmap="viridis", vmin=0, vmax=top)
        axes.label_outer(remove_inner_ticks=True)
    figure.colorbar(image, ax=panels)


def heat(axes: "Axes", values: list[list[float]], title: str, **options: Any) -> "AxesImage":
    """A map of [query, key]."""
    axes.set_title(title)
    axes.set(xlabel="key j", ylabel="query i")
    axes.grid(visible=False)
    return axes.imshow(values, interpolation="nearest", aspect="auto", **options)


def outputs(axes: "Axes", v: list[float], weights: dict[str, Row]) -> None:
    """y of every form over the tokens, with the values it averages."""
    axes.set_title("(f) Output y, the weighted mean of v")
    axes.plot(v, **plots.UNDER, label="v")
    for name, row in weights.items():
        wide = 3.5 if name == "EA" else 1.8  # to be seen where the others lie on it
        axes.plot(row["y"], color=COLOURS[name], linewidth=wide, label=f"y of {name}")
    axes.set(xlabel="token", xlim=(0, len(v) - 1))
    plots.legend_beside(axes)


def entropies(axes: "Axes", rows: Sequence[Row], given: Row) -> None:
    """Bars that hang from 1, where all keys weigh the same: the longer, the spikier."""
    sigmas = sorted({row["sigma"] for row in rows})
    names = list(dict.fromkeys(row["who"] for row in rows))
    width = 0.86 / len(names)
    note: dict[str, Any] = dict(ha="center", va="top", fontsize=9, textcoords="offset points")
    for row in rows:
        number = names.index(row["who"])
        place = sigmas.index(row["sigma"]) + (number - (len(names) - 1) / 2) * width
        label = row["who"] if row["sigma"] == sigmas[0] else None
        colour = COLOURS[row["who"]]
        axes.bar(place, row["entropy"] - 1, 0.88 * width, 1, color=colour, label=label)
        axes.annotate(f"{row['entropy']:.2f}", (place, row["entropy"]), xytext=(0, -3), **note)
    ranked = sorted((row for row in rows if row["sigma"] == given["sigma"]), key=_entropy)
    order = ", ".join(row["who"] for row in ranked)
    axes.set_title(f"(g) Entropy of the weights; spikiest first at σ = {given['sigma']:g}: {order}")
    least = min(map(_entropy, rows))
    axes.set(ylabel="entropy, 1 = uniform", ylim=(least - 0.12 * (1 - least), 1))
    axes.set_xticks(range(len(sigmas)), [f"σ = {sigma:g}" for sigma in sigmas])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    plots.legend_beside(axes)


def _entropy(row: Row) -> float:
    return float(row["entropy"])
