"""Options, input data and output files that several commands share."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eattn import _io

if TYPE_CHECKING:
    import pandas as pd

    from eattn.data import Cases
    from eattn.timeseries import EAForecaster

# ---- options ----

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")]
ModelOut = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder to save the model to.")
]
CsvOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="CSV file to write. By default print to stdout."),
]
PlotOut = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw a plot to a .png or .svg file.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder with known datasets. By default $EATTN_DATA.",
    ),
]
Sep = Annotated[
    str | None,
    typer.Option("--sep", metavar="CHAR", help="Separator of CSV columns. Detected by default."),
]
Decimal = Annotated[
    str | None,
    typer.Option("--decimal", metavar="CHAR", help="Decimal mark. Detected by default."),
]
Thousands = Annotated[
    str | None,
    typer.Option("--thousands", metavar="CHAR", help="Thousands separator. Detected by default."),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding", metavar="NAME", help="Encoding of a CSV file. UTF-8 or cp1252 by default."
    ),
]
DateFormat = Annotated[
    str | None,
    typer.Option("--date-format", metavar="FORMAT", help="Format of dates, such as %d/%m/%Y."),
]
Mixer = Annotated[
    str | None,
    typer.Option("--mixer", metavar="NAME", help="Mixer, such as ea-6, ea-q25r12, sa or gru."),
]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", metavar="N", min=1, help="Largest number of training epochs."),
]
Lr = Annotated[float | None, typer.Option("--lr", metavar="RATE", help="Learning rate.")]
Dim = Annotated[
    int | None, typer.Option("--dim", metavar="N", min=1, help="Number of channels in the model.")
]
Depth = Annotated[
    int | None, typer.Option("--depth", metavar="N", min=1, help="Number of Transformer blocks.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Device: auto, cpu or cuda.")]
ForceModel = Annotated[bool, typer.Option("--force", help="Overwrite an existing model.")]
ForceFiles = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


# ---- input data ----

# Names of the columns that `read_series` returns, as arguments of a forecaster.
STANDARD: dict[str, Any] = {"id_col": "unique_id", "time_col": "ds", "target_col": "y"}


@contextmanager
def prefix_errors(source: str) -> Iterator[None]:
    """Prefix ValueErrors from the block with the name of the source."""
    try:
        yield
    except ValueError as error:
        from eattn.train import CheckpointError

        if isinstance(error, CheckpointError):  # its message already names the checkpoint
            raise
        raise ValueError(f"{source}: {error}") from error


def find_file(source: str, kind: str, expected: str) -> Path | None:
    """Return the user's file, or None if `source` names a known dataset of this kind."""
    from eattn.data import look_up

    path = Path(source)
    if path.exists() and not path.is_dir():  # pipes are accepted
        return path
    if path.exists() or path.suffix or len(path.parts) > 1:
        problem = "is a folder" if path.exists() else "does not exist"
        raise ValueError(f"{source} {problem}; expected a {expected} file")
    try:
        known = look_up(source)
    except ValueError as error:
        raise ValueError(f"file {source} does not exist, and it is an {error}") from None
    if known.kind != kind:
        raise ValueError(f"{source} is a {known.kind} dataset; expected a {kind} dataset")
    return None


def read_samples(source: str, split: str, data_dir: Path | None) -> "Cases":
    """Read a `.ts` file, or this split of a known dataset."""
    from eattn.data import load_classification, read_ts

    path = find_file(source, "classification", ".ts")
    if path is not None:
        return read_ts(path)
    return load_classification(source, split, data_dir=data_dir, progress=True)


