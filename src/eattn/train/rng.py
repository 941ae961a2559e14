"""Random numbers: seed them, save and restore them, and leave the caller's untouched.

Covers the global generators of Python, NumPy and torch, on the CPU and on the CUDA devices in use.
The CUDA part has not been run.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch, 0 <= seed < 2**32."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Restore all generators after the block; seed them at its start if `seed` is given.

    Examples
    --------
    >>> with isolated(seed=0):
    ...     first = torch.rand(3)
    >>> with isolated(seed=0):
    ...     assert torch.equal(torch.rand(3), first)
    """
    before = rng_state()
    try:
        if seed is not None:
            seed_everything(seed)
        yield
    finally:
        set_rng_state(before)


def rng_state() -> dict[str, Any]:
    """Return the state of all generators in tensors and plain values."""
    _, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        # An idle CUDA is not asked: that would initialize it and take memory on every GPU.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the state of all generators."""
    random.setstate(state["python"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_initialized():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
