"""`eattn forecast fit | predict | backtest | update | stream`: forecast the series in a table."""

import os
import signal
import sys
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eattn.cli.common import (
    STANDARD,
    CsvOut,
    DataDir,
    DateFormat,
    Decimal,
    Depth,
    Device,
    Dim,
    Encoding,
    Epochs,
    ForceFiles,
    ForceModel,
    Lr,
    Mixer,
    Model,
    ModelOut,
    PlotOut,
    Seed,
    Sep,
    Thousands,
    check_out,
    prefix_errors,
    read_future,
    read_history,
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
SAVE_SECONDS = 1.0  # shortest time between two writes of the state of a stream


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
    future: Annotated[
        str | None,
        typer.Option(
            "--future",
            metavar="COLUMNS",
            help="Comma-separated columns that are known in advance, such as temp,promo.",
        ),
    ] = None,
    past: Annotated[
        str | None,
        typer.Option(
            "--past",
            metavar="COLUMNS",
            help="Comma-separated columns that are known for past times only.",
        ),
    ] = None,
    static: Annotated[
        str | None,
        typer.Option(
            "--static",
            metavar="COLUMNS",
            help="Comma-separated columns that are constant in each series, such as region.",
        ),
    ] = None,
    holidays: Annotated[
        str | None,
        typer.Option(
            "--holidays",
            metavar="CODE",
            help="Country or subdivision with public holidays, such as DE or DE-BY.",
        ),
    ] = None,
    season: Annotated[
        str | None,
        typer.Option(
            "--season",
            metavar="N[,N]",
            help="Season lengths in steps, such as 24,168. By default they follow from the"
            " frequency.",
        ),
    ] = None,
    pretrained: Annotated[
        str,
        typer.Option(
            "--pretrained", metavar="NAME", help="Pretrained weights: small, or none to train."
        ),
    ] = "small",
    finetune_steps: Annotated[
        int,
        typer.Option(
            "--finetune-steps",
            metavar="N",
            min=0,
            help="Number of steps to train the pretrained weights further.",
        ),
    ] = 0,
    mixer: Mixer = None,
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
            help="Frequency as a pandas alias, such as h or MS. By default the greatest step"
            " that fits all times.",
        ),
    ] = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
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

    Columns and formats are inferred where only one fits; otherwise an error asks for the option.
    Options that are not set have the defaults of EAForecaster: pretrained weights, without
    training unless there are covariates. A simple forecast replaces the model for series where it
    is better on validation data. To train in several processes, run
    `torchrun --nproc-per-node 2 -m eattn forecast fit ...`.

    Example: eattn forecast fit data.csv --target OT --horizon 12 --out model/
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.store import check_free
    from eattn.train import torchrun

    check_free(out, force=force)
    chosen: dict[str, Any] = dict(mixer=mixer, epochs=epochs, lr=lr, dim=dim, depth=depth)
    chosen |= dict(checkpoint=checkpoint, freq=freq, holidays=holidays)
    chosen |= dict(
        quantiles=_numbers("--quantiles", quantiles, float, "0.1,0.9"),
        season_length=_numbers("--season", season, int, "24,168"),
        futr_exog_list=_names("--future", future),
        hist_exog_list=_names("--past", past),
        stat_exog_list=_names("--static", static),
    )
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen |= dict(pretrained=None if pretrained == "none" else pretrained)
    chosen |= dict(finetune_steps=finetune_steps, device=device, random_state=seed)
    model = EAForecaster(horizon, verbose=True, **chosen)
    model._check_params()  # an invalid option is not an error of the data
    form: dict[str, Any] = dict(sep=sep, decimal=decimal, thousands=thousands, encoding=encoding)
    form |= dict(date_format=date_format)
    covariates = [*chain.from_iterable(model._columns().covariates().values())]
    names = (time, target, id_)
    table, columns = read_series(data, *names, data_dir, covariates=covariates, **form)
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
    future_data: Annotated[
        str | None,
        typer.Option(
            "--future-data",
            metavar="FILE",
            help="Table with the columns of --future for all times to forecast.",
        ),
    ] = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
    out: CsvOut = None,
    plot: PlotOut = None,
    data_dir: DataDir = None,
    force: ForceFiles = False,
) -> None:
    """Forecast each series and write the forecasts as CSV.

    The columns of DATA are expected to have the names of the training data; --time, --target and
    --id name others, also for --future-data. Forecasts are in the time zone of DATA. A plot shows
    the quantiles 0.1 to 0.9, too.

    Example: eattn forecast predict model/ data.csv --out forecast.csv
    """
    for option, path in (("--out", out), ("--plot", plot)):
        check_out(option, path, force=force)
    if plot is not None:
        from eattn.plots import check_picture

        check_picture(plot)

    from eattn.timeseries import EAForecaster
    from eattn.timeseries.inputs import Columns

    forecaster = EAForecaster.load(model)
    form: dict[str, Any] = dict(sep=sep, decimal=decimal, thousands=thousands)
    form |= dict(encoding=encoding, date_format=date_format)
    future = _read_future(forecaster, future_data, time, id_, form)
    if data is not None:
        history, _ = read_history(forecaster, data, data_dir, time, target, id_, **form)
        with prefix_errors(data):
            forecaster = forecaster.with_history(history, **STANDARD)
    forecaster.names_ = Columns().names()  # the output has the standard names
    try:
        forecast = forecaster.predict(horizon, future)
    except ValueError as error:
        raise ValueError(str(error).replace("futr_df", str(future_data))) from error
    write_text(_csv(forecast), out)
    if plot is not None:
        forecaster.plot(plot, horizon=horizon, futr_df=future)


