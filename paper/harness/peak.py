"""Peak memory of one piece of work, as the operating system reports it for a separate process.

A fresh interpreter per point: nothing an earlier point left in the allocator can hide a cost, and
a point that fails leaves the others alive.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
OOM_SCORE = Path("/proc/self/oom_score_adj")
MEMINFO = Path("/proc/meminfo")
SPARE = 0.9  # of the memory that is free, how much a point may take
OVER = 77  # exit code of a point that took more than it was allowed
GLANCE = 0.02  # seconds between two looks at what such a point has taken
M_MMAP_THRESHOLD = -3  # of mallopt, in glibc's malloc.h


class DiedError(RuntimeError):
    """The point gave no number; the message states the reason."""


def cost(
    target: str, most: int | None = None, /, *, limit: float | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Call `module:function(**kwargs)()` once in a new process; return `peak_bytes` and `seconds`.

    The function prepares (inputs, warm-up) and returns the work; only the work is measured. It is
    stopped as soon as it takes more than `most` bytes, or after `limit` seconds, with a DiedError.
    With `device="cuda"` among the arguments, memory is that of the allocator on the GPU.
    """
    command = [sys.executable, "-m", "paper.harness.peak", target, json.dumps(kwargs)]
    command += [] if most is None else [str(most)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise DiedError(f"not done after {limit:g} s") from None
    if child.returncode != 0:
        raise DiedError(_reason(child.returncode, child.stderr))
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return found


def trial(*args: Any, **options: Any) -> dict[str, Any]:
    """Return `cost`, or the `reason` why it could not be measured."""
    try:
        return cost(*args, **options)
    except DiedError as error:
        return {"reason": str(error)}


def _reason(code: int, stderr: str) -> str:
    """Return why a child process failed, in one line."""
    if code < 0:
        hint = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    if code == OVER:
        return last
    if "MemoryError" in stderr or "can't allocate memory" in stderr:
        return f"out of memory: {last}"
    return f"died (exit {code}): {last}"


def high_water_mark() -> int:
    """Return the most memory this process has had resident so far, in bytes."""
    if STATUS.exists():
        return _kibibytes(STATUS, "VmHWM") * 1024
    import resource  # POSIX only

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_high_water_mark() -> None:
    """Lower the mark to the memory that is resident now, where Linux allows it."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5")


def stay_within_memory() -> None:
    """Make an allocation beyond the free memory fail, and let the system kill this process first.

    This works on Linux; elsewhere nothing happens.
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


def stop_above(most: int, before: int) -> None:
    """End this process as soon as it has taken `most` bytes more than `before`."""

    def watch() -> None:
        while high_water_mark() - before <= most:
            time.sleep(GLANCE)
        print(f"out of memory: more than the {most / 2**30:.2f} GiB allowed", file=sys.stderr)
        sys.stderr.flush()
        os._exit(OVER)

    threading.Thread(target=watch, daemon=True).start()


def free_at_once() -> None:
    """Give blocks back to the system when they are freed, where the C library is glibc.

    The mark then is the memory needed at one time, without the heap's fragments. Every large block
    costs its page faults again, so time must not be measured this way.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)


def available_bytes() -> int | None:
    """Return the memory that is free for new work, or None where Linux does not report it."""
    return _kibibytes(MEMINFO, "MemAvailable") * 1024 if MEMINFO.exists() else None


def _kibibytes(path: Path, field: str) -> int:
    """Read `field:  123 kB` from a file in /proc."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {field}")


def main(target: str, kwargs: str, most: str | None = None) -> None:
    module, _, function = target.partition(":")
    prepare, options = getattr(importlib.import_module(module), function), json.loads(kwargs)
    on_gpu = options.get("device", "cpu") != "cpu"
    if not on_gpu:  # the driver of a GPU maps far more than there is
        stay_within_memory()  # counted from here: libraries map much that they never touch
    work = prepare(**options)
    peak_bytes, seconds = (_run_on_gpu if on_gpu else _run)(
        work, None if most is None else int(most)
    )
    print(json.dumps({"peak_bytes": peak_bytes, "seconds": seconds}))


def _run(work: Callable[[], object], most: int | None) -> tuple[int, float]:
    """Return the bytes that work adds to the resident high-water mark, and its seconds."""
    forget_high_water_mark()
    before, start = high_water_mark(), time.perf_counter()
    if most is not None:
        stop_above(most, before)
    result = work()
    seconds = time.perf_counter() - start
    peak_bytes = high_water_mark() - before
    del result
    return peak_bytes, seconds


def _run_on_gpu(work: Callable[[], object], most: int | None) -> tuple[int, float]:
    """Return the bytes that work adds to the peak of the GPU's allocator, and its seconds."""
    from torch import cuda

    cuda.synchronize()
    before, start = cuda.memory_allocated(), time.perf_counter()
    cuda.reset_peak_memory_stats()
    if most is not None:  # the allocator itself then raises OutOfMemoryError
        total = cuda.get_device_properties(cuda.current_device()).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, (before + most) / total))
    result = work()
    cuda.synchronize()
    seconds = time.perf_counter() - start
    peak_bytes = cuda.max_memory_allocated() - before
    del result
    return peak_bytes, seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
