"""Table 4: forecasting errors, ours beside the paper's."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper.report import plots, table1, table4
from paper.report.html.section import Section
from paper.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"lightgbm": plots.PURPLE, "persistence": plots.GREY}
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LEAST = 0.0005  # what three digits show


def draw(rows: Sequence[Row]) -> "Figure":
    """A panel for each split: mean error of ours, filled, beside the paper's, hollow."""
    splits = [
        name for name in table4.TITLES if any(of == name for _, of, _, _ in table4.means(rows))
    ]
    figure = plots.new_figure(1.0 + 3.6 * len(splits))
    for letter, axes, split in zip(
        "ab", figure.subplots(len(splits), squeeze=False)[:, 0], splits, strict=False
    ):
        axes.set_title(f"({letter}) MAE, {table4.TITLES[split]}")
        _errors(axes, rows, split)
        plots.legend_beside(axes)
    return figure


def _errors(axes: "Axes", rows: Sequence[Row], split: str) -> None:
    means = table4.means(rows)
    models = list(dict.fromkeys(model for _, of, _, model in means if of == split))
    step = 0.75 / max(1, len(models))
    for number, model in enumerate(models):
        shift = (number - (len(models) - 1) / 2) * step
        colour = COLOURS.get(model) or table1.LOOKS.get(model, (plots.BLACK,))[0]
        cells = enumerate(
            means.get((data, split, horizon, model)) for data, horizon in table4.CELLS
        )
        here = [(place, *cell["mae"]) for place, cell in cells if cell is not None]
        places, mean, spread, _ = zip(*here, strict=True)
        x = [place + shift for place in places]
        axes.errorbar(x, mean, spread, fmt="o", color=colour, markersize=5, label=model)
        if model in table4.PAPER:
            paper = [table4.PAPER[model][place][0] for place in places]
            hollow: dict[str, str] = {"linestyle": "", "marker": "D", "markerfacecolor": "none"}
            axes.plot(x, paper, color=colour, label=f"{model}, paper", **hollow)  # type: ignore[arg-type]
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{value:g}" for value in TICKS])
    axes.set_yticks([], minor=True)
    axes.set_xticks(range(len(table4.COLUMNS)), table4.COLUMNS)
    axes.set_xlim(-0.6, len(table4.COLUMNS) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("mean absolute error")


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Cells in which EA-6 is worse than another model, or than what the paper reports of it."""
    means = table4.means(rows)
    for (data, split, horizon, model), cell in means.items():
        ours = means.get((data, split, horizon, "ea-6"))
        if ours is None:
            continue
        mae, other = ours["mae"][0], cell["mae"][0]
        where = f"{data}/{horizon}, {table4.TITLES[split]}"
        if model == "ea-6":
            paper = table4.PAPER["ea-6"][table4.CELLS.index((data, horizon))][0]
            if mae >= paper + LEAST:
                yield f"{where}: MAE of EA-6 {mae:.3f}, the paper’s {paper:g}."
        elif mae >= other + LEAST:
            yield f"{where}: MAE of EA-6 {mae:.3f}, of {model} {other:.3f}."


SECTION = Section(
    key="table4",
    title="Table 4: forecasting",
    intro="Six values in, 6 and 12 steps ahead, token by token through the state; beside the"
    " mixers the last value again and gradient-boosted trees. Windows dealt out at random leak, as"
    " neighbours share rows; they are shown because the paper’s level on Traffic looks like it.",
    command="eattn reproduce table4",
    paper=("EA-2 falls behind; EA-6 is equal to SA or better in every cell.",),
    draw=draw,
    markdown=table4.markdown,
    losses=losses,
)
