"""What this machine and this install offer: versions, processor, threads, backends."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import torch

import eattn
from eattn.ops import backends, native

# What a kernel could make use of, by the names Linux gives them on x86 and ARM.
X86 = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_tile")
ARM = ("asimd", "sve", "sve2", "bf16")


def describe() -> dict[str, str]:
    """What is installed, where it runs, and each backend: `runs`, or the reason it does not."""
    lines = {
        "eattn": eattn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{cpu_name()}, {cores()} cores",
        "features": ", ".join([torch.backends.cpu.get_cpu_capability(), *cpu_features()]),
        "threads": str(torch.get_num_threads()),
    }
    for name, reason in backends().items():
        lines[f"backend {name}"] = reason or "runs"
    if backends()["native"] is None:
        lines["backend native"] += f" ({native.describe()})"
    return lines


def cores() -> int:
    """Cores this process may use, which containers and `taskset` make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's own name, as far as the system tells it."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() or platform.machine()
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Those that Linux reports; empty on other systems."""
    fields = _cpuinfo()
    present = (fields.get("flags") or fields.get("Features") or "").split()
    return [name for name in X86 + ARM if name in present]


def _cpuinfo() -> dict[str, str]:
    """/proc/cpuinfo of the first core, or nothing."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first_core = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
