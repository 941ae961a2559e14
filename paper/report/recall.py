"""Associative recall: accuracy by the number of pairs, in a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from paper.report import plots, runs, table1
from paper.report.plots import Row
from paper.report.promises import promise_table, source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GUESS = "any value of the case"  # which a model learns first


def chosen(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By mixer, the runs with its better learning rate on validation, a seed each."""
    found: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        if row["what"] == "run":
            found.setdefault(row["mixer"], {}).setdefault(row["lr"], []).append(row)
    return {
        mixer: max(by_lr.values(), key=lambda of: fmean(row["validation"] for row in of))
        for mixer, by_lr in found.items()
    }


def accuracies(of: Sequence[Row]) -> dict[int, float]:
    """Mean over seeds, by the number of pairs."""
    return {int(pairs): fmean(row["accuracy"][pairs] for row in of) for pairs in of[0]["accuracy"]}


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head without its first cell, a line for each mixer, and what guessing gives."""
    of = chosen(rows)
    pairs = sorted({int(p) for runs in of.values() for p in runs[0]["accuracy"]})
    lines = []
    for mixer, found in of.items():
        cells = [f"{accuracies(found)[p]:.3f}" for p in pairs]
        held, size = found[0]["state_bytes"], found[0]["parameters"]
        cells += [f"{found[0]['lr']:g}", f"{held:,}", f"{size:,}"]
        lines.append([mixer, *cells])
    lines.append([GUESS, *(f"{1 / p:.3f}" for p in pairs), "", "", ""])
    head = [f"{p} pairs" for p in pairs]
    return [*head, "lr", "state, bytes", "parameters"], lines


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
    seeds = f"{plan['seeds']} seed" + "s" * (plan["seeds"] > 1)
    return [
        f"{plan['layers']} blocks of {plan['hidden']} channels with a short convolution, sa and la"
        f" with {plan['heads']} head{'s' * (plan['heads'] > 1)}, cases of 4 tokens a pair,"
        f" {plan['vocab']} tokens, {plan['steps']:,} steps of {plan['batch']} cases, the better of"
        f" {len(plan['lrs'])} learning rates on validation, {seeds}. The state is that after the"
        " longest case.",
        "",
    ]


def redraw(path: Path) -> list[Path]:
    """recall.jsonl -> recall.png and recall.svg."""
    return plots.redraw(path, lambda rows: draw(runs.last_run(rows)))


def draw(rows: Sequence[Row]) -> "Figure":
    """One panel: accuracy along the number of pairs."""
    figure = plots.new_figure(4.4)
    axes = figure.subplots()
    axes.set_title("Accuracy of associative recall")
    places: set[int] = set()
    for mixer, of in chosen(rows).items():
        colour, line, marker = table1.LOOKS.get(mixer, (plots.GREY, "-", "o"))
        x, y = zip(*sorted(accuracies(of).items()), strict=True)
        places |= set(x)
        axes.plot(x, y, line, color=colour, marker=marker, markersize=4, label=mixer)
    every = sorted(places)
    axes.plot(every, [1 / place for place in every], ":", color=plots.GREY, label=GUESS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(place) for place in every])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="pairs of key and value", ylabel="queries answered right", ylim=(-0.03, 1.03))
    plots.legend_below(axes, 6)
    return figure
