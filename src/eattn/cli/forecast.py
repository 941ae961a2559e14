"""`eattn forecast fit | predict | stream`: the next values of the series in a table."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn.cli.output import check_out, write_text
from eattn.cli.processes import Checkpoint, Fsdp
from eattn.cli.source import blaming, read_series

if TYPE_CHECKING:
    import pandas as pd

    from eattn.timeseries import EAForecaster

app = typer.Typer(
    help="Foretell the next values of time series.\n\n"
    "Example: eattn forecast fit data.csv --time date --target OT --horizon 12 --out model/"
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that fit wrote.")]
Time = Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="Of the times.")]
Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="Of the values.")]
Id = Annotated[
    str | None, typer.Option("--id", metavar="COLUMN", help="Which tells series apart, if several.")
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where sets are, if not in EATTN_DATA."),
]
HISTORY = 4  # horizons of it in a plot


@app.command("fit")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A CSV or parquet file, or a set.")],
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Write the model here.")],
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="Values to foretell.")] = 12,
    window: Annotated[
        int | None,
        typer.Option("--window", min=1, help="Past values to use; by default all, by the state."),
    ] = None,
    mixer: Annotated[str, typer.Option("--mixer", help="ea-6, sa, gru, or any other.")] = "ea-6",
    quantiles: Annotated[
        str | None, typer.Option("--quantiles", help="As 0.1,0.9: columns beside the forecast.")
    ] = None,
    freq: Annotated[
        str | None, typer.Option("--freq", help="As pandas has it, h or MS; by default inferred.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="At most.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="Channels of a token.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Blocks.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all random numbers.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, …")] = "auto",
    data_dir: DataDir = None,
    checkpoint: Checkpoint = None,
    fsdp: Fsdp = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a model.")] = False,
) -> None:
    """Learn from the series in a table and write the model into a folder.

    Columns are guessed where only one can be meant. Options left out are as EAForecaster has them.
    `torchrun --nproc-per-node 2 -m eattn forecast fit …` shares it between processes.
    Example: eattn forecast fit data.csv --time date --target OT --horizon 12 --out model/
    """
    from eattn.timeseries.store import check_free

    check_free(out, force=force)
    levels = None if quantiles is None else _levels(quantiles)
    table, columns = read_series(data, time, target, id_, data_dir)

    from eattn.timeseries import EAForecaster
    from eattn.train import torchrun

    chosen: dict[str, Any] = dict(epochs=epochs, lr=lr, dim=dim, depth=depth, checkpoint=checkpoint)
    given = {name: value for name, value in chosen.items() if value is not None}
    model = EAForecaster(
        horizon,
        mixer,
        window,
        quantiles=levels,
        freq=freq,
        device=device,
        random_state=seed,
        verbose=True,
        **given,
    )
    model._checked()  # what is wrong with its arguments is not the data's fault
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
        str | None, typer.Argument(metavar="[DATA]", help="Go on after its last rows instead.")
    ] = None,
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Annotated[
        int | None, typer.Option("--horizon", min=1, help="By default that of fit.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write here, not to stdout.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a .png or .svg too.")
    ] = None,
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:
    """Print the forecast of each series as CSV: after the history of fit, or after other data.

    Columns of DATA are called as in the file of fit, unless options say otherwise.
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
        from eattn.plots import plot_forecast as draw

        steps = HISTORY * len(forecast) // len(forecaster.tracks_)
        draw(_tail(forecaster, history, steps), forecast, plot)


@app.command("stream")
def stream(
    model: Model,
    horizon: Annotated[
        int | None, typer.Option("--horizon", min=1, help="By default that of fit.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="json or csv.")] = "json",
) -> None:
    """Read rows ds,y (or unique_id,ds,y) from stdin, and print a forecast after each at once.

    They follow the history of fit. Memory stays constant, and the state is in float64, so that
    this can go on for ever. A first line that names the columns may put them in another order, and
    have others beside them.
    Example: (head -n 1 data.csv; tail -n 0 -f data.csv) | eattn forecast stream model/
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.stream import Stream

    answers = Stream(EAForecaster.load(model, dtype="float64"), horizon=horizon, form=form)
    try:
        for answer in answers.answers(sys.stdin):
            print(answer, flush=True)
    except BrokenPipeError:  # nobody reads on; nor shall Python try to, when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--quantiles must be numbers as 0.1,0.9, got {text!r}") from None


def _tail(forecaster: "EAForecaster", history: "pd.DataFrame | None", steps: int) -> "pd.DataFrame":
    """What a plot shows of the past: from the data, or what is remembered of it."""
    import pandas as pd

    if history is not None:
        return history.groupby("unique_id", sort=False).tail(steps)
    parts = []
    for name, track in forecaster.tracks_.items():
        times, values = track.recent()
        parts.append(pd.DataFrame({"unique_id": name, "ds": times, "y": values}))
    return pd.concat(parts)


def _summary(model: "EAForecaster") -> str:
    count, best = len(model.tracks_), model.history_.best if model.history_ else None
    told = f"{count} series, {', '.join(model.reader_.fields) or 'no calendar'}"
    if best is None:
        return f"{told}, last step kept"
    mae = best.metrics["val_mae"]
    return f"{told}, step {best.step} kept, held-out error {mae:.3f} of the standard deviation"
