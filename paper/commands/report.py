"""`eattn report`: measured rows as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", file_okay=False, help="Where the files go.")
    ] = Path("report"),
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Where the rows are, *.jsonl.")
    ] = Path("results"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a report.")] = False,
) -> None:
    """Make one HTML page of all that was measured, with the paper's values beside it.

    The page needs no network and no other file; every figure is also written as PNG and SVG. What
    was not measured says which command does it. Example: eattn report --out report
    """
    from paper.report.html import write

    with Console(stderr=True).status("reading rows") as status:
        page, *figures = write(results, out, force=force, tell=status.update)
    print(f"wrote {page}, and {len(figures)} figures beside it")
