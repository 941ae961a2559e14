"""`eattn forecast fit | predict | stream`: forecasts of the time series in a table."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.output import check_out, write_text
from eattn.cli.processes import Checkpoint, Fsdp
from eattn.cli.source import DataDir, blaming, read_series

if TYPE_CHECKING:
    import pandas as pd

    from eattn.timeseries import EAForecaster

app = typer.Typer(
    help="Fit and apply time-series forecasters.\n\n"
    "Example: eattn forecast fit data.csv --time date --target OT --horizon 12 --out model/"
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder written by fit.")]
Time = Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="Column of times.")]
Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="Column of values.")]
Id = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="Column of series names.")]
Horizon = Annotated[
    int | None, typer.Option("--horizon", min=1, help="Number of steps; that of fit by default.")
]
HISTORY = 4  # horizons of history in a plot


@app.command("fit")
def fit(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="CSV or parquet file, or name of a known dataset."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder of the model.")],
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="Steps to forecast.")] = 12,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Past values to use; all, through a state, if unset."),
    ] = None,
    mixer: Annotated[str, typer.Option("--mixer", help="ea-6, sa, gru, or any other.")] = "ea-6",
    quantiles: Annotated[str | None, typer.Option(help="Such as 0.1,0.9; none if unset.")] = None,
    freq: Annotated[str | None, typer.Option(help="Such as h or MS; inferred if unset.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="Width of the model.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Number of blocks.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    data_dir: DataDir = None,
    checkpoint: Checkpoint = None,
    fsdp: Fsdp = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
) -> None:
    """Fit a forecaster to the series in a table and save it in a folder.

    Columns are guessed if there is only one choice. Other defaults are those of EAForecaster.
    `torchrun --nproc-per-node 2 -m eattn forecast fit …` trains in several processes.
    Example: eattn forecast fit data.csv --time date --target OT --horizon 12 --out model/
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
    model._check_params()  # errors in options must not blame the data
    with torchrun(fsdp=fsdp) as processes:
        with blaming(data):
            model.fit(table)
        model.columns_ = columns
        processes.on_first_rank(lambda: model.save(out, force=force))
        if processes.first:
            print(f"{out}: {_summary(model)}")


@app.command("predict")
def predict(
    model: Model,
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help="Other history to continue from.")
    ] = None,
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Horizon = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="CSV file; stdout by default.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also plot to a .png or .svg.")
    ] = None,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:
    """Forecast each series as CSV, after the history of fit or after other data.

    Columns of DATA have the names of the training data, unless options say otherwise.
    Example: eattn forecast predict model/ data.csv --out forecast.csv --plot forecast.png
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
        with blaming(data):
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
    form: Annotated[str, typer.Option("--format", help="json or csv.")] = "json",
) -> None:
    """Read rows ds,y (or unique_id,ds,y) from stdin, and print a forecast after each.

    Rows follow the history of fit. A first line with column names may order them differently, and
    name others. Memory stays constant, and the state is in float64 for streams without end.
    Example: (head -n 1 data.csv; tail -n 0 -f data.csv) | eattn forecast stream model/
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.stream import stream as forecasts

    forecaster = EAForecaster.load(model, dtype="float64")
    try:
        for line in forecasts(forecaster, sys.stdin, horizon=horizon, form=form):
            print(line, flush=True)
    except BrokenPipeError:  # the reader is gone; Python must not flush stdout on exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--quantiles must be numbers as 0.1,0.9, got {text!r}") from None


def _recent(
    forecaster: "EAForecaster", history: "pd.DataFrame | None", steps: int
) -> "pd.DataFrame":
    """Return the history to plot: from the data, or the values that the states keep."""
    import pandas as pd

    if history is not None:
        return history.groupby("unique_id", sort=False).tail(steps)
    kept = {name: state.recent() for name, state in forecaster.states_.items()}
    return pd.concat(pd.DataFrame({"unique_id": n, "ds": t, "y": y}) for n, (t, y) in kept.items())


def _summary(model: "EAForecaster") -> str:
    count, best = len(model.states_), model.history_.best if model.history_ else None
    told = f"{count} series, {', '.join(model.predictor_.fields) or 'no calendar'}"
    if best is None:
        return f"{told}, last step kept"
    mae = best.metrics["val_mae"]
    return f"{told}, step {best.step} kept, validation error {mae:.3f} standard deviations"