@app.command("backtest")
def backtest(
    model: Model,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="History whose last values are forecast.")
    ],
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    horizon: Horizon = None,
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", min=1, help="Number of forecasts per series.")
    ] = 5,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=1,
            help="Number of values between two forecasts. By default the horizon.",
        ),
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Train again for each window, on the values before it.")
    ] = False,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="CSV file to write the forecasts to."),
    ] = None,
    data_dir: DataDir = None,
    force: ForceFiles = False,
) -> None:
    """Score forecasts of the last values of each series.

    The scores are printed as CSV, and --out writes the forecasts. Forecasts of values that the
    model was trained on look too good; use --refit, or DATA that continues after the training
    data. MASE is below 1 if the errors are smaller than those of the seasonal naive forecast.
    Columns are found as in predict.

    Example: eattn forecast backtest model/ data.csv --windows 10 --refit
    """
    check_out("--out", out, force=force)

    from eattn.timeseries import EAForecaster
    from eattn.timeseries.metrics import scores

    forecaster = EAForecaster.load(model)
    forecaster.verbose = refit
    form: dict[str, Any] = dict(sep=sep, decimal=decimal, thousands=thousands)
    form |= dict(encoding=encoding, date_format=date_format)
    history, _ = read_history(forecaster, data, data_dir, time, target, id_, **form)
    with prefix_errors(data):
        source = forecaster.with_history(history, **STANDARD)
        table = source.backtest(windows, step, horizon=horizon, refit=refit)
    if out is not None:
        write_text(_csv(table), out)
    write_text(_csv(scores(table).reset_index()), None)


