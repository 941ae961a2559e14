"""`eattn reproduce table1 | fig1 | fig3`: the paper again, from numbers measured here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    help="Make a table or figure of the paper again, from numbers measured here.\n\n"
    "Example: eattn reproduce fig3"
)
Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", file_okay=False, help="Where the files go.")
]
RESULTS = Path("results")


@app.command("fig1")
def fig1(
    sigma: Annotated[float, typer.Option("--sigma", help="Deviation of q and k.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of signal and projections.")] = 0,
    out: Out = RESULTS,
) -> None:
    """Draw EA's computation on real tensors, and how spiky its weights are beside SA and LA.

    Writes fig1.jsonl, and fig1.png and fig1.svg drawn from it. Takes seconds.
    Example: eattn reproduce fig1 --sigma 0.5 --out results
    """
    from eattn.reproduce.fig1 import run

    _wrote(run(Console(), out, sigma=sigma, seed=seed))


@app.command("fig3")
def fig3(
    orders: Annotated[str, typer.Option("--orders", help="Even, with commas between.")] = "2,6",
    out: Out = RESULTS,
) -> None:
    """Draw e^x with its Taylor polynomials: values, errors, and the sign of even and odd orders.

    Writes fig3.jsonl, and fig3.png and fig3.svg drawn from it. Takes seconds.
    Example: eattn reproduce fig3 --orders 2,6,12 --out results
    """
    from eattn.reproduce.fig3 import parse, run

    _wrote(run(Console(), out, orders=parse(orders)))


@app.command("table1")
def table1(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller points, under five minutes.")
    ] = False,
    out: Out = RESULTS,
) -> None:
    """Measure the complexity of every mechanism: time, memory and decoding, and their exponents.

    Writes table1.jsonl, and table1.png and table1.svg drawn from it; with --quick they are called
    table1-quick. A run that was cut off continues where it stopped. Takes some 25 minutes.
    Example: eattn reproduce table1 --quick --out results
    """
    from eattn.reproduce.table1 import Plan, run

    name = "table1-quick" if quick else "table1"
    _wrote(run(Plan.quick() if quick else Plan(), Console(), out, name=name))


def _wrote(files: Sequence[Path]) -> None:
    print("wrote", ", ".join(map(str, files)))
