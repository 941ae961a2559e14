"""Compare the operator on shards with one process, on every rank of a test."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

import eattn
from eattn import Quadrature, State, Taylor, distributed
from eattn.distributed import sequence_parallel
from eattn.nn import ElementwiseAttention, TransformerBlock, make_mixer
from eattn.ops import Expansion

B, D = 2, 5
LENGTHS = {2: (7, 4), 3: (3, 0, 9), 4: (5, 1, 8, 2)}  # uneven shards, one of them empty
EXPANSIONS = {"taylor": Taylor(6), "quadrature": Quadrature(13), "wide grid": Quadrature(65)}
CASES = {
    "-".join(name for name, on in zip(("causal", "mask", "state"), flags, strict=True) if on)
    or "full": flags
    for flags in itertools.product((False, True), repeat=3)
}
DECAYED = {
    "decay": (True, False, False, "decay"),
    "gate": (True, False, False, "gate"),
    "mask-state-decay": (True, True, True, "decay"),
    "mask-state-gate": (True, True, True, "gate"),
}


def draw(*shape: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def bounds() -> list[int]:
    return [0, *itertools.accumulate(LENGTHS[dist.get_world_size()])]


def mine(x: Tensor) -> Tensor:
    """Return this rank's shard of a tensor over the whole sequence."""
    first, last = bounds()[dist.get_rank() :][:2]
    return x[:, first:last]


def own(x: Tensor) -> Tensor:
    """Return a copy of this rank's shard of x, or of all of x if it has no tokens."""
    return (x if x.dim() == 1 else mine(x)).detach().clone()


