"""Input of the commands: a file of the user, or a dataset known by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from eattn.data import Cases

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Folder of datasets; EATTN_DATA by default."),
]
COMMANDS = {"classification": "classify", "forecasting": "forecast"}


@contextmanager
def blaming(source: str) -> Iterator[None]:
    """Add the name of the source to a ValueError from the block."""
    try:
        yield
    except ValueError as error:
        from eattn.train import CheckpointError

        if isinstance(error, CheckpointError):  # its message names the checkpoint
            raise
        raise ValueError(f"{source}: {error}") from error


def own_file(source: str, kind: str, what: str) -> Path | None:
    """Return the user's file, or None for a known dataset of this kind; raise for anything else."""
    from eattn.data import look_up

    path = Path(source)
    if path.exists() and not path.is_dir():  # pipes are accepted
        return path
    if path.exists() or path.suffix or len(path.parts) > 1:
        got = "got a folder" if path.exists() else "there is none"
        raise ValueError(f"{source} must be a {what}, {got}")
    try:
        known = look_up(source)
    except ValueError as error:
        raise ValueError(f"there is no file {source}, and {error}") from None
    if known.kind != kind:
        raise ValueError(f"{source} is a set to {COMMANDS[known.kind]}, not to {COMMANDS[kind]}")
    return None


def read_cases(source: str, split: str, data_dir: Path | None) -> "Cases":
    """Read a `.ts` file, or this split of a known dataset."""
    from eattn.data import load_classification, read_ts

    path = own_file(source, "classification", ".ts file")
    if path is not None:
        return read_ts(path)
    return load_classification(source, split, data_dir=data_dir, progress=True)


def read_series(
    data: str,
    time: str | None,
    target: str | None,
    series: str | None,
    data_dir: Path | None,
) -> "tuple[pd.DataFrame, dict[str, str | None]]":
    """Read a table or a known dataset in long format; also return its own names of the columns."""
    from eattn.data import load_forecasting, read_table

    path = own_file(data, "forecasting", "CSV or parquet file")
    if path is not None:
        table = read_table(path, time=time, target=target, series=series)
    else:
        table = load_forecasting(data, data_dir=data_dir, progress=True)
        target = target or table.target
    names = table.columns
    if target is None:
        target = names[0] if len(names) == 1 else "y" if "y" in names else None
    if target is None:
        raise ValueError(f"{data} has several columns of numbers, {', '.join(names)}: --target one")
    if target not in names:
        raise ValueError(f"{data} has no column {target!r} of numbers, it has {', '.join(names)}")
    frame = table.frame.rename(columns={target: "y"})
    named = "unique_id" in frame
    if not named:
        frame["unique_id"] = target
    columns = {"ds": table.time, "y": target, "unique_id": series if named else None}
    return frame[["unique_id", "ds", "y"]], columns
