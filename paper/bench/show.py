"""The rows of `eattn bench op` as tables in a terminal, and what other benchmarks share."""

from collections.abc import Sequence
from math import prod

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from paper.bench.measure import Row, exponent

COLOURS = {"goal": "green", "must": "green", "miss": "red"}
WHO = {
    "limit": "streaming limit",
    "ours": "EA-{order}",
    "quadrature": "EA by quadrature, {terms} nodes",
    "paper": "paper's EA-{order}",
    "sdpa": "SDPA",
}


def show(rows: Sequence[Row], console: Console, *, at_contract: bool) -> None:
    """Everything measured, the promises first."""
    checked = next(row for row in rows if row["what"] == "correctness")
    console.print(f"correct to {checked['error']:.1e}, value and gradients, beside float64")
    console.print(promises(rows, at_contract=at_contract))
    main = [row for row in rows if row["what"].startswith("forward") and "grows" not in row]
    console.print(times(main, f"times, {_shape(main[0])}, {main[0]['threads']} threads"))
    for axis in ("L", "order"):
        console.print(growth([row for row in rows if row.get("grows") == axis], axis))
    terms = [row for row in rows if row.get("grows") == "terms"]
    if terms:
        console.print(times(terms, "powers and bells, as many of each"))
    series = [row for row in rows if row.get("grows") == "threads"]
    if series:
        console.print(times(series, f"one long series, {_shape(series[0])}"))
    else:
        console.print("one long series: not measured, it takes two cores")
    console.print(calls([row for row in rows if row["what"] == "call"]))
    console.print(source(rows[-1]), highlight=False, soft_wrap=True)


def resumed(kept: int, origin: Row, console: Console) -> None:
    """Say that a run goes on, if it does."""
    if kept:
        console.print(f"continuing the run of {origin['date']}: {kept} rows", highlight=False)


def source(row: Row) -> str:
    """Where a row comes from, in one line."""
    commit = (row["commit"] or "no commit")[:12] + (" + changes" if row["dirty"] else "")
    return f"{row['hardware']}; torch {row['torch']}; eattn {commit}; {row['date']}"


def promises(rows: Sequence[Row], *, at_contract: bool = True) -> Table:
    """What is promised beside what was measured."""
    out = table("promised, and measured here", "measured", "must", "goal", "")
    for row in rows:
        if row["what"] != "ratio":
            continue
        sign = "≤" if row["at_most"] else "≥"
        verdict = row["verdict"]
        out.add_row(
            row["name"],
            f"{row['value']:.3g}{row['unit']}",
            f"{sign} {row['must']:g}",
            "" if row["goal"] is None else f"{sign} {row['goal']:g}",
            f"[{COLOURS[verdict]}]{verdict}[/]" if at_contract else verdict,
        )
    if not at_contract:
        out.caption = "the promises are made for another shape: no judgement"
    return out


def times(rows: Sequence[Row], title: str) -> Table:
    """p20, p50 and p80 of every contender, with the peak memory where it was measured."""
    out = table(title, "p20", "p50", "p80", "peak")
    for row in rows:
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f} MiB"
        out.add_row(_label(row), *_quantiles(row), peak)
    return out


def calls(rows: Sequence[Row]) -> Table:
    """One token at a time, and how much of it is arithmetic."""
    title = f"one inference call, {_shape(rows[0])}, one thread"
    out = table(title, "p20", "p50", "p80", "arithmetic")
    for row in rows:
        out.add_row(row["who"], *_quantiles(row), seconds(row["arithmetic"]))
    return out


def growth(rows: Sequence[Row], axis: str) -> Table:
    """Time along one axis, per element too: flat where the cost is linear."""
    out = table(f"growth with {axis}", "forward", "ns/element", "forward+backward", "ns/element")
    curves: dict[str, list[Row]] = {"forward": [], "forward+backward": []}
    for row in rows:
        curves[row["what"]].append(row)
    for pair in zip(*curves.values(), strict=True):
        cells = [str(pair[0]["shape"][1] if axis == "L" else pair[0]["order"])]
        for row in pair:
            cells += [seconds(row["p50"]), f"{row['p50'] / prod(row['shape']) * 1e9:.2f}"]
        out.add_row(*cells)
    if axis == "L" and len(rows) > 2:
        slopes = (
            exponent([r["shape"][1] for r in curve], [r["p50"] for r in curve])
            for curve in curves.values()
        )
        out.caption = "fitted exponents: " + " and ".join(f"{slope:.2f}" for slope in slopes)
    return out


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _label(row: Row) -> str:
    order = row["order"]
    name = WHO[row["who"]].format(order=order, terms=None if order is None else order + 1)
    if row["causal"] is False:
        name += ", non-causal"
    if row.get("grows") == "threads":
        name += f", {row['threads']} thread" + "s" * (row["threads"] > 1)
    return f"{row['what']}: {name}"


def _quantiles(row: Row) -> list[str]:
    return [seconds(row[p]) for p in ("p20", "p50", "p80")]


def _shape(row: Row) -> str:
    return "×".join(map(str, row["shape"]))


def table(title: str, *columns: str) -> Table:
    """An empty table; the first column, of names, has no heading."""
    out = Table(title=title, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for number, name in enumerate(("", *columns)):
        out.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return out
