"""Fused GPU kernels in Triton, for CUDA and ROCm. Triton is imported on the first call."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from eattn.ops.triton.configs import MAX_TERMS, saved_shape

__all__ = [
    "DEVICE",
    "MAX_TERMS",
    "backward",
    "forward",
    "no_device",
    "saved_shape",
    "unavailable",
]

OLDEST = (3, 4)  # earlier versions do not support constants with fields; part of torch 2.8
OWN_LAUNCHER = (3, 9)  # earlier versions compile a C module on the first launch
# With this variable set, Triton interprets kernels in Python, on CPU tensors.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"  # PyTorch uses "cuda" for ROCm, too


def unavailable() -> str | None:
    """Return why the kernels cannot be compiled, or None if they can, without importing Triton."""
    if util.find_spec("triton") is None:
        return 'Triton is not installed: pip install "eattn[gpu]"'
    found = version()
    if found is not None and found < OLDEST:
        had, needed = (".".join(map(str, x)) for x in (found, OLDEST))
        return f"Triton {had} is too old: {needed} is needed, which comes with torch 2.8"
    if found is not None and found < OWN_LAUNCHER and not INTERPRETED and not _compiles():
        return (
            f"Triton {'.'.join(map(str, found))} needs a C compiler to launch kernels,"
            " gcc or clang, and Python's headers"
        )
    return None


def _compiles() -> bool:
    """Return whether Triton will find a C compiler and Python's headers."""
    names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return any(map(shutil.which, names)) and header.exists()


def no_device() -> str | None:
    """Return why there is no device for the kernels, or None if there is one."""
    if INTERPRETED or torch.cuda.is_available():
        return None
    return "no CUDA or ROCm device is available"


def version() -> tuple[int, int] | None:
    """Return Triton's version; several packages provide it."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        try:
            major, minor, *_ = metadata.version(name).split(".")
            return int(major), int(minor)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return None


def _launched(name: str) -> Callable[..., Any]:
    """Return a function of `launch`, which is imported when the function is called."""

    def call(*args: Any, **options: Any) -> Any:
        from eattn.ops.triton import launch

        return getattr(launch, name)(*args, **options)

    return call


forward = _launched("forward")
backward = _launched("backward")
