"""Options of long runs: checkpoints, and several processes."""

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Folder for checkpoints; the same command resumes an interrupted run.",
    ),
]
Fsdp = Annotated[
    bool,
    typer.Option("--fsdp", help="Under torchrun: each process holds a shard of every weight."),
]
