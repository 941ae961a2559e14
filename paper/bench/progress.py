"""A progress bar with the time left, for work that is being timed while the bar is shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tick = Callable[[str, float], None]  # what has just been done, and how much of the total it was


@contextmanager
def progress(console: Console, total: float, first: str = "") -> Iterator[Tick]:
    """Show the bar while the block runs; the `Tick` it gives moves it on, in the total's unit."""
    bar = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=False,  # no thread of its own beside what is being timed
        speed_estimate_period=600.0,  # seconds; one step may take minutes
    )
    with bar:
        task = bar.add_task(first, total=total)

        def tick(name: str, cost: float) -> None:
            bar.update(task, description=name, advance=cost, refresh=True)

        yield tick