def read_series(
    data: str,
    time: str | None,
    target: str | None,
    series: str | None,
    data_dir: Path | None,
    *,
    covariates: Sequence[str] = (),
    ignored: Sequence[str] = (),
    **options: Any,
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """Read a table or a known dataset in long format, and the original names of its columns.

    `options` are those of `read_table`. Prints the columns that are neither used nor ignored to
    stderr.
    """
    from eattn.data import load_forecasting, read_table

    path = find_file(data, "forecasting", "CSV or Parquet")
    if path is not None:
        options |= dict(time=time, target=target, series=series, covariates=covariates)
        table = read_table(path, **options)
    else:
        table = load_forecasting(data, data_dir=data_dir, progress=True)
        target = target or table.target
    if lacking := [name for name in covariates if name not in table.frame]:
        raise ValueError(f"{data} has no column {lacking[0]!r}")
    names = [name for name in table.columns if name not in covariates]
    if target is None:
        target = names[0] if len(names) == 1 else "y" if "y" in names else None
    if not names:
        raise ValueError(f"{data} has no numeric column to forecast besides the covariates")
    if target is None:
        raise ValueError(
            f"{data} has several numeric columns: {', '.join(names)}; choose one with --target"
        )
    if target not in names:
        raise ValueError(f"{data} has no numeric column {target!r}; it has {', '.join(names)}")
    frame = table.frame.rename(columns={target: "y"})
    named = "unique_id" in frame
    if not named:
        frame["unique_id"] = target
    unused = [name for name in (*names, *table.unused) if name not in (target, *ignored)]
    if unused and os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        print(f"eattn: columns of {data} that are not used: {', '.join(unused)}", file=sys.stderr)
    columns = {"ds": table.time, "y": target, "unique_id": None}
    if named:
        columns["unique_id"] = series or "unique_id"
    wanted = frame[["unique_id", "ds", "y", *covariates]]
    return wanted, columns | {"format": dict(table.format)}


def read_history(
    forecaster: "EAForecaster",
    data: str,
    data_dir: Path | None,
    time: str | None = None,
    target: str | None = None,
    series: str | None = None,
    *,
    static: bool = True,
    **options: Any,
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """Read a table with the columns and formats of the training data, unless others are given.

    With `static=False`, static columns are not read, as for new rows of known series.
    """
    known, columns = _known_columns(forecaster), forecaster._columns()
    names = time or known.get("ds"), target or known.get("y"), series or known.get("unique_id")
    options["covariates"] = [*columns.futr, *columns.hist, *(columns.stat if static else ())]
    options["ignored"] = columns.stat
    table, found = read_series(data, *names, data_dir, like=known.get("format"), **options)
    return _with_known_ids(table, forecaster), found


def read_future(
    forecaster: "EAForecaster", data: str, time: str | None, series: str | None, **options: Any
) -> "pd.DataFrame":
    """Read the known-future columns of a table, with formats as for `read_history`."""
    from eattn.data import read_table

    known, names = _known_columns(forecaster), list(forecaster._columns().futr)
    options |= dict(time=time or known.get("ds"), series=series or known.get("unique_id"))
    path = find_file(data, "forecasting", "CSV or Parquet")
    if path is None:
        raise ValueError(f"{data} is a known dataset; expected a CSV or Parquet file")
    table = read_table(path, covariates=names, like=known.get("format"), **options)
    return _with_known_ids(table.frame, forecaster)


def _known_columns(forecaster: "EAForecaster") -> dict[str, Any]:
    """Return the names and formats of the columns of the training data."""
    known = getattr(forecaster, "columns_", None) or {}
    if not known and (names := getattr(forecaster, "names_", None)):  # fitted in Python
        pairs = zip(STANDARD.values(), names, strict=True)
        known = {standard: name for standard, name in pairs if name != standard}
    return known


def _with_known_ids(table: "pd.DataFrame", forecaster: "EAForecaster") -> "pd.DataFrame":
    """Return a table with the unique_id of known series, which may be numbers, instead of text."""
    if "unique_id" not in table:
        return table
    known = {str(name): name for name in forecaster.states_}
    return table.assign(unique_id=[known.get(name, name) for name in table["unique_id"]])


# ---- output files ----


def check_out(option: str, out: Path | None, *, force: bool) -> None:
    """Raise before any work if the file of `option` cannot be written."""
    if out is None:
        return
    if out.is_dir() or not out.parent.is_dir():
        problem = "is a folder" if out.is_dir() else "is in a folder that does not exist"
        raise ValueError(f"{option} must be a file, but {out} {problem}")
    if out.exists() and not force:
        raise ValueError(f"{out} already exists; use --force to overwrite it")


def write_text(text: str, out: Path | None) -> None:
    """Write a file atomically, or print to stdout without `out`."""
    if out is None:
        sys.stdout.write(text)
    else:
        _io.write_text(out, text)
