"""Interleaved timing, common inputs, and the provenance of a row."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import eattn
from eattn.info import cores, cpu_name

Shape = tuple[int, int, int]
Work = Callable[[], object]
Row = dict[str, Any]


def inputs(shape: Shape, count: int = 3) -> list[Tensor]:
    """Return standard normal tensors, the same ones every time."""
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng) for _ in range(count)]


def value_and_gradients(
    op: Callable[..., Any], *tensors: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """Return y = op(*inputs) and the gradients of the inputs; the last tensor is that of y."""
    *given, gy = tensors
    leaves = [x.requires_grad_() for x in given]
    y = op(*leaves, **options)
    return y.detach(), *torch.autograd.grad(y, leaves, gy)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value expected."""
    return float((found - expected).abs().max() / expected.abs().max())


@dataclass(frozen=True)
class Candidate:
    """Something to time. The result of `run` is freed after the clock has stopped."""

    run: Work
    share: int = 1  # runs in every round
    calls: int = 1  # calls made by one run, for work that is too short to be timed alone
    warmup: int = 1  # untimed runs before the first round
    threads: int | None = None  # None: the current number of torch's threads
    prepare: Work | None = None  # untimed, before each run
    settle: int = 0  # untimed runs before each timed one, after another candidate has run


@dataclass(frozen=True)
class Times:
    """Quantiles over the runs, in seconds per call."""

    p20: float
    p50: float
    p80: float
    runs: int

    @classmethod
    def single(cls, seconds: float) -> "Times":
        """Return the time of work that ran once."""
        return cls(seconds, seconds, seconds, 1)


def interleave(candidates: Mapping[str, Candidate], *, rounds: int) -> dict[str, Times]:
    """Time all candidates in turn, so that a disturbance of the machine affects them all.

    Within a round the `share` runs of each candidate are spread evenly: a candidate of a few
    milliseconds runs between those that take seconds, never only before or after them.
    """
    for candidate in candidates.values():
        for _ in range(candidate.warmup):
            time_once(candidate)
    turns = sorted(
        ((turn + 0.5) / candidate.share, name)
        for name, candidate in candidates.items()
        for turn in range(candidate.share)
    )
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for _, name in turns:
            seconds[name].append(time_once(candidates[name]))
    return {name: quantiles(runs) for name, runs in seconds.items()}


def timed_rows(work: Sequence[tuple[Row, Candidate]], *, rounds: int) -> Iterator[Row]:
    """Time candidates in turn and yield the row of each with its times."""
    times = interleave({str(n): each for n, (_, each) in enumerate(work)}, rounds=rounds)
    for n, (row, _) in enumerate(work):
        yield row | vars(times[str(n)])


def time_once(candidate: Candidate) -> float:
    """Run a candidate once and return the seconds per call."""
    before = torch.get_num_threads()
    torch.set_num_threads(candidate.threads or before)
    try:
        if candidate.prepare is not None:
            candidate.prepare()
        for _ in range(candidate.settle):
            candidate.run()
        start = time.perf_counter()
        result = candidate.run()
        elapsed = time.perf_counter() - start
        del result
    finally:
        torch.set_num_threads(before)
    return elapsed / candidate.calls


def quantiles(seconds: Iterable[float]) -> Times:
    """Return p20, p50 and p80 of the runs."""
    runs = list(seconds)
    p20, p50, p80 = np.quantile(runs, [0.2, 0.5, 0.8]).tolist()
    return Times(p20, p50, p80, len(runs))


def exponent(x: Iterable[float], y: Iterable[float]) -> float:
    """Fit y = a x^b by least squares over the logarithms and return b."""
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])


def significant(values: Iterable[float], digits: int) -> list[float]:
    """Round values to a number of digits, which keeps run logs of whole curves small."""
    return [float(f"{value:.{digits}g}") for value in values]


def now() -> str:
    """Return the current time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def provenance() -> dict[str, Any]:
    """Return where a row is measured, and with which source and versions."""
    commit, dirty = _commit()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
    return {
        "date": now(),
        "commit": commit,
        "dirty": dirty,
        "hardware": f"{cpu_name()}, {cores()} cores, {memory / 2**30:.0f} GiB",
        "eattn": eattn.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _commit() -> tuple[str | None, bool | None]:
    """Return HEAD and whether tracked files differ from it; None unless git tracks this file.

    Rows in results/ do not count: measuring must not make its own source look changed.
    """
    here = Path(__file__)

    def git(*args: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", *args], cwd=here.parent, capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:
        return None, None
    sources = ("--", ":(top)", ":(top,exclude)paper/results")
    changes = git("status", "--porcelain", "--untracked-files=no", *sources)
    return git("rev-parse", "HEAD"), bool(changes)
