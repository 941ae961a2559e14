"""What estimators are given beside data: numbers of NumPy's, seeds, and devices."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eattn.train import Processes


def plain(value: Any) -> Any:
    """NumPy's numbers, as grids of parameters hold them, as Python's.

    >>> plain(np.int64(3))
    3
    """
    return value.item() if isinstance(value, np.generic) else value


def plain_params(estimator: Any) -> dict[str, Any]:
    """An estimator's arguments as they were given, in Python's own types."""
    return {name: plain(value) for name, value in estimator.get_params(deep=False).items()}


def saved_params(fitted: Any) -> dict[str, Any]:
    """An estimator's arguments as they are kept with its model: how to make it again anywhere."""
    params = plain_params(fitted)
    if not isinstance(params["random_state"], int | None):
        params["random_state"] = fitted.seed_
    return params | {"device": str(fitted.device), "checkpoint": None}


def digest(tensors: Iterable[Tensor]) -> str:
    """What tells data from other data."""
    found = hashlib.sha256()
    for x in tensors:
        found.update(f"{x.dtype} {list(x.shape)}".encode())
        found.update(x.contiguous().numpy().data)
    return found.hexdigest()[:16]


def seed_of(random_state: Any) -> int:
    """The seed itself, one drawn from a RandomState, or for None one that nobody can know.

    Of several processes, each of which would draw another, all have the first one's.
    """
    if random_state is None:
        drawn = int(np.random.SeedSequence().generate_state(1)[0])
        return int(Processes.current().broadcast(drawn))
    if isinstance(random_state, np.random.RandomState):
        return int(Processes.current().broadcast(int(random_state.randint(2**31))))
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
