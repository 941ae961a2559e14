"""Compare layers on shards with the whole sequence in one process, in float64.

The loss is the sum of the ranks' losses, so gradients are summed over the ranks.
"""

import functools
import itertools
from typing import Any

import torch
from distributed_worker import draw, off, summed, unshifted
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from eattn.distributed import Shard, current_shard, sequence_parallel
from eattn.models import Forecaster, SequenceClassifier
from eattn.nn import TransformerBlock, TransformerEncoder, make_mixer

L, D = 13, 6
# Mixers that cannot run on shards: exact EA, a center that depends on all keys, and others
UNSHARDED = ("ea", "sa", "gru", "la", "aft", "linear-rnn", "ea-6+center")


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(found, model.parameters(), strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def compare(model: nn.Module, whole: Tensor, mine: Tensor, *values: tuple[Tensor, Tensor]) -> float:
    """Return the largest error of values, loss and gradients of the loss."""
    theirs, ours = gradients(model, whole), gradients(model, mine)
    errors = [off(summed(mine.detach()), whole.detach())]
    errors += [off(a.detach(), b.detach()) for a, b in values]
    errors += [off(summed(a), b) for a, b in zip(ours, theirs, strict=True)]
    return max(errors)


def mask_of(rows: int) -> Tensor:
    """Return a mask with padding on both sides and in between; one row has a single token."""
    mask = draw(rows, L, seed=9) > -0.5
    mask[0, -4:], mask[1, 1:] = False, False
    mask[1, 0] = True
    return mask


def encoder(causal: bool, masked: bool, mixer: str = "ea-6") -> float:
    torch.manual_seed(0)
    options: Any = dict(mixer=mixer, heads=2, causal=causal, short_conv=4)
    made = TransformerEncoder(dim=D, depth=2, **options).double()
    x, mask = draw(3, L, D, seed=1), mask_of(3) if masked else None
    own, shard = Shard().rows(L)
    part = None if mask is None else mask[:, own]
    states: list[tuple[Tensor, Tensor]] = []
    if not causal:
        y = made(x, key_mask=mask)
        with shard.active():
            mine = made(x[:, own], key_mask=part)
    else:
        y, state = made(x, key_mask=mask, return_state=True)
        with shard.active():
            mine, ours = made(x[:, own], key_mask=part, return_state=True)
        for i, j in zip(ours.layers, state.layers, strict=True):
            pair = unshifted(i.after), unshifted(j.after)
            states += [(i.conv, j.conv), *zip(*map(tree_leaves, pair), strict=True)]
    weight = draw(3, L, D, seed=2)
    if mask is not None:
        weight = weight * mask.unsqueeze(-1)
        y, mine = y * mask.unsqueeze(-1), mine * mask[:, own].unsqueeze(-1)
    losses = (y * weight).sum(), (mine * weight[:, own]).sum()
    return compare(made, *losses, (mine, y[:, own]), *states)


def packed(mixer: str) -> float:
    """Return the error for packed sequences that cross, end at or lie within shards."""
    torch.manual_seed(0)
    options: Any = dict(mixer=mixer, heads=2, causal=True, short_conv=4)
    made = TransformerEncoder(dim=D, depth=2, **options).double()
    x, weight = draw(1, L, D, seed=1), draw(1, L, D, seed=2)
    cu_seqlens = torch.tensor([0, 1, 2, 10, 10, 12, L], dtype=torch.int32)
    y = made(x, cu_seqlens=cu_seqlens)
    own, offsets, shard = Shard().packed(cu_seqlens)
    with shard.active():
        mine = made(x[:, own], cu_seqlens=offsets)
    return compare(made, (y * weight).sum(), (mine * weight[:, own]).sum(), (mine, y[:, own]))


def recomputed(kind: str) -> float:
    """Return the error of a block under gradient checkpointing or torch.compile."""
    torch.manual_seed(0)
    block = TransformerBlock(dim=D, heads=2, causal=True, short_conv=4).double()
    x, weight = draw(1, L, D, seed=1), draw(1, L, D, seed=2)
    y = block(x)
    own, shard = Shard().rows(L)
    compiled = torch.compile(block, backend="eager")
    with sequence_parallel(before=shard.before):
        if kind == "compiled":
            mine = compiled(x[:, own])
        else:
            mine = checkpoint(block, x[:, own], use_reentrant=False)
        return compare(block, (y * weight).sum(), (mine * weight[:, own]).sum(), (mine, y[:, own]))


def unsupported() -> dict[str, str]:
    """Return the errors of layers that cannot run on a shard."""
    x, found = torch.zeros(1, 3, 8), {}
    step = make_mixer("ea-6", 8, causal=True)
    tries: dict[str, Any] = {
        "step": lambda: step.step(x[:, 0]),
        "SequenceClassifier": lambda: SequenceClassifier(8, 2, dim=8, depth=1)(x),
        "Forecaster": lambda: Forecaster(8, dim=8, depth=1)(x),
    }
    for name, causal in itertools.product(UNSHARDED, (False, True)):
        mixer = make_mixer(name, 8, heads=2, short_conv=2, causal=causal)
        tries[f"{name} {causal}"] = functools.partial(mixer, x)
    for name, attempt in tries.items():
        try:
            with sequence_parallel():
                attempt()
        except ValueError as error:
            found[name] = str(error)
    found["left open"] = str(current_shard())
    return found


def work() -> dict[str, Any]:
    found = {f"packed {mixer}": packed(mixer) for mixer in ("ea-6", "ea-6+gate")}
    for causal, masked in itertools.product((False, True), repeat=2):
        found[f"encoder causal={causal} masked={masked}"] = encoder(causal, masked)
    for mixer in ("ea-6+decay", "ea-6+gate"):
        found[f"encoder {mixer}"] = encoder(True, True, mixer)
    for kind in ("checkpointed", "compiled"):
        found[kind] = recomputed(kind)
    return {"sharded": found, "unsharded": unsupported()}
