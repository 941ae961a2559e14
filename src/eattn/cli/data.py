"""`eattn data list | get | show`: what is here, how to get the rest, what a file contains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eattn.data import DataSet
    from eattn.data.table2 import Entry

app = typer.Typer(help="Find, download and look at data.\n\nExample: eattn data list")
HEADINGS = {
    "classification": ("# of series", "length of series", "# of labels", "train", "test"),
    "forecasting": ("rows", "columns", "step", "time", "target"),
}
TITLES = {
    "classification": "Classification (Table 2; the paper's values in brackets)",
    "forecasting": "Forecasting",
}


@app.command("list")
def list_(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Look here first, not in EATTN_DATA."),
    ] = None,
) -> None:
    """Print Table 2 of the paper from the data itself, and where each set was found.

    Nothing is downloaded. Example: eattn data list --data-dir ~/data
    """
    from eattn.data.table2 import entries

    console = Console(highlight=False)
    found = {kind: list(entries(kind, data_dir)) for kind in HEADINGS}
    for kind, headings in HEADINGS.items():
        console.print(TITLES[kind])
        here = [entry for entry in found[kind] if entry.cells]
        console.print(_table(here, headings) if here else "  none is here\n")
    listed = [entry for group in found.values() for entry in group]
    width = max(len(entry.known.name) for entry in listed)
    for entry in listed:  # not in the tables: paths are long, and copied from here
        console.print(f"{entry.known.name:<{width}}  {entry.where}", markup=False, soft_wrap=True)
    if unreadable := [entry.known.name for entry in listed if entry.error]:
        raise ValueError(f"cannot read {', '.join(unreadable)}")


def _table(entries: "Sequence[Entry]", headings: "Sequence[str]") -> Table:
    table = Table("", *headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for entry in entries:
        alias = entry.known.aliases[0] if entry.known.aliases else entry.known.name
        table.add_row(alias, *entry.cells)
    return table


@app.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As `eattn data list` has.")],
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Put them here, not into the cache."),
    ] = None,
) -> None:
    """Download sets that are not here yet; a download that was cut off continues.

    Example: eattn data get UWaveGestureLibrary ETTh2
    """
    from eattn.data import get, look_up

    wanted = [look_up(name) for name in names]  # a wrong name must not wait for the others
    for known in wanted:
        paths = _paths(known) if data_dir is None else []
        paths = paths or get(known.name, folder=data_dir, progress=True)
        for path in paths:
            print(f"{known.name}: {path}")


def _paths(known: "DataSet") -> list[Path]:
    """The files of a set that is here already, wherever that is."""
    from eattn.data import locate

    places = [locate(known.name, split) for split in known.files]
    return [place.path for place in places if place] if all(places) else []


@app.command("show")
def show_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .ts, CSV or parquet file.")],
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Which column holds the times.")
    ] = None,
) -> None:
    """Print what a file contains: shape, classes, missing values, range of times.

    Example: eattn data show sales.csv --time day
    """
    from eattn.data.summary import summarise

    lines, columns = summarise(file, time=time)
    console = Console(highlight=False)
    width = max(map(len, lines))
    for name, value in lines.items():
        console.print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
    if columns:
        heading, *rows = columns
        table = Table(*heading, box=SIMPLE_HEAD)
        for row in rows:
            table.add_row(*row)
        console.print(table)
