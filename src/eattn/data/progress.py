"""The progress bar of a download."""

from collections.abc import Iterator
from contextlib import contextmanager

from eattn.data.download import Report


@contextmanager
def bar(name: str, *, shown: bool) -> Iterator[Report | None]:
    """A `Report` that moves a bar on stderr while the block runs; None when none is `shown`."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # Into a file or a pipe it would only write the last state.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown_bar:
        task = shown_bar.add_task(name, total=None)
        yield lambda done, total: shown_bar.update(task, completed=done, total=total)
