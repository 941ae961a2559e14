"""A training step of one BERT-base block with every mechanism."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper.report import block, plots, table1
from paper.report.html.section import Section, better
from paper.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(rows: Sequence[Row]) -> "Figure":
    """A panel of bars for each length."""
    steps = [row for row in rows if row["what"] == "step" and "p50" in row]
    lengths = sorted({row["L"] for row in steps})
    figure = plots.new_figure(4.6)
    for letter, axes, length in zip(
        "abcdef", figure.subplots(1, len(lengths), squeeze=False)[0], lengths, strict=False
    ):
        axes.set_title(f"({letter}) A training step, L = {length:,}")
        _bars(axes, [row for row in steps if row["L"] == length])
    return figure


def _bars(axes: "Axes", rows: Sequence[Row]) -> None:
    rows = sorted(rows, key=lambda row: float(row["p50"]))
    for place, row in enumerate(rows):
        colour, *_ = table1.LOOKS.get(row["mixer"], (plots.GREY,))
        axes.barh(place, row["p50"], 0.7, color=colour)
        text = f"{row['p50']:.2g} s" if row["p50"] < 10 else f"{row['p50']:.0f} s"
        where = (row["p50"], place)
        axes.annotate(text, where, xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(rows[0]["p50"] / 2, rows[-1]["p50"] * 3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("seconds, a logarithmic axis")
    axes.grid(visible=False, axis="y")


def _name(row: Row) -> str:
    return row["mixer"] + ", causal" * row["causal"]


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Mechanisms that are faster, or need less memory, than EA-6 in the same block."""
    steps = [row for row in rows if row["what"] == "step" and "p50" in row]
    ours = {(row["L"], row["causal"]): row for row in steps if row["mixer"] == "ea-6"}
    for row in steps:
        own = ours.get((row["L"], row["causal"]))
        if own is None or row["mixer"] == block.BASE or row["mixer"].startswith("ea-"):
            continue
        for field, what in (("p50", "is faster than"), ("peak_bytes", "needs less memory than")):
            if better(row[field], own[field]):
                ratio = own[field] / row[field]
                yield f"`{_name(row)}` {what} EA-6 at L = {row['L']:,}: by {ratio:.2f} ×."


SECTION = Section(
    key="block",
    title="A block of BERT-base",
    intro="A training step of one block (D = 768, float32, one sequence) with every mechanism in"
    " it; q+k+v is the block without attention, which nothing that mixes tokens can undercut.",
    command="eattn bench block --json results/block.jsonl",
    draw=draw,
    markdown=block.block_table,
    losses=losses,
    highlights={
        "L = 8192: SA / EA-6": "faster than softmax attention, a training step of a whole block of"
        " BERT-base at 8,192 tokens"
    },
)
