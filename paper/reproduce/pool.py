"""Many independent runs side by side, one thread each: small models gain nothing from two."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

import torch

from eattn.info import cores
from paper.bench.measure import Row
from paper.bench.progress import Tick
from paper.bench.runlog import Journal


def run_all(
    journal: Journal,
    work: Sequence[tuple[Row, float]],
    measure: Callable[[Row], Row],
    tick: Tick,
    *,
    jobs: int | None = None,
) -> None:
    """Add `key | measure(key)` to the journal for every key it does not have, as they come.

    `work` is a key and its rough cost each. `measure` runs in processes of their own, so it must be
    a function of a module. The first that fails stops all, and so does Ctrl-C.
    """
    left = [(key, cost) for key, cost in work if not journal.has(key)]
    if not left:
        return
    costs = {id(key): cost for key, cost in left}
    # The long ones first, or one of them runs alone at the end.
    left.sort(key=lambda pair: -pair[1])
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(
        jobs or cores(), context, initializer=torch.set_num_threads, initargs=(1,)
    )
    others = set(multiprocessing.active_children())
    with pool:
        with deaf_to_interrupts():
            runs = {pool.submit(measure, key): key for key, _ in left}
        try:
            for run in as_completed(runs):
                key = runs[run]
                journal.add(key | run.result())
                tick(" ".join(str(value) for value in key.values()), costs[id(key)])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # what it was at is made anew when the run goes on
            raise


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started in the block never hear a Ctrl-C, which a terminal sends to all of them.

    Each would print where it was. Their parent hears it, if it came meanwhile after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # as on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
