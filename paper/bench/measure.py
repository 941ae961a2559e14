"""How everything here is measured: interleaved times, and rows that say where they come from."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eattn
from eattn.info import cores, cpu_name

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """Something to time. What `run` returns is freed after the clock has stopped."""

    run: Callable[[], object]
    share: int = 1  # runs in every round
    calls: int = 1  # how many calls one run makes, for what is too short to time alone
    warmup: int = 1
    threads: int | None = None  # None: as many as torch has been given
    prepare: Callable[[], object] | None = None  # untimed, before each run
    settle: int = 0  # untimed runs before each timed one, for what the one before it left behind
    cost: float = 1.0  # of one run, a guess in any unit, for the progress bar


@dataclass(frozen=True)
class Times:
    """Quantiles over the runs, in seconds per call."""

    p20: float
    p50: float
    p80: float
    runs: int


def interleave(
    contenders: Mapping[str, Contender],
    *,
    rounds: int,
    tick: Callable[[str, float], None] = lambda name, cost: None,
) -> dict[str, Times]:
    """Time all contenders turn by turn, so that whatever disturbs the machine disturbs them all.

    Within a round the `share` runs of each are spread evenly: a contender of a few milliseconds
    runs between those of seconds, never only before or after them.
    """
    for contender in contenders.values():
        for _ in range(contender.warmup):
            time_once(contender)
    turns = sorted(
        ((turn + 0.5) / contender.share, name)
        for name, contender in contenders.items()
        for turn in range(contender.share)
    )
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for _, name in turns:
            seconds[name].append(time_once(contenders[name]))
            tick(name, contenders[name].cost)
    return {name: quantiles(runs) for name, runs in seconds.items()}


def time_once(contender: Contender) -> float:
    """Seconds per call of one run."""
    before = torch.get_num_threads()
    torch.set_num_threads(contender.threads or before)
    try:
        if contender.prepare is not None:
            contender.prepare()
        for _ in range(contender.settle):
            contender.run()
        start = time.perf_counter()
        result = contender.run()
        elapsed = time.perf_counter() - start
        del result
    finally:
        torch.set_num_threads(before)
    return elapsed / contender.calls


def quantiles(seconds: Iterable[float]) -> Times:
    """p20, p50 and p80 of some runs."""
    runs = list(seconds)
    p20, p50, p80 = np.quantile(runs, [0.2, 0.5, 0.8]).tolist()
    return Times(p20, p50, p80, len(runs))


def exponent(x: Iterable[float], y: Iterable[float]) -> float:
    """The b of y = a x^b, by least squares over the logarithms."""
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])


def provenance() -> Row:
    """Where and when a row was measured, and of which source."""
    commit, dirty = _commit()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
    return {
        "date": datetime.now(UTC).isoformat(timespec="milliseconds"),  # no two runs share it
        "commit": commit,
        "dirty": dirty,
        "hardware": f"{cpu_name()}, {cores()} cores, {memory / 2**30:.0f} GiB",
        "eattn": eattn.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _commit() -> tuple[str | None, bool | None]:
    """HEAD and whether tracked files differ from it; None unless git tracks this very file.

    An installed copy may lie inside some other project's repository, whose commit says nothing.
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
    sources = ("--", ":(top)", ":(top,exclude)results")
    changes = git("status", "--porcelain", "--untracked-files=no", *sources)
    return git("rev-parse", "HEAD"), bool(changes)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a JSON-lines file in one write, so that a kill afterwards loses none."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
