"""Peak memory of one piece of work, seen by the operating system, in a process of its own.

A fresh interpreter per point: nothing an earlier point left in the allocator can hide a cost.
"""

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


def peak_extra_bytes(target: str, **kwargs: Any) -> int:
    """Bytes that calling `module:function(**kwargs)()` adds to the resident high-water mark.

    The function prepares (inputs, warm-up) and returns the work; only the work is measured.
    """
    command = [sys.executable, "-m", "eattn.bench.peak", target, json.dumps(kwargs)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        reason = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{target} died measuring memory (exit {child.returncode}): {reason}")
    return int(child.stdout.strip().splitlines()[-1])


def high_water_mark() -> int:
    """Most memory this process has had resident so far, in bytes."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # POSIX only

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_high_water_mark() -> None:
    """Lower the mark to what is resident now, where Linux allows it."""
    with contextlib.suppress(OSError):
        CLEAR_REFS.write_text("5")


def main(target: str, kwargs: str) -> None:
    module, _, function = target.partition(":")
    work = getattr(importlib.import_module(module), function)(**json.loads(kwargs))
    forget_high_water_mark()
    before = high_water_mark()
    result = work()
    print(high_water_mark() - before)
    del result


if __name__ == "__main__":
    main(*sys.argv[1:])
