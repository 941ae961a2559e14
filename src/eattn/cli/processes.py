"""Options of runs that may be long: to be cut off and go on, and in several processes."""

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Keep the run here: the same command goes on if it is cut off.",
    ),
]
Fsdp = Annotated[
    bool,
    typer.Option("--fsdp", help="Under torchrun: each process trains a part of each weight."),
]
