"""Ranks that are about to compute different things raise, instead of waiting indefinitely."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from eattn.ops.checks import FLOATS

Result = TypeVar("Result")
# Facts that must be the same on all ranks; each is sent as one integer.
FIELDS = (
    "B",
    "D",
    "expansion",
    "order or nodes",
    "radius",
    "dtype",
    "causal",
    "cu_seqlens",
    "state",
    "return_state",
    "gradient",
)
SCALE = 2**20  # of a radius
NAMES: dict[str, tuple[Any, ...]] = {
    "expansion": ("Taylor", "Quadrature"),
    "dtype": FLOATS,
}
FLAGS = ("causal", "cu_seqlens", "state", "return_state", "gradient")


class DisagreementError(ValueError):
    """The inputs of one rank do not fit those of another."""


def agree(
    work: Callable[[], tuple[Result, Mapping[str, int]]], group: dist.ProcessGroup | None
) -> Result:
    """Return the result of `work` if all ranks find the same facts, in one small all-gather.

    `work` returns its result and facts named as in `FIELDS`. If it raises on any rank, every rank
    raises: this one its own error, the others a `DisagreementError`.
    """
    wrong: Exception | None = None
    mine = [0] * len(FIELDS)
    try:
        result, facts = work()
        mine = [int(facts.get(name, 0)) for name in FIELDS]
    except Exception as error:
        wrong = error
    told = torch.tensor([wrong is None, *mine], device=_device(group))
    every = [torch.empty_like(told) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, told, group=group)
    if wrong is not None:
        raise wrong
    rows = [x.tolist() for x in every]
    refused = [rank for rank, row in enumerate(rows) if not row[0]]
    if refused:
        raise DisagreementError(
            f"rank {refused[0]} refused what it was given, and says why; so nothing was computed"
        )
    for i, name in enumerate(FIELDS, 1):
        other = next((rank for rank, row in enumerate(rows) if row[i] != rows[0][i]), None)
        if other is not None:
            raise DisagreementError(
                f"all ranks must have the same {name}, got {_shown(name, rows[0][i])} on rank 0"
                f" and {_shown(name, rows[other][i])} on rank {other}"
            )
    return result


def _shown(name: str, value: int) -> Any:
    if name in NAMES:
        return NAMES[name][value]
    if name == "radius":
        return value / SCALE
    return bool(value) if name in FLAGS else value


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend wants its tensors."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
