"""`eattn diagnose`: compare the layers of a saved model with exact EA on data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.output import check_out, write_text
from eattn.cli.source import blaming, read_cases, read_series

if TYPE_CHECKING:
    from eattn.diagnosis import Layer


def diagnose(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="File to read, or the name of a known dataset.")
    ],
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest error allowed for the cheapest expansion.")
    ] = 1e-2,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a .png or .svg file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers as JSON lines.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Folder of known datasets.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Report each layer's error relative to exact EA, and the cheapest sufficient expansion.

    MODEL is a classifier or a forecaster with element-wise attention; it is not changed. To train
    with another expansion, use `--mixer` of fit.

    Example: eattn diagnose model/ TEST.ts --tolerance 1e-3
    """
    from eattn.diagnosis import Diagnosis, check_tolerance, rows

    check_tolerance(tolerance)
    for option, path in (("--json", out), ("--plot", plot)):
        check_out(option, path, force=force)
    if plot is not None:
        from eattn.plots import check_picture

        check_picture(plot)
    found = Diagnosis(tuple(_layers(model, data, data_dir)), tolerance)
    print(found)
    table = list(rows(found))
    if out is not None:
        write_text("".join(json.dumps(row) + "\n" for row in table), out)
    if plot is not None:
        from eattn.plots import plot_diagnosis

        plot_diagnosis(table, tolerance, plot)


def _layers(model: Path, data: str, data_dir: Path | None) -> "list[Layer]":
    from eattn.diagnosis import watching
    from eattn.timeseries import EAClassifier, EAForecaster
    from eattn.timeseries.store import kind_of

    estimator: Any
    if kind_of(model) == "classifier":
        estimator = EAClassifier.load(model)
        cases = read_cases(data, "test", data_dir)
        with blaming(data), watching(estimator.model_) as found:
            estimator.predict(cases.X)
    else:
        estimator = EAForecaster.load(model)
        known = getattr(estimator, "columns_", None) or {}
        time, target, series = (known.get(name) for name in ("ds", "y", "unique_id"))
        history, _ = read_series(data, time, target, series, data_dir)
        with blaming(data), watching(estimator.model_) as found:
            estimator.with_history(history).predict()
    return found
