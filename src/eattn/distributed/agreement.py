"""Compare the inputs of all ranks, so that a mismatch raises instead of hanging."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from eattn.ops.checks import FLOATS

Result = TypeVar("Result")
# Properties that must be the same on all ranks; each is sent as one integer.
FIELDS = (
    "B",
    "D",
    "expansion",
    "order or nodes",
    "radius",
    "dtype",
    "causal",
    "cu_seqlens",
    "log_decay",
    "state",
    "return_state",
    "gradient",
)
RADIUS_SCALE = 2**20  # a radius is sent as an integer multiple of 1 / RADIUS_SCALE
NAMES: dict[str, tuple[Any, ...]] = {
    "expansion": ("Taylor", "Quadrature"),
    "dtype": FLOATS,
}
FLAGS = ("causal", "cu_seqlens", "log_decay", "state", "return_state", "gradient")


class DisagreementError(ValueError):
    """Raised on every rank if the inputs of the ranks do not match."""


def agree(
    work: Callable[[], tuple[Result, Mapping[str, int]]], group: dist.ProcessGroup | None
) -> Result:
    """Run `work` and return its result if its properties are the same on all ranks.

    `work` returns a result and properties named as in `FIELDS`, which one small all-gather
    compares. If `work` raises on a rank, that rank raises its own error and all others a
    `DisagreementError`.
    """
    failure: Exception | None = None
    own = [0] * len(FIELDS)
    try:
        result, properties = work()
        own = [int(properties.get(name, 0)) for name in FIELDS]
    except Exception as error:
        failure = error
    sent = torch.tensor([failure is None, *own], device=_device(group))
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(received, sent, group=group)
    if failure is not None:
        raise failure
    rows = [x.tolist() for x in received]
    failed = [rank for rank, row in enumerate(rows) if not row[0]]
    if failed:
        raise DisagreementError(
            f"rank {failed[0]} raised an error for its inputs, so no rank computes a result;"
            f" see the error of rank {failed[0]}"
        )
    for i, name in enumerate(FIELDS, 1):
        other = next((rank for rank, row in enumerate(rows) if row[i] != rows[0][i]), None)
        if other is not None:
            raise DisagreementError(
                f"all ranks must have the same {name}, got {_decode(name, rows[0][i])} on rank 0"
                f" and {_decode(name, rows[other][i])} on rank {other}"
            )
    return result


def _decode(name: str, value: int) -> Any:
    """Convert the integer that was sent for a property back to its value."""
    if name in NAMES:
        return NAMES[name][value]
    if name == "radius":
        return value / RADIUS_SCALE
    return bool(value) if name in FLAGS else value


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device on which the backend of the group communicates."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
