"""Describe the machine and the installation: versions, processor, threads, backends."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import torch

import eattn
from eattn.ops import backends, native

# Instruction sets relevant to the kernels, by their Linux names on x86 and ARM.
FEATURES = "avx2 fma f16c avx512f avx512bw avx512_bf16 avx512_fp16 amx_tile asimd sve sve2 bf16"


def describe() -> dict[str, str]:
    """Return versions, hardware, and for each backend `runs` or the reason why it cannot."""
    cpu = _cpuinfo()
    present = (cpu.get("flags") or cpu.get("Features") or "").split()
    features = [name for name in FEATURES.split() if name in present]
    lines = {
        "eattn": eattn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": f"{cpu_name()}, {cores()} cores",
        "features": ", ".join([torch.backends.cpu.get_cpu_capability(), *features]),
        "threads": str(torch.get_num_threads()),
    }
    for name, reason in backends().items():
        lines[f"backend {name}"] = reason or "runs"
    if backends()["native"] is None:
        lines["backend native"] += f" ({native.describe()})"
    return lines


def cores() -> int:
    """Return the number of cores available to this process, as limited by `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Return the name of the processor, or its architecture if the name is unknown."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() or platform.machine()
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _cpuinfo() -> dict[str, str]:
    """Return /proc/cpuinfo of the first core, or an empty dict on other systems."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first_core = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
