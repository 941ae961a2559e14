"""Weights of which every process keeps a part (FSDP2), and what is whole made of parts and back."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from eattn.nn import TransformerBlock

Slots = dict[str, dict[str, Tensor]]  # of an optimiser: by the parameter's name and its own


def shard(model: nn.Module, device: torch.device, mesh: DeviceMesh) -> nn.Module:
    """A copy of the first process's model with a part of every weight here.

    Blocks are whole while they compute, one after the other; what is not in a block is whole from
    the beginning of a forward to the end of its backward.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model = copy.deepcopy(getattr(model, "_orig_mod", model))
    blocks = [m for m in model.modules() if isinstance(m, TransformerBlock)]
    for part in [*blocks, model]:  # one after the other: the device never holds all of it
        for tensor in _whole_ones(part):
            tensor.data = tensor.data.to(device)
        same(part)
        fully_shard(part, mesh=mesh)
    for block in blocks:
        register_fsdp_forward_method(block, "step")
    return model


def _whole_ones(model: nn.Module, *, parameters: bool = True) -> list[Tensor]:
    """Weights and buffers, or buffers alone, that are not in parts."""
    held = [*(model.parameters() if parameters else ()), *model.buffers()]
    return [tensor for tensor in held if not hasattr(tensor, "full_tensor")]


def same(model: nn.Module, *, parameters: bool = True) -> None:
    """Give all processes the first one's weights and buffers, or buffers alone."""
    for tensor in _whole_ones(model, parameters=parameters):
        dist.broadcast(tensor.detach(), src=0)


@torch.no_grad()
def give_back(model: nn.Module, to: nn.Module) -> None:
    """The weights of a model in parts to the one it is a copy of, wherever that is."""
    room = to.state_dict()
    for name, x in model.state_dict().items():
        if isinstance(x, Tensor):  # one by one: the device never holds all of them
            room[name].copy_(whole(x))


def rest(model: nn.Module) -> None:
    """Let go of what is whole: after a forward without a backward the outermost weights are."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def whole(tensor: Any) -> Any:
    """All of a tensor of which this process may hold a part; every process must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Any) -> Any:
    """What this process holds of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def part(full: Any, like: Any) -> Any:
    """Of a whole tensor, what `like` holds of its own; any other value as it is."""
    if not isinstance(full, Tensor) or not hasattr(like, "full_tensor"):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements)


def parts(full: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part(x, like[name]) if name in like else x for name, x in full.items()}


def named(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The optimiser's parameters in its order, by name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def slots(model: nn.Module, optimizer: torch.optim.Optimizer) -> Slots:
    """What the optimiser keeps of each parameter, under a name that is the same in any run."""
    return {name: dict(optimizer.state[p]) for name, p in named(model, optimizer)}


def empty_slots(
    model: nn.Module, optimizer: torch.optim.Optimizer, sizes: Mapping[str, Mapping[str, list[int]]]
) -> Slots:
    """Room for slots of these sizes: of a parameter's own size as it is spread, others whole."""
    found: Slots = {}
    for name, p in named(model, optimizer):
        found[name] = {
            key: torch.zeros_like(p.detach()) if list(p.shape) == size else torch.zeros(size)
            for key, size in sizes.get(name, {}).items()
        }
    return found


def fill_slots(model: nn.Module, optimizer: torch.optim.Optimizer, held: Slots) -> None:
    """The optimiser puts each where it wants it: fused, its steps are beside the weights."""
    state = {number: held[name] for number, (name, _) in enumerate(named(model, optimizer))}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def load_whole(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    """An optimiser's own `state_dict`, of whole tensors, for one that may hold parts."""
    state = {}
    for number, (_, p) in enumerate(named(model, optimizer)):
        held = saved["state"].get(number, {})
        like = {key: p if x.shape == p.shape else None for key, x in held.items()}
        state[number] = {key: part(x, like[key]) for key, x in held.items()}
    optimizer.load_state_dict({**saved, "state": state})


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings of what does no harm.

    FSDP2 warns of views, which we change nothing in. DDP warns of a gradient whose strides differ
    from its weight's, if only along an axis of length 1, as those of a convolution of one channel.
    """
    with warnings.catch_warnings():
        for message in ("FSDP2-wrapped module", "Grad strides do not match bucket view strides"):
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield
