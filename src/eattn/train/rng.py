"""Random numbers: seeded for a run, saved with it, and the caller's own left as they were.

Those of Python, of NumPy's global generator, and of torch on the CPU and on every CUDA device in
use. The CUDA part has not been run on a card.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, 0 <= seed < 2**32."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """A block whose random numbers, seeded if there is a seed, change nothing for what follows.

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
    """Where all generators stand, in tensors and plain values."""
    _, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        # Asking an idle CUDA would wake it, and take memory on every card.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put all generators where they stood."""
    random.setstate(state["python"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_initialized():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
