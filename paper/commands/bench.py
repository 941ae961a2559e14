"""`eattn bench op | block | generate | ranks | gpu`: what things cost on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Measure, in one run on this machine.\n\nExample: eattn bench op --quick")


@app.command("op")
def op(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Append the rows as JSON lines.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, under a minute.")] = False,
) -> None:
    """Measure the operator against the paper's code, softmax attention and the streaming limit.

    Checks the numbers first, then times all contenders interleaved. Takes up to five minutes.
    Example: eattn bench op --json rows.jsonl
    """
    from paper.bench.op import Plan, run

    run(Plan.quick() if quick else Plan(), Console(), json)


@app.command("block")
def block(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Append the rows as JSON lines.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="L = 2048, without exact EA, under two minutes.")
    ] = False,
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="Of the sequence, with commas between.")
    ] = None,
    mixers: Annotated[
        str | None, typer.Option("--mixers", help="Names, with commas between; q+k+v is none.")
    ] = None,
) -> None:
    """Measure a training step of one BERT-base block with every mechanism in it.

    A run with --json that was cut off continues where it stopped. Takes some twelve minutes.
    Example: eattn bench block --json rows.jsonl --mixers q+k+v,ea-6,sa
    """
    from paper.bench.block import Plan, run

    plan = (Plan.quick() if quick else Plan()).changed(lengths=lengths, mixers=mixers)
    run(plan, Console(), json)


@app.command("generate")
def generate(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Append the rows as JSON lines.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="512 tokens, a minute.")] = False,
    mixers: Annotated[
        str | None, typer.Option("--mixers", help="Names, with commas between.")
    ] = None,
) -> None:
    """Measure one text of 4,096 tokens by a language model of BERT-base's size, EA-6 and SA.

    By the library's own `generate`, greedy: the time per token from its beginning to its end, and
    what the cache holds. A run with --json that was cut off continues with the next mixer. Takes
    some eight minutes. Example: eattn bench generate --json rows.jsonl
    """
    from paper.bench.generate import Plan, run

    plan = Plan.quick() if quick else Plan()
    if mixers is not None:
        plan = replace(plan, mixers=tuple(name.strip() for name in mixers.split(",")))
    run(plan, Console(), json)


@app.command("ranks")
def ranks(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Append the rows as JSON lines.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="L = 8192, under a minute.")] = False,
) -> None:
    """Measure a block on one long sequence in two processes of a thread each, and in one.

    Checks the numbers first, then times both interleaved, and messages between processes. Needs
    two cores that nothing else uses. Takes some six minutes.
    Example: eattn bench ranks --json rows.jsonl
    """
    from paper.bench.ranks import Plan, run

    run(Plan.quick() if quick else Plan(), Console(), json)


@app.command("gpu")
def gpu(
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Append the rows as JSON lines.")
    ] = None,
) -> None:
    """Measure the Triton kernels on a card: time, and bytes per second beside plain streaming.

    Checks the numbers first. Example: eattn bench gpu --json rows.jsonl
    """
    from paper.bench.gpu import Plan, run

    run(Plan(), Console(), json)
