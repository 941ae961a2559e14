"""Decide whether two runs are the same: a run and its checkpoint, or one run on several ranks.

A run is described by plain values, {section: {name: value}}. Whatever affects its numbers is part
of the description. Where it runs and which files it writes are not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eattn.distributed import DisagreementError
from eattn.train.checkpoint import CheckpointError
from eattn.train.config import TrainConfig
from eattn.train.task import Task

Description = dict[str, dict[str, Any]]
SHOWN = 3  # differences that a message lists


def describe(model: nn.Module, task: Task, config: TrainConfig) -> Description:
    """Describe a run by its config, the model's weights, and the task."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    weights = {
        name: f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        + (" trained" if name in trained else "")
        for name, x in model.state_dict().items()
        if isinstance(x, Tensor)
    }
    about = {
        "samples": len(task.dataset),
        "metric": task.metric,
        "better": task.better,
        "data": task.data,
    }
    return {"config": config.numerics(), "model": weights, "task": about}


def check_resumable(path: Path, saved: Description, current: Description) -> None:
    """Raise a CheckpointError that lists the differences if `path` holds another run."""
    for section, values in current.items():
        before = saved[section]
        if names := _differences(before, values):
            listed = ", ".join(
                f"{n} was {before.get(n, 'absent')} and is {values.get(n, 'absent')}"
                for n in names[:SHOWN]
            )
            more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise CheckpointError(
                f"{path} belongs to a run with another {section}: {listed}{more};"
                " delete it to start again, or choose another folder"
            )


def check_ranks_agree(descriptions: Sequence[Description]) -> None:
    """Raise a DisagreementError if the descriptions of the ranks are not all the same."""
    first = descriptions[0]
    for rank, other in enumerate(descriptions):
        for section, values in first.items():
            for name in _differences(values, other[section]):
                pair = [held.get(name, "none") for held in (values, other[section])]
                raise DisagreementError(
                    f"all processes must have the same {section}, got {name} = {pair[0]} in"
                    f" process 0 and {pair[1]} in process {rank}"
                )


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name in a | b if a.get(name, ...) != b.get(name, ...)]
