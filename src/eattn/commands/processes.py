"""Options of what `torchrun` can start in several processes."""

from typing import Annotated

import typer

Fsdp = Annotated[
    bool,
    typer.Option("--fsdp", help="Under torchrun: no process holds all weights."),
]
SequenceParallel = Annotated[
    int,
    typer.Option(
        "--sequence-parallel",
        metavar="N",
        min=1,
        help="Under torchrun: so many processes share a sequence.",
    ),
]
