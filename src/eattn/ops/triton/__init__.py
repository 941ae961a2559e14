"""Fused GPU kernels, in Triton, for CUDA and ROCm. Triton itself is imported on the first call."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from eattn.ops.triton.configs import saved_shape

__all__ = ["DEVICE", "backward", "forward", "no_device", "saved_shape", "unavailable"]

OLDEST = (3, 4)  # before it constants have no fields; it comes with torch 2.8
OWN_LAUNCHER = (3, 9)  # before it a C module is built on the first launch
# Triton's own switch: then its kernels run in Python, on tensors of the CPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"  # PyTorch says "cuda" of ROCm too


def unavailable() -> str | None:
    """Why the kernels cannot be compiled here; None when they can. Imports nothing."""
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
    """Whether Triton, by its own rules, finds what it builds its launcher with."""
    names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return any(map(shutil.which, names)) and header.exists()


def no_device() -> str | None:
    """Why there is nothing to run them on."""
    if INTERPRETED or torch.cuda.is_available():
        return None
    return "there is no CUDA or ROCm device"


def version() -> tuple[int, int] | None:
    """Of Triton, by any of the names it is packed under."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        try:
            major, minor, *_ = metadata.version(name).split(".")
            return int(major), int(minor)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return None


def _launched(name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        from eattn.ops.triton import launch

        return getattr(launch, name)(*args, **options)

    return call


forward = _launched("forward")
backward = _launched("backward")
