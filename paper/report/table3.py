"""Table 3 from its rows: mean accuracy over seeds, the paper's beside it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean

from paper.report.promises import promise_table, source
from paper.report.runs import Row
from paper.report.tables import Mean, table

SHORT = {
    "JapaneseVowels": "JAP",
    "SelfRegulationSCP1": "SCP1",
    "SelfRegulationSCP2": "SCP2",
    "UWaveGestureLibrary": "UWG",
}
PAPER = {
    mixer: dict(zip(SHORT, values, strict=True))
    for mixer, values in {
        "ea-2": (0.957, 0.887, 0.500, 0.794),
        "ea-6": (0.973, 0.904, 0.533, 0.847),
        "sa": (0.970, 0.894, 0.528, 0.822),
    }.items()
}


def means(rows: Sequence[Row]) -> dict[tuple[str, str, str], Mean]:
    """(data, protocol, mixer) -> accuracy."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["what"] == "run":
            found[row["data"], row["protocol"], row["mixer"]].append(row["accuracy"])
    return {key: Mean.of(values) for key, values in found.items()}


def lines(rows: Sequence[Row], protocol: str) -> Iterator[list[str]]:
    """A line for every mixer: its accuracies, its parameters in millions, seconds of a run; then
    those of the paper.
    """
    found = means(rows)
    runs = [row for row in rows if row["what"] == "run" and row["protocol"] == protocol]
    for mixer in dict.fromkeys(row["mixer"] for row in runs):
        cells = [mixer]
        for data in SHORT:
            mean = found.get((data, protocol, mixer))
            cells.append("" if mean is None else f"{mean.value:.3f} ± {mean.spread:.3f}")
        own = [row for row in runs if row["mixer"] == mixer]
        sizes = sorted({round(row["parameters"] / 1e6, 2) for row in own})
        cells.append(
            " – ".join(f"{size:g}" for size in (sizes[:1] + sizes[-1:] * (len(sizes) > 1)))
        )
        yield [*cells, f"{fmean(row['seconds'] for row in own):.0f}"]
    for mixer, values in PAPER.items() if runs else ():
        yield [f"paper's {mixer}", *(f"{value:.3f}" for value in values.values()), "", ""]


def markdown(rows: Sequence[Row]) -> str:
    """Both protocols, and what was aimed at."""
    parts = []
    for protocol, title in (
        ("tslib", "Epoch picked on TEST (`tslib`, as the paper; flattering by construction)"),
        ("clean", "Epoch picked on a fifth of TRAIN (`clean`)"),
    ):
        body = list(lines(rows, protocol))
        if body:
            head = [title, *SHORT.values(), "parameters, M", "seconds a run"]
            parts += [table(head, body), ""]
    seeds = max(mean.seeds for mean in means(rows).values())
    parts += [f"Mean ± standard deviation over {seeds} seeds.", ""]
    return "\n".join([*parts, promise_table(rows), "", source(rows[-1])])
