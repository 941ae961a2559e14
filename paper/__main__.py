"""Command line of the study: `python -m paper list | run | report | results | demo`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eattn.cli import run_app

RESULTS = Path(__file__).parent / "results"
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Folder to write to.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure all rows again.")]

app = typer.Typer(
    help="Measure the tables and figures of the paper, and what lies beyond it.\n\n"
    "Example: python -m paper run table3 --quick",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_experiments() -> None:
    """List all experiments with the number of rows that exist.

    Example: python -m paper list
    """
    from paper.harness import experiment

    for name in experiment.names():
        found = experiment.result(name)
        note = f"{len(found.rows)} rows" + ", quick run" * found.quick
        print(f"{name:<11} {found.module.TITLE} ({note})")


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(help="Names of experiments; see `list`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure less, into NAME-quick.jsonl.")
    ] = False,
    out: Out = RESULTS,
    fresh: Fresh = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Training runs side by side.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the plan."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 when a target is missed.")
    ] = False,
) -> None:
    """Measure the rows of experiments that the run logs do not have, and judge their targets.

    An interrupted run continues with the same command. Datasets are found through EATTN_DATA.
    Example: python -m paper run table3 --set mixers=ea-6,la --set seeds=3
    """
    from paper.harness import experiment

    changes = {}
    for setting in settings or []:
        field, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set must be FIELD=VALUE, got {setting!r}")
        changes[field] = value
    if jobs is not None:
        changes["jobs"] = str(jobs)
    console, missed = Console(), []
    for name in names:
        experiment.load(name)  # a wrong name fails before the work
    for name in names:
        found = experiment.run(name, console, quick=quick, out=out, fresh=fresh, changes=changes)
        experiment.show(found, console)
        missed += [verdict for verdict in found.verdicts if not verdict.met]
    if strict and missed:
        raise ValueError(f"missed: {', '.join(verdict.target.name for verdict in missed)}")


@app.command()
def report(
    out: Out = Path("report"),
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder of the run logs.")
    ] = RESULTS,
) -> None:
    """Write one HTML page of all rows, which needs no network, and each chart as SVG and PNG.

    Example: python -m paper report --out report
    """
    from paper.harness import page

    print(f"wrote {page.write(results, out)}")


@app.command()
def results() -> None:
    """Write paper/RESULTS.md, the table of README.md and all pictures from the rows.

    Example: python -m paper results
    """
    from paper import pictures, readme
    from paper.harness.results import write

    text = readme.README.read_text(encoding="utf-8")
    readme.README.write_text(readme.filled(text), encoding="utf-8")
    print("wrote", *write(), *pictures.write(), readme.README)


@app.command()
def demo(out: Out = Path("demo"), fresh: Fresh = False) -> None:
    """Train, time and report next to softmax attention, in five minutes on two cores.

    Example: python -m paper demo
    """
    from paper.demo import run

    run(Console(), out, fresh=fresh)


if __name__ == "__main__":
    sys.exit(run_app(app, "python -m paper"))
