"""`eattn forecast fit | predict | stream`: forecast the time series in a table."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.common import (
    CsvOut,
    DataDir,
    Depth,
    Device,
    Dim,
    Epochs,
    ForceFiles,
    ForceModel,
    Lr,
    Mixer,
    Model,
    ModelOut,
    PlotOut,
    Seed,
    check_out,
    prefix_errors,
    read_series,
    write_text,
)
from eattn.cli.processes import Checkpoint, Fsdp

if TYPE_CHECKING:
    import pandas as pd

    from eattn.timeseries import EAForecaster

app = typer.Typer(
    help="Fit and apply time-series forecasters.\n\n"
    "Example: eattn forecast fit data.csv --target OT --horizon 12 --out model/"
)

Time = Annotated[
    str | None, typer.Option("--time", metavar="COLUMN", help="Name of the time column.")
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COLUMN", help="Name of the column to forecast.")
]
Id = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Name of the column that identifies the series."),
]
Horizon = Annotated[
    int | None,
    typer.Option(
        "--horizon",
        metavar="N",
        min=1,
        help="Number of steps to forecast. By default the horizon of fit.",
    ),
]
HISTORY = 4  # a plot shows this many horizons of history


@app.command("fit")
def fit(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="CSV or Parquet file, or name of a known dataset."),
    ],
    out: ModelOut,
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Annotated[
        int, typer.Option("--horizon", metavar="N", min=1, help="Number of steps to forecast.")
    ] = 12,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="N",
            min=1,
            help="Number of past values to forecast from. By default the whole history.",
        ),
    ] = None,
    mixer: Mixer = "ea-6",
    quantiles: Annotated[
        str | None,
        typer.Option(
            "--quantiles",
            metavar="LEVELS",
            help="Comma-separated quantile levels to add to the forecast, such as 0.1,0.9.",
        ),
    ] = None,
    freq: Annotated[
        str | None,
        typer.Option(
            "--freq",
            metavar="FREQ",
            help="Frequency as a pandas alias, such as h or MS. Inferred by default.",
        ),
    ] = None,
    epochs: Epochs = None,
    lr: Lr = None,
    dim: Dim = None,
    depth: Depth = None,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
    checkpoint: Checkpoint = None,
    fsdp: Fsdp = False,
    force: ForceModel = False,
) -> None:
    """Fit a forecaster to the series in a table and save it.

    Columns are inferred where only one column fits. Options that are not set have the defaults of
    EAForecaster. To train in several processes, run
    `torchrun --nproc-per-node 2 -m eattn forecast fit ...`.

    Example: eattn forecast fit data.csv --target OT --horizon 12 --out model/
    """
    from eattn.timeseries.store import check_free

    check_free(out, force=force)
    levels = None if quantiles is None else _levels(quantiles)
    table, columns = read_series(data, time, target, id_, data_dir)

    from eattn.timeseries import EAForecaster
    from eattn.train import torchrun

    chosen: dict[str, Any] = dict(epochs=epochs, lr=lr, dim=dim, depth=depth, checkpoint=checkpoint)
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen |= dict(quantiles=levels, freq=freq, device=device, random_state=seed, verbose=True)
    model = EAForecaster(horizon, mixer, window, **chosen)
    model._check_params()  # an invalid option is not an error of the data
    with torchrun(fsdp=fsdp) as processes:
        with prefix_errors(data):
            model.fit(table)
        model.columns_ = columns
        processes.on_first_rank(lambda: model.save(out, force=force))
        if processes.first:
            print(f"{out}: {_summary(model)}")


@app.command("predict")
def predict(
    model: Model,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="History to forecast from. By default the training data."
        ),
    ] = None,
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Horizon = None,
    out: CsvOut = None,
    plot: PlotOut = None,
    data_dir: DataDir = None,
    force: ForceFiles = False,
) -> None:
    """Forecast each series and write the forecasts as CSV.

    The columns of DATA are expected to have the names of the training data; --time, --target and
    --id name others.

    Example: eattn forecast predict model/ data.csv --out forecast.csv
    """
    for option, path in (("--out", out), ("--plot", plot)):
        check_out(option, path, force=force)
    if plot is not None:
        from eattn.plots import check_picture

        check_picture(plot)

    from eattn.timeseries import EAForecaster

    forecaster = EAForecaster.load(model)
    history = None
    if data is not None:
        known = getattr(forecaster, "columns_", None) or {}
        columns = (time or known.get("ds"), target or known.get("y"), id_ or known.get("unique_id"))
        history, _ = read_series(data, *columns, data_dir)
        with prefix_errors(data):
            forecaster = forecaster.with_history(history)
    forecast = forecaster.predict(horizon)
    write_text(forecast.to_csv(index=False, lineterminator="\n", float_format="%.9g"), out)
    if plot is not None:
        from eattn.plots import plot_forecast

        steps = HISTORY * len(forecast) // len(forecaster.states_)
        plot_forecast(_recent(forecaster, history, steps), forecast, plot)


@app.command("stream")
def stream(
    model: Model,
    horizon: Horizon = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Output format: json or csv.")
    ] = "json",
) -> None:
    """Read rows from stdin and print a forecast after each row.

    A row is ds,y or unique_id,ds,y and continues the history of fit. The first line may name the
    columns, in any order. Memory use is constant. The state is kept in float64, which suits
    streams that run indefinitely.

    Example: tail -n 0 -f new_rows.csv | eattn forecast stream model/
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.stream import stream as forecasts

    forecaster = EAForecaster.load(model, dtype="float64")
    try:
        for line in forecasts(forecaster, sys.stdin, horizon=horizon, form=form):
            print(line, flush=True)
    except BrokenPipeError:  # the reader is gone; keep Python from flushing stdout on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--quantiles must be numbers such as 0.1,0.9, got {text!r}") from None


def _recent(
    forecaster: "EAForecaster", history: "pd.DataFrame | None", steps: int
) -> "pd.DataFrame":
    """Return the history to plot: the end of the data, or else the values kept in the states."""
    import pandas as pd

    if history is not None:
        return history.groupby("unique_id", sort=False).tail(steps)
    kept = {name: state.recent() for name, state in forecaster.states_.items()}
    return pd.concat(pd.DataFrame({"unique_id": n, "ds": t, "y": y}) for n, (t, y) in kept.items())


def _summary(model: "EAForecaster") -> str:
    count, best = len(model.states_), model.history_.best if model.history_ else None
    summary = f"{count} series, calendar fields: {', '.join(model.predictor_.fields) or 'none'}"
    if best is None:
        return f"{summary}, weights of the last step"
    error = f"validation MAE {best.metrics['val_mae']:.3f} standard deviations"
    return f"{summary}, weights of step {best.step}, {error}"