def gradients(part: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of a shard, or the sum over the ranks if x has no tokens."""
    assert part.grad is not None and whole.grad is not None
    if whole.dim() == 1:
        return summed(part.grad), whole.grad
    return part.grad, mine(whole.grad)


def off(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).detach().abs().max().item() if ours.numel() else 0.0


def summed(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total


def draw_decay(kind: str, rows: int, L: int) -> list[Tensor]:
    """Return a log decay per channel, or a gate per token that is -inf for one of them."""
    if kind == "decay":
        return [-draw(D, seed=9).exp() / 4]
    gate = -draw(rows, L, D, seed=9).exp() / 4
    gate[0, L // 3, 0] = -torch.inf
    return [gate] if kind == "gate" else []


def unshifted(state: State) -> State:
    """Return the state at a shift of 0. With decay, a shift may be any number."""
    if state.log_decay is None:
        return state
    factor = torch.exp(-state.shift.square()).unsqueeze(-1)
    return replace(state, s=state.s * factor, z=state.z * factor, shift=state.log_decay.exp())


def compare(
    expansion: Expansion,
    causal: bool,
    masked: bool,
    stated: bool,
    decay: str = "",
    far: float = 0.0,
) -> float:
    """Return the largest error of y, the last state and all gradients.

    Keys move from around `far`, where exp(-k^2) underflows, to around 0 along the sequence.
    """
    L = bounds()[-1]
    away = torch.linspace(far, 0, L, dtype=torch.float64).view(L, 1)
    q, k, v = (draw(B, L, D, seed=i) for i in range(3))
    whole = [x.requires_grad_() for x in (q, k + away, v, *draw_decay(decay, B, L))]
    parts = [own(x).requires_grad_() for x in whole]
    mask = draw(B, L, seed=4) > -0.3 if masked else None
    if mask is not None:
        mask[1, : L // 2] = False
    weight, options = draw(B, L, D, seed=5), dict(expansion=expansion, causal=causal)
    states, taylor = [], isinstance(expansion, Taylor)
    shift = draw(B, D, seed=8).abs() / 2 if taylor else torch.zeros(B, D, dtype=torch.float64)
    for _ in range(2):
        start = [draw(B, D, expansion.terms, seed=i).square().requires_grad_() for i in (6, 7)]
        states.append(State(*start, shift, expansion) if stated else None)
    y, last = eattn.ea_series(
        *whole[:3],
        **options,
        key_mask=mask,
        log_decay=whole[3] if decay else None,
        state=states[0],
        return_state=True,
    )
    ours, ours_last = distributed.ea_series(
        *parts[:3],
        **options,
        log_decay=parts[3] if decay else None,
        key_mask=None if mask is None else mine(mask),
        state=states[1],
        return_state=True,
    )
    assert not expansion.wide or ours_last.s.is_contiguous()
    last, ours_last = unshifted(last), unshifted(ours_last)
    share = 1 / dist.get_world_size()  # every rank adds its part of the loss of the shared state
    of_states = [
        x.s.sin().sum() + x.z.cos().sum() + (x.shift.sum() if decay else 0)
        for x in (last, ours_last)
    ]
    ((y * weight).sum() + of_states[0]).backward()
    ((ours * mine(weight)).sum() + share * of_states[1]).backward()
    errors = [off(ours, mine(y)), *map(off, tree_leaves(ours_last), tree_leaves(last))]
    errors += [off(*gradients(*pair)) for pair in zip(parts, whole, strict=True)]
    if stated:
        errors += [
            off(summed(getattr(states[1], x).grad), getattr(states[0], x).grad) for x in ("s", "z")
        ]
    return max(errors)


def compare_cross(expansion: Expansion, masked: bool) -> float:
    """Return the largest error if queries and keys are sharded differently."""
    L, M, (rank, W) = bounds()[-1], 2 * bounds()[-1] + 1, (dist.get_rank(), dist.get_world_size())
    keys = slice(rank * M // W, (rank + 1) * M // W)
    whole = [draw(B, n, D, seed=i).requires_grad_() for i, n in enumerate((L, M, M))]
    q, k, v = whole
    parts = [x.detach().clone().requires_grad_() for x in (mine(q), k[:, keys], v[:, keys])]
    mask = draw(B, M, seed=4) > -0.3 if masked else None
    weight = draw(B, L, D, seed=5)
    y = eattn.ea_series(*whole, expansion=expansion, key_mask=mask)
    (y * weight).sum().backward()
    part = None if mask is None else mask[:, keys]
    ours = distributed.ea_series(*parts, expansion=expansion, key_mask=part)
    (ours * mine(weight)).sum().backward()
    expected = [mine(q.grad), k.grad[:, keys], v.grad[:, keys]]
    errors = [off(a.grad, b) for a, b in zip(parts, expected, strict=True)]
    return max(off(ours, mine(y)), *errors)


def compare_packed(expansion: Expansion, decay: str = "") -> float:
    """Return the largest error for packed sequences that end at, cross or lie within shards."""
    edges = bounds()
    L = edges[-1]
    starts = sorted({0, 1, 2, edges[1] - 1, edges[-2], L - 1, L})
    qkv = [draw(1, L, D, seed=i) for i in range(3)]
    whole = [x.requires_grad_() for x in (*qkv, *draw_decay(decay, 1, L))]
    parts = [own(x).requires_grad_() for x in whole]
    weight = draw(1, L, D, seed=5)
    y = eattn.ea_series(
        *whole[:3],
        expansion=expansion,
        causal=True,
        cu_seqlens=torch.tensor(starts, dtype=torch.int32),
        log_decay=whole[3] if decay else None,
    )
    (y * weight).sum().backward()
    first, last = edges[dist.get_rank() :][:2]
    inside = [start - first for start in starts if first < start < last]
    offsets = torch.tensor([0, *inside, last - first], dtype=torch.int32)
    ours = distributed.ea_series(
        *parts[:3],
        expansion=expansion,
        causal=True,
        cu_seqlens=offsets,
        log_decay=parts[3] if decay else None,
        continues=first not in starts,
    )
    (ours * mine(weight)).sum().backward()
    errors = [off(ours, mine(y))]
    errors += [off(*gradients(*pair)) for pair in zip(parts, whole, strict=True)]
    return max(errors)


def traffic(work: Callable[[], Tensor]) -> list[int]:
    """Return the bytes of each message that a rank sends in forward and backward."""
    sent = []

    def count(received: list[Tensor], own: Tensor, group: object = None) -> None:
        sent.append(own.numel() * own.element_size())
        gather(received, own, group=group)

    def count_sum(own: Tensor, group: object = None) -> None:
        sent.append(own.numel() * own.element_size())
        reduce(own, group=group)

    gather, reduce = dist.all_gather, dist.all_reduce
    with (
        mock.patch.object(dist, "all_gather", count),
        mock.patch.object(dist, "all_reduce", count_sum),
    ):
        work().sum().backward()
    return sent


def traffic_of_operator(L: int) -> list[int]:
    q, k, v = (draw(B, L, D, seed=i).float().requires_grad_() for i in range(3))
    return traffic(lambda: distributed.ea_series(q, k, v, causal=True))


def traffic_of_block(L: int) -> list[int]:
    """Measure a block with a convolution of width 4, without the comparison of inputs."""
    block = TransformerBlock(dim=D, heads=1, causal=True, short_conv=4)
    x = draw(B, L, D, seed=0).float().requires_grad_()
    with sequence_parallel(check=False):
        return traffic(lambda: block(x))


def disagree() -> dict[str, str]:
    """Return the error of this rank if the last rank has different inputs."""
    odd = dist.get_rank() == dist.get_world_size() - 1
    x, other = torch.zeros(B, 3, D), torch.zeros(B, 3, D + odd)
    tries: dict[str, Callable[[], object]] = {
        "D": lambda: distributed.ea_series(other, other, other),
        "B": lambda: distributed.ea_series(*[x[odd:]] * 3),
        "order": lambda: distributed.ea_series(x, x, x, order=4 + 2 * odd),
        "expansion": lambda: distributed.ea_series(
            x, x, x, expansion=Quadrature(17) if odd else Taylor(6)
        ),
        "dtype": lambda: distributed.ea_series(*[x.double() if odd else x] * 3),
        "causal": lambda: distributed.ea_series(x, x, x, causal=odd),
        "log_decay": lambda: distributed.ea_series(
            x, x, x, causal=True, log_decay=-x if odd else None
        ),
        "gradient": lambda: distributed.ea_series(*[x.clone().requires_grad_(odd)] * 3),
        "invalid": lambda: distributed.ea_series(x[0] if odd else x, x, x),
        "layer": lambda: ElementwiseAttention(D + odd)(other),
        "convolution": lambda: make_mixer("ea-6", D, short_conv=4)(x[odd:]),
        "invalid layer": lambda: make_mixer("ea-6", D, short_conv=4)(other),
        "mixed": lambda: distributed.ea_series(x.double(), x if odd else x.double(), x.double()),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            with sequence_parallel():
                attempt()
            found[name] = "nothing"
        except ValueError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def look_ahead() -> bool:
    """Return whether a NaN in the last shard reaches this rank."""
    q, k, v = (draw(B, 4, D, seed=i) for i in range(3))
    if dist.get_rank() == dist.get_world_size() - 1:
        k = k * torch.nan
    y = distributed.ea_series(q, k, v, causal=True)
    return bool(y.isnan().any())


def work() -> dict[str, object]:
    found: dict[str, object] = {}
    cases = (CASES | DECAYED).items()
    for (kind, expansion), (case, flags) in itertools.product(EXPANSIONS.items(), cases):
        found[f"{kind} {case}"] = compare(expansion, *flags)
    for kind, expansion in EXPANSIONS.items():
        found[f"{kind} packed"] = compare_packed(expansion)
        found[f"{kind} packed decay"] = compare_packed(expansion, "decay")
        found[f"{kind} packed gate"] = compare_packed(expansion, "gate")
        found[f"{kind} cross"] = compare_cross(expansion, masked=False)
        found[f"{kind} cross masked"] = compare_cross(expansion, masked=True)
    found["taylor far"] = max(
        compare(Taylor(6), causal, masked=False, stated=False, decay=decay, far=30.0)
        for causal, decay in ((False, ""), (True, ""), (True, "gate"))
    )
    found["operator"] = [traffic_of_operator(L) for L in (8, 500)]
    found["block"] = [traffic_of_block(L) for L in (8, 500)]
    return found | {
        "ahead": look_ahead(),
        "disagree": disagree(),
        "after": compare(Taylor(2), causal=False, masked=False, stated=False),
    }
