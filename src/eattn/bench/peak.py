"""Peak memory of one piece of work, seen by the operating system, in a process of its own.

A fresh interpreter per point: nothing an earlier point left in the allocator can hide a cost, and
a point that dies leaves the others alive.
"""

import contextlib
import importlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
OOM_SCORE = Path("/proc/self/oom_score_adj")
MEMINFO = Path("/proc/meminfo")
SPARE = 0.9  # of the memory that is free, how much a point may take


class DiedError(RuntimeError):
    """The point gave no number; the message says why."""


@dataclass(frozen=True)
class Cost:
    """What one run took: bytes added to the resident high-water mark, and seconds."""

    peak_bytes: int
    seconds: float


def cost(target: str, *, limit: float | None = None, **kwargs: Any) -> Cost:
    """Of calling `module:function(**kwargs)()` once; DiedError, also after `limit` seconds.

    The function prepares (inputs, warm-up) and returns the work; only the work is measured.
    """
    command = [sys.executable, "-m", "eattn.bench.peak", target, json.dumps(kwargs)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise DiedError(f"not done after {limit:g} s") from None
    if child.returncode != 0:
        raise DiedError(_reason(child.returncode, child.stderr))
    return Cost(**json.loads(child.stdout.strip().splitlines()[-1]))


def trial(target: str, *, limit: float | None = None, **kwargs: Any) -> dict[str, Any]:
    """As `cost`, but as fields of a row: `peak_bytes` and `seconds`, or the `reason` of a death."""
    try:
        return vars(cost(target, limit=limit, **kwargs))
    except DiedError as error:
        return {"reason": str(error)}


def _reason(code: int, stderr: str) -> str:
    """Why a child died, in a line."""
    if code < 0:
        hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    if "MemoryError" in stderr or "can't allocate memory" in stderr:
        return f"out of memory: {last}"
    return f"died (exit {code}): {last}"


def peak_extra_bytes(target: str, **kwargs: Any) -> int:
    """Bytes that calling `module:function(**kwargs)()` adds to the resident high-water mark."""
    return cost(target, **kwargs).peak_bytes


def high_water_mark() -> int:
    """Most memory this process has had resident so far, in bytes."""
    if STATUS.exists():
        return _kibibytes(STATUS, "VmHWM") * 1024
    import resource  # POSIX only

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_high_water_mark() -> None:
    """Lower the mark to what is resident now, where Linux allows it."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5")


def stay_within_memory() -> None:
    """Make an allocation beyond what is free fail here, and let nobody else die for this process.

    Where Linux allows it; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text("1000")
    if STATUS.exists() and MEMINFO.exists():
        import resource  # POSIX only

        free = int(SPARE * _kibibytes(MEMINFO, "MemAvailable"))
        most = (_kibibytes(STATUS, "VmSize") + free) * 1024
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1])
            )


def available_bytes() -> int | None:
    """Memory that is free for new work, where Linux tells it."""
    return _kibibytes(MEMINFO, "MemAvailable") * 1024 if MEMINFO.exists() else None


def _kibibytes(path: Path, field: str) -> int:
    """`field:  123 kB` of a file in /proc."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {field}")


def main(target: str, kwargs: str) -> None:
    module, _, function = target.partition(":")
    prepare = getattr(importlib.import_module(module), function)
    stay_within_memory()  # counted from here: libraries map much that they never touch
    work = prepare(**json.loads(kwargs))
    forget_high_water_mark()
    before, start = high_water_mark(), time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    print(json.dumps({"peak_bytes": high_water_mark() - before, "seconds": seconds}))
    del result


if __name__ == "__main__":
    main(*sys.argv[1:])
