"""Commands of `python -m paper`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paper.commands import bench, report, reproduce

app = typer.Typer(help="The study.", add_completion=False, pretty_exceptions_enable=False)
for group in (bench, reproduce):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])
app.command("report")(report.report)


@app.command()
def demo(out: Annotated[Path, typer.Option("--out")] = Path("demo"), fresh: bool = False) -> None:
    """Train, time and report."""
    from paper.demo import run

    run(Console(), out, fresh=fresh)
