"""Language models of different mixers: bits per byte of held-out text, in a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from paper.report import plots, runs, table1
from paper.report.plots import Row
from paper.report.promises import promise_table, source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = ["bits per byte", "training, s", "tokens a second", "parameters"]
DASHES = {"": "-", ", no convolution": ":", ", learned positions": "-."}


def name(row: Row) -> str:
    """`ea-6`, `sa, no convolution`, `sa, learned positions`."""
    return row["mixer"] + _kind(row)


def _kind(row: Row) -> str:
    if row["positions"]:
        return ", learned positions"
    return "" if row["short_conv"] else ", no convolution"


def by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The runs of each model, a seed each."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["what"] == "run":
            found.setdefault(name(row), []).append(row)
    return found


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head without its first cell, and lines: the best first."""
    found = by_name(rows).items()
    lines = []
    for label, of in sorted(found, key=lambda pair: fmean(r["bits_per_byte"] for r in pair[1])):
        bits = [row["bits_per_byte"] for row in of]
        spread = f" ± {stdev(bits):.3f}" if len(bits) > 1 else ""
        seconds = fmean(row["seconds"] for row in of)
        rate = fmean(row["tokens"] / row["seconds"] for row in of)
        size = of[0]["parameters"]
        lines.append(
            [label, f"{fmean(bits):.3f}{spread}", f"{seconds:,.0f}", f"{rate:,.0f}", f"{size:,}"]
        )
    return HEAD, lines


def markdown(rows: Sequence[Row]) -> str:
    """The table, how it came about, and what must hold."""
    head, lines = table(rows)
    parts = ["| mixer | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    parts += ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([*parts, "", *_about(rows), promise_table(rows), "", source(rows[-1])])


def _about(rows: Sequence[Row]) -> list[str]:
    plan = rows[-1].get("config")
    if not plan:
        return []
    learnt, held_out = (plan["text"][part] for part in ("learnt", "held_out"))
    judged = min(plan["judged"], held_out["bytes"])
    seeds = f"{plan['seeds']} seed" + "s" * (plan["seeds"] > 1)
    return [
        f"{plan['layers']} blocks of {plan['hidden']} channels, {plan['steps']} steps of"
        f" {plan['batch_tokens']:,} bytes in rows of {plan['length']}, {seeds}, one thread;"
        f" {learnt['bytes'] / 1e6:.1f} MB in {learnt['documents']} documents to learn from,"
        f" {held_out['documents']} held out, judged by {judged:,} bytes from all over them. One"
        f" learning rate, {plan['lr']:g}, for all.",
        "",
    ]


# ---- the picture ---------------------------------------------------------------------------------


def redraw(path: Path) -> list[Path]:
    """lm.jsonl -> lm.png and lm.svg."""
    return plots.redraw(path, lambda rows: draw(runs.last_run(rows)))


def draw(rows: Sequence[Row]) -> "Figure":
    """Two panels: bits per byte against tokens, and against time."""
    figure = plots.new_figure(4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, rows, "tokens", 1e6)
    left.set(xlabel="tokens seen, millions", ylabel="bits per byte, held out")
    left.set_title("(a) After as many tokens")
    _panel(right, rows, "seconds", 60)
    right.set_xlabel("training, minutes on one thread")
    right.set_title("(b) After as much time")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, columnspacing=1.2)
    return figure


def _panel(axes: "Axes", rows: Sequence[Row], field: str, unit: float) -> None:
    """A line for each model: the mean over its seeds at each evaluation."""
    for label, of in by_name(rows).items():
        colour, _, marker = table1.LOOKS.get(of[0]["mixer"], (plots.GREY, "-", "o"))
        every = list(zip(*(row["points"] for row in of), strict=True))
        x = [fmean(point[field] for point in points) / unit for points in every]
        y = [fmean(point["bits_per_byte"] for point in points) for points in every]
        dash = DASHES[_kind(of[0])]
        axes.plot(x, y, dash, color=colour, marker=marker, markersize=3.5, label=label)
