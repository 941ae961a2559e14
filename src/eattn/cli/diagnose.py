"""`eattn diagnose`: compare the layers of a saved model with exact EA."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.common import (
    STANDARD,
    DataDir,
    ForceFiles,
    Model,
    PlotOut,
    check_out,
    prefix_errors,
    read_history,
    read_samples,
    write_text,
)

if TYPE_CHECKING:
    from eattn.diagnosis import Layer


def diagnose(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help=".ts, CSV or Parquet file, or name of a known dataset."
        ),
    ],
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", metavar="ERROR", help="Largest relative error of an expansion."
        ),
    ] = 1e-2,
    plot: PlotOut = None,
    out: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the measurements as JSON lines."),
    ] = None,
    data_dir: DataDir = None,
    force: ForceFiles = False,
) -> None:
    """Compare each layer of a model with exact EA.

    Runs DATA through MODEL, a classifier or forecaster with element-wise attention, and reports
    the error of each layer relative to exact EA, the share of q and k outside the range of its
    expansion, the cheapest expansion within the tolerance, and grids that hold q and k.
    The model is not changed. To train with another expansion, use --mixer of fit.

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
        samples = read_samples(data, "test", data_dir)
        with prefix_errors(data), watching(estimator.model_) as found:
            estimator.predict(samples.X)
    else:
        estimator = EAForecaster.load(model)
        history, _ = read_history(estimator, data, data_dir)
        with prefix_errors(data), watching(estimator.model_) as found:
            estimator.with_history(history, **STANDARD)
    return found
