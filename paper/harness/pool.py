"""Independent training runs side by side, one thread each: small models gain nothing from two."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

import torch

from eattn.info import cores
from paper.harness.runlog import Key, Row, RunLog


def run_all(
    log: RunLog, keys: Iterable[Key], measure: Callable[[Key], Row], *, jobs: int | None = None
) -> Iterator[Row]:
    """Measure every key that has no row yet, and yield the rows of all keys.

    `measure` is a function of a module (or a partial of one). It runs in one of `jobs` processes,
    by default one per core, and its row is stored as soon as the run ends. The first failure stops
    all runs, and so do Ctrl-C and SIGTERM.
    """
    keys = list(keys)
    log.expect(keys)
    missing = []
    for key in keys:
        found = log.find(key)
        yield from found
        if not found:
            missing.append(key)
    if not missing:
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(
        jobs or cores(), context, initializer=torch.set_num_threads, initargs=(1,)
    )
    others = set(multiprocessing.active_children())
    with pool, _sigterm_exits():
        with _interrupts_blocked():
            runs = {pool.submit(measure, key): key for key in missing}
        try:
            for run in as_completed(runs):
                log.add(runs[run], run.result())
                yield from log.find(runs[run])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # its run is repeated when the experiment continues
            raise


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Raise SystemExit on SIGTERM; otherwise the runs would outlive this process."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all of them.

    Each would print a traceback. The parent process receives the signal after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
