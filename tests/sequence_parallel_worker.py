"""Layers and models on a slice of a sequence, beside the whole in one process; for other processes.

All in float64. The loss of a run is the sum of the ranks' losses, so gradients are summed.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from distributed_worker import draw, off, summed
from torch import Tensor, nn

from eattn.distributed import Cut
from eattn.models import Forecaster, SequenceClassifier
from eattn.nn import TransformerEncoder

L, D = 13, 6
POOLINGS = ("mean", "max", "last", "flatten")


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(found, model.parameters(), strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def compare(model: nn.Module, whole: Tensor, mine: Tensor, *values: tuple[Tensor, Tensor]) -> float:
    """The largest difference: of values, of the loss, and of its gradients."""
    theirs, ours = gradients(model, whole), gradients(model, mine)
    errors = [off(summed(mine.detach()), whole.detach())]
    errors += [off(a.detach(), b.detach()) for a, b in values]
    errors += [off(summed(a), b) for a, b in zip(ours, theirs, strict=True)]
    return max(errors)


def mask_of(rows: int) -> Tensor:
    """Padding in front, in the middle and at the end; one row has next to nothing."""
    mask = draw(rows, L, seed=9) > -0.5
    mask[0, -4:], mask[1, 1:] = False, False
    mask[1, 0] = True
    return mask


def encoder(causal: bool, masked: bool) -> float:
    torch.manual_seed(0)
    made = TransformerEncoder(dim=D, depth=2, heads=2, causal=causal, short_conv=4).double()
    x, mask = draw(3, L, D, seed=1), mask_of(3) if masked else None
    own, cut = Cut().rows(L)
    part = None if mask is None else mask[:, own]
    if not causal:
        y, mine = made(x, key_mask=mask), made(x[:, own], key_mask=part, cut=cut)
        states: list[tuple[Tensor, Tensor]] = []
    else:
        options: dict[str, Any] = dict(return_state=True)
        y, state = made(x, key_mask=mask, **options)
        mine, ours = made(x[:, own], key_mask=part, cut=cut, **options)
        states = [
            (a, b)
            for i, j in zip(ours.layers, state.layers, strict=True)
            for a, b in zip((i.last, *i.after), (j.last, *j.after), strict=True)
        ]
    weight = draw(3, L, D, seed=2)
    if mask is not None:
        weight = weight * mask.unsqueeze(-1)
        y, mine = y * mask.unsqueeze(-1), mine * mask[:, own].unsqueeze(-1)
    of = (y * weight).sum(), (mine * weight[:, own]).sum()
    return compare(made, *of, (mine, y[:, own]), *states)


def packed() -> float:
    """Sequences that cross cuts, end on them, or lie between them; one has no token."""
    torch.manual_seed(0)
    made = TransformerEncoder(dim=D, depth=2, heads=2, causal=True, short_conv=4).double()
    x, weight = draw(1, L, D, seed=1), draw(1, L, D, seed=2)
    cu_seqlens = torch.tensor([0, 1, 2, 10, 10, 12, L], dtype=torch.int32)
    y = made(x, cu_seqlens=cu_seqlens)
    own, offsets, cut = Cut().packed(cu_seqlens)
    mine = made(x[:, own], cu_seqlens=offsets, cut=cut)
    return compare(made, (y * weight).sum(), (mine * weight[:, own]).sum(), (mine, y[:, own]))


def classifier(pooling: str, masked: bool) -> float:
    torch.manual_seed(0)
    made: Any = SequenceClassifier(
        2,
        3,
        pooling=pooling,
        embed="linear" if pooling == "last" else "conv",
        patch=2 if pooling == "last" else 1,
        max_len=L,
        dim=D,
        depth=1,
    ).double()
    x, mask = draw(3, L, 2, seed=1), mask_of(3) if masked else None
    y, mine = made(x, key_mask=mask), made(x, key_mask=mask, cut=Cut())
    weight = draw(3, 3, seed=2)
    share = 1 / dist.get_world_size()  # every rank has all logits
    return compare(made, (y * weight).sum(), (mine * weight).sum() * share, (mine, y))


def forecaster(masked: bool) -> float:
    torch.manual_seed(0)
    made = Forecaster(2, dim=D, depth=2, differences=True, positions=True, short_conv=3).double()
    x, mask = draw(3, L, 2, seed=1), mask_of(3) if masked else None
    found = []
    for cut in (None, Cut()):
        _, state = made(x, key_mask=mask, return_state=True, cut=cut)
        found.append(torch.stack([state.last, made.step(state.expected, state)[0]]))
    (y, mine), share = found, 1 / dist.get_world_size()
    weight = draw(*y.shape, seed=2)
    return compare(made, (y * weight).sum(), (mine * weight).sum() * share, (mine, y))


def work() -> dict[str, float]:
    both: list[tuple[str, Callable[[bool], float]]] = [
        ("encoder", lambda masked: encoder(False, masked)),
        ("causal encoder", lambda masked: encoder(True, masked)),
        ("forecaster", forecaster),
        *(
            (f"classifier {name}", lambda masked, name=name: classifier(name, masked))
            for name in POOLINGS
        ),
    ]
    found = {"packed encoder": packed()}
    for (name, make), masked in itertools.product(both, (False, True)):
        found[f"{name}{' masked' if masked else ''}"] = make(masked)
    return found
