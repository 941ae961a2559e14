"""`eattn reproduce table1 | … | recall`: the paper again, and beyond it, measured here."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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
    from paper.reproduce.fig1 import run

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
    from paper.reproduce.fig3 import parse, run

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
    from paper.reproduce.table1 import Plan, run

    name = "table1-quick" if quick else "table1"
    _wrote(run(Plan.quick() if quick else Plan(), Console(), out, name=name))


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Look here first, not in EATTN_DATA."),
]
Mixers = Annotated[str | None, typer.Option("--mixers", help="Names, with commas between.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many, from 0 on.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Runs side by side; as many as cores.")
]
Quick = Annotated[bool, typer.Option("--quick", help="One seed, less training: five minutes.")]


@app.command("table3")
def table3(
    quick: Quick = False,
    mixers: Mixers = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    out: Out = RESULTS,
) -> None:
    """Train classifiers on the paper's four sets, only the mixer differing.

    Writes table3.jsonl (with --quick, table3-quick.jsonl) as runs end; a run that was cut off
    continues where it stopped. Takes an hour on two cores.
    Example: eattn reproduce table3 --mixers ea-6,ea,la --seeds 3
    """
    from paper.reproduce.table3 import Plan, run

    plan = _changed(Plan.quick() if quick else Plan(), mixers, seeds)
    name = "table3-quick" if quick else "table3"
    _wrote(run(plan, Console(), out, name=name, data_dir=data_dir, jobs=jobs))


@app.command("table4")
def table4(
    quick: Quick = False,
    mixers: Mixers = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    out: Out = RESULTS,
) -> None:
    """Train forecasters on ETTh2, ETTm2 and Traffic, only the mixer differing.

    Beside them the last value again, and LightGBM. Writes table4.jsonl (with --quick,
    table4-quick.jsonl) as runs end; a run that was cut off continues where it stopped. Takes hours
    on two cores. Example: eattn reproduce table4 --seeds 1
    """
    from paper.reproduce.table4 import Plan, run

    plan = _changed(Plan.quick() if quick else Plan(), mixers, seeds)
    name = "table4-quick" if quick else "table4"
    _wrote(run(plan, Console(), out, name=name, data_dir=data_dir, jobs=jobs))


@app.command("fig4")
def fig4(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points, a smaller budget: five minutes.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Memory to fit into: the card's, or 8GiB without one (2GiB with --quick).",
        ),
    ] = None,
    out: Out = RESULTS,
) -> None:
    """Measure what training BERT-base costs: memory, the longest sequence that fits, throughput.

    Writes fig4.jsonl, and fig4.png and fig4.svg drawn from it; with --quick they are called
    fig4-quick. A run that was cut off continues where it stopped. Takes some 40 minutes on two
    cores, and 15 GiB of memory. Example: eattn reproduce fig4 --budget 4GiB
    """
    from paper.reproduce.fig4 import Plan, run

    plan = (Plan.quick() if quick else Plan()).here(budget)
    _wrote(run(plan, Console(), out, name="fig4-quick" if quick else "fig4"))


@app.command("fig5")
def fig5(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer positions and batch sizes: five minutes.")
    ] = False,
    out: Out = RESULTS,
) -> None:
    """Measure what generating with BERT-base costs: memory and time per token at any position.

    Writes fig5.jsonl, and fig5.png and fig5.svg drawn from it; with --quick they are called
    fig5-quick. A run that was cut off continues where it stopped. Takes some 20 minutes on two
    cores, and 13 GiB of memory: where there is less, the longest caches are left out.
    Example: eattn reproduce fig5 --quick --out results
    """
    from paper.reproduce.fig5 import Plan, run

    plan = (Plan.quick() if quick else Plan()).here()
    _wrote(run(plan, Console(), out, name="fig5-quick" if quick else "fig5"))


@app.command("faithful")
def faithful(
    quick: Quick = False,
    mixers: Mixers = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
    out: Out = RESULTS,
) -> None:
    """Measure how near expansions are to exact EA, what they cost, and what training gains.

    Writes faithful.jsonl (with --quick, faithful-quick.jsonl) as it goes, and draws it; a run that
    was cut off continues where it stopped. Example: eattn reproduce faithful --quick
    """
    from paper.reproduce.faithful import Plan, run

    plan = _changed(Plan.quick() if quick else Plan(), mixers, seeds)
    name = "faithful-quick" if quick else "faithful"
    _wrote(run(plan, Console(), out, name=name, data_dir=data_dir, jobs=jobs))


@app.command("lm")
def lm(
    quick: Quick = False,
    mixers: Mixers = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    out: Out = RESULTS,
) -> None:
    """Train language models on Python's own sources, only the mixer differing.

    Writes lm.jsonl (with --quick, lm-quick.jsonl) as runs end, and draws it; a run that was cut off
    continues where it stopped. Takes an hour on two cores. Example: eattn reproduce lm --quick
    """
    from paper.reproduce.lm import Plan, run

    plan = _changed(Plan.quick() if quick else Plan(), mixers, seeds)
    _wrote(run(plan, Console(), out, name="lm-quick" if quick else "lm", jobs=jobs))


@app.command("recall")
def recall(
    quick: Quick = False,
    mixers: Mixers = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    out: Out = RESULTS,
) -> None:
    """Train models to recall values by their keys, with more and more pairs to remember (MQAR).

    Writes recall.jsonl (with --quick, recall-quick.jsonl) as runs end, and draws it; a run that was
    cut off continues where it stopped. Takes some 40 minutes on two cores.
    Example: eattn reproduce recall --mixers ea-6,sa
    """
    from paper.reproduce.recall import Plan, run

    plan = _changed(Plan.quick() if quick else Plan(), mixers, seeds)
    _wrote(run(plan, Console(), out, name="recall-quick" if quick else "recall", jobs=jobs))


def _changed(plan: Any, mixers: str | None, seeds: int | None) -> Any:
    """The plan with what the command line says."""
    changes: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    if mixers is not None:
        changes["mixers"] = tuple(name.strip() for name in mixers.split(","))
    return replace(plan, **changes)


def _wrote(files: Sequence[Path]) -> None:
    print("wrote", ", ".join(map(str, files)))