@app.command("update")
def update(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="Table with new rows; known rows may come first."),
    ],
    time: Time = None,
    target: Target = None,
    id_: Id = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder to save the model to. By default MODEL itself."
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            "--scores", metavar="FILE", help="CSV file to write the anomaly scores of new rows to."
        ),
    ] = None,
    data_dir: DataDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing model and file of scores.")
    ] = False,
) -> None:
    """Read new rows into a saved model without training.

    Rows up to the last known time of their series are skipped, so DATA may be a file that grows.
    Later forecasts start after the new rows. Columns are found as in predict. A score lies between
    0 and 1, the highest for values far outside their forecast.

    Example: eattn forecast update model/ data.csv --scores scores.csv
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.store import check_free

    if out is not None:
        check_free(out, force=force)
    check_out("--scores", scores, force=force)
    forecaster = EAForecaster.load(model)
    before = {name: state.count for name, state in forecaster.states_.items()}
    form: dict[str, Any] = dict(sep=sep, decimal=decimal, thousands=thousands)
    form |= dict(encoding=encoding, date_format=date_format)
    form |= dict(static=False)
    rows, columns = read_history(forecaster, data, data_dir, time, target, id_, **form)
    if columns["unique_id"] is None:
        rows = rows.drop(columns="unique_id")  # continues the only series
    with prefix_errors(data):
        found = forecaster.update(rows, skip_known=True, return_scores=True, **STANDARD)
    if scores is not None:
        found.columns = ["unique_id", "ds", "y", "score"]
        write_text(_csv(found), scores)
    forecaster.save(out or model, force=force or out is None)
    new = {name: state.count - before[name] for name, state in forecaster.states_.items()}
    last = max(state.ds for state in forecaster.states_.values())
    changed = sum(count > 0 for count in new.values())
    print(f"{out or model}: {sum(new.values())} new steps of {changed} series, up to {last}")


@app.command("stream")
def stream(
    model: Model,
    horizon: Horizon = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Output format: json or csv.")
    ] = "json",
    anomalies: Annotated[
        bool,
        typer.Option("--anomalies", help="Print an anomaly score of each row, not a forecast."),
    ] = False,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option("--on-error", help="Stop at an invalid row, or report it and skip it."),
    ] = "stop",
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="Continue from this file if it exists, and save the state to it.",
        ),
    ] = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = None,
    date_format: DateFormat = None,
) -> None:
    """Read rows from stdin and print a forecast after each row.

    A row is ds,y or unique_id,ds,y and continues the history of fit. The first line may name the
    columns, in any order, and must name them if the model has covariates. In the output, ds is the
    time of a forecast and cutoff the time of the row. With --anomalies, the output is
    unique_id,ds,y,score for each row. Memory use is constant. The state is kept in float64, which
    suits streams that run indefinitely; --state saves it at most once a second and when the command
    ends.

    Example: tail -n 0 -f new_rows.csv | eattn forecast stream model/ --state FILE
    """
    from eattn.timeseries import EAForecaster
    from eattn.timeseries.stream import RowFormat
    from eattn.timeseries.stream import stream as forecasts

    forecaster = EAForecaster.load(model, dtype="float64")
    sys.stdin.reconfigure(encoding=encoding, errors="replace")  # type: ignore[union-attr]
    rows = RowFormat(sep, decimal, thousands, date_format)
    skip = None if on_error == "stop" else _report_skipped
    options: dict[str, Any] = dict(horizon=horizon, form=form, rows=rows, skip=skip)
    options |= dict(anomalies=anomalies)
    try:
        with _saved_state(forecaster, state) as save:
            for line in forecasts(forecaster, sys.stdin, **options):
                print(line, flush=True)
                save()
    except BrokenPipeError:  # the reader is gone; keep Python from flushing stdout on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_skipped(problem: str) -> None:
    print(f"eattn: {problem}; the row is skipped", file=sys.stderr, flush=True)


@contextmanager
def _saved_state(forecaster: "EAForecaster", file: Path | None) -> Iterator[Callable[[], None]]:
    """Continue from the states in a file; yield a function that saves them now and then.

    The states are also saved when the block ends, for any reason but SIGKILL.
    """
    if file is None:
        yield lambda: None
        return
    from eattn.timeseries.store import load_states, save_states

    if file.exists():
        load_states(forecaster, file)
    else:
        check_out("--state", file, force=False)
    saved = clock.monotonic()

    def save() -> None:
        nonlocal saved
        if clock.monotonic() - saved >= SAVE_SECONDS:
            save_states(forecaster, file)
            saved = clock.monotonic()

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield save
    finally:
        signal.signal(signal.SIGTERM, before)
        save_states(forecaster, file)


def _csv(table: "pd.DataFrame") -> str:
    text: str = table.to_csv(index=False, lineterminator="\n", float_format="%.9g")
    return text


def _names(option: str, text: str | None) -> list[str] | None:
    """Return the column names in a comma-separated list."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    if "" in names:
        raise ValueError(f"{option} must be columns such as temp,promo, got {text!r}")
    return names


def _numbers(
    option: str, text: str | None, kind: type[int] | type[float], example: str
) -> list[float] | None:
    """Return the numbers in a comma-separated list."""
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers such as {example}, got {text!r}") from None


def _read_future(
    forecaster: "EAForecaster",
    file: str | None,
    time: str | None,
    id_: str | None,
    form: dict[str, Any],
) -> "pd.DataFrame | None":
    """Read the file of --future-data if the model has known-future columns."""
    names = ", ".join(forecaster._columns().futr)
    if file is None and names:
        raise ValueError(f"the model needs future values of {names}; use --future-data FILE")
    if file is None:
        return None
    if not names:
        raise ValueError("--future-data cannot be used: the model was fitted without --future")
    return read_future(forecaster, file, time, id_, **form)


def _summary(model: "EAForecaster") -> str:
    """Return the series, their seasons, the forecasts that were chosen, and the mean loss."""
    seasons = " and ".join(map(str, model.predictor_.seasons))
    inferred = "" if model.freq else " (inferred)"
    report = model.fit_report_
    names = list(report.columns[2:])
    chosen = [names.index(name) for name in report["choice"]]
    used = [f"{chosen.count(i)} {name}" for i, name in enumerate(names) if i in chosen]
    losses = report[names].to_numpy()[range(len(report)), chosen]
    known = losses[losses == losses]  # NaN for series that are too short to validate on
    parts = [
        f"{len(report)} series ({', '.join(used)})",
        f"frequency {model.freq_}{inferred}",
        f"season {seasons}" if seasons else "no season",
        f"validation pinball loss {known.mean():.3g}" if len(known) else "no validation",
    ]
    return ", ".join(parts)
