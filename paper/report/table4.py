"""Table 4 from its rows: mean errors over seeds, the paper's beside them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from paper.report.promises import promise_table, source
from paper.report.runs import Row
from paper.report.tables import Mean, table

CELLS = [(data, horizon) for data in ("ETTh2", "ETTm2", "Traffic") for horizon in (6, 12)]
COLUMNS = [f"{data}/{horizon}" for data, horizon in CELLS]
TITLES = {
    "chronological": "windows in the order of time",
    "random": "windows dealt out at random, which leaks",
}
PAPER = {  # MAE, RMSE
    "ea-2": ((1.43, 2.01), (2.14, 2.90), (0.44, 0.63), (0.73, 1.08), (0.12, 0.15), (0.18, 0.28)),
    "ea-6": ((1.23, 1.79), (1.90, 2.67), (0.36, 0.53), (0.64, 0.98), (0.09, 0.13), (0.16, 0.25)),
    "sa": ((1.24, 1.79), (1.92, 2.71), (0.36, 0.54), (0.64, 0.99), (0.10, 0.13), (0.16, 0.27)),
}
Key = tuple[str, str, int, str]


def means(rows: Sequence[Row]) -> dict[Key, dict[str, Mean]]:
    """(data, split, horizon, model) -> mae and rmse."""
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row["what"] == "run":
            found[row["data"], row["split"], row["horizon"], row["model"]].append(row)
    return {
        key: {of: Mean.of([row[of] for row in runs]) for of in ("mae", "rmse")}
        for key, runs in found.items()
    }


def lines(rows: Sequence[Row], split: str, of: str | None = None) -> Iterator[list[str]]:
    """A line for every model, then those of the paper; both errors, or only the means of one."""
    found = means(rows)
    models = dict.fromkeys(model for _, name, _, model in found if name == split)
    for model in models:
        cells = [found.get((data, split, horizon, model)) for data, horizon in CELLS]
        yield [model, *("" if cell is None else _cell(cell, of) for cell in cells)]
    if models:
        for model, values in PAPER.items():
            yield [f"paper's {model}", *(_paper(pair, of) for pair in values)]


def _paper(errors: tuple[float, float], of: str | None) -> str:
    mae, rmse = errors
    return f"{mae:g} / {rmse:g}" if of is None else f"{mae if of == 'mae' else rmse:.2f} "


def _cell(cell: dict[str, Mean], of: str | None) -> str:
    (mae, spread, seeds), (rmse, *_) = cell["mae"], cell["rmse"]
    if of is not None:
        return f"{cell[of].value:.3f}"
    return f"{mae:.3f}" + (f" ± {spread:.3f}" if seeds > 1 else "") + f" / {rmse:.3f}"


def markdown(rows: Sequence[Row]) -> str:
    """Both splits, and what was aimed at."""
    parts = []
    for split, title in TITLES.items():
        body = list(lines(rows, split))
        if body:
            parts += [table([f"MAE / RMSE, {title}", *COLUMNS], body), ""]
    seeds = max(cell["mae"].seeds for cell in means(rows).values())
    units = "ETT in its own units, Traffic standardised."
    parts += [f"Mean ± standard deviation over {seeds} seeds. {units}", ""]
    return "\n".join([*parts, promise_table(rows), "", source(rows[-1])])
