"""What estimators are given beside data: numbers of NumPy's, seeds, and devices."""

from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """NumPy's numbers, as grids of parameters hold them, as Python's.

    >>> plain(np.int64(3))
    3
    """
    return value.item() if isinstance(value, np.generic) else value


def seed_of(random_state: Any) -> int:
    """The seed itself, one drawn from a RandomState, or for None one that nobody can know."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, bool) or not isinstance(random_state, int):
        kind = type(random_state).__name__
        raise TypeError(f"random_state must be an int, a RandomState or None, got {kind}")
    return random_state


def usable(device: str) -> torch.device:
    """The device of that name, or the CPU where this machine has no such one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError):  # the latter from a torch without CUDA
        return torch.device("cpu")
