"""EA-series of one sequence that is spread over many processes, each holding a slice of it.

All that a rank must know of the others' keys and values is their State. So the states are
exchanged, O(BDN) bytes from each rank however long the sequence is, and merged; the backward
exchanges the gradients of what was merged, in as many bytes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from eattn import ops
from eattn.distributed.agreement import SCALE
from eattn.distributed.context import Shard
from eattn.distributed.exchange import merged
from eattn.ops import Expansion, Quadrature, State, accumulate, readout
from eattn.ops.backends import choose
from eattn.ops.checks import FLOATS, check_cu_seqlens, check_qkv, check_state
from eattn.ops.expansion import DEFAULT_ORDER, resolve_expansion

QKV = tuple[Tensor, Tensor, Tensor]


def ea_series(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = DEFAULT_ORDER,
    expansion: Expansion | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    continues: bool = False,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
    group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> Any:
    """Compute `eattn.ea_series` for this rank's shard of a sequence over the ranks of `group`.

    q [B, Lq, D], k and v [B, Lk, D] are slices, in the order of ranks and of any lengths, 0 too; y
    [B, Lq, D] is what these queries get from the keys of all. `state`, the same on every rank,
    comes before the first slice; with `return_state` every rank gets the state after the last.

    `cu_seqlens` are the offsets of sequences packed along this rank's slice (causal only), the
    first of which goes on from the slice before if it `continues`; the states that come back are
    then of this rank's sequences, of the last as far as it is here.

    Every rank must make the call, and the backward of it: a rank that does not is waited for. Ranks
    that were given different B, D, order, dtype or options all raise a `DisagreementError`, and if
    one refuses its arguments so do the others. That costs a message of 96 bytes; check=False saves
    it where the ranks are known to agree.

    The loss is the sum of the ranks' losses: of what all ranks hold alike (`state`, or the weights
    of a layer) each gets its own part of the gradient, and the sum is the whole.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed must be initialised first (torchrun, then init_process_group);"
            " in one process eattn.ea_series does the same"
        )

    def checked() -> tuple[tuple[Expansion, QKV], dict[str, int]]:
        found = resolve_expansion(order, expansion)
        x, *_ = qkv = check_qkv(q, k, v, causal=causal, key_mask=key_mask)  # in one dtype
        choose(backend, x)
        if cu_seqlens is not None:
            _check_packed(causal, state)
            check_cu_seqlens(cu_seqlens, q, k)
        if state is not None:
            check_state(state, len(k), k, found)
        return (found, qkv), {
            "B": k.shape[0],
            "D": k.shape[2],
            "expansion": isinstance(found, Quadrature),
            "order or nodes": found.nodes if isinstance(found, Quadrature) else found.order,
            "radius": round(found.radius * SCALE),
            "dtype": FLOATS.index(x.dtype),
            "causal": causal,
            "cu_seqlens": cu_seqlens is not None,
            "state": state is not None,
            "return_state": return_state,
            "gradient": torch.is_grad_enabled() and (k.requires_grad or v.requires_grad),
        }

    expansion, (q, k, v) = Shard(group, check=check).agree(checked)
    if cu_seqlens is not None:
        return _packed(
            (q, k, v), expansion, key_mask, cu_seqlens, continues, return_state, backend, group
        )
    own = accumulate(k, v, expansion=expansion, key_mask=key_mask, backend=backend)
    if not causal:
        (whole,) = merged(own, ("all",), group)
        whole = whole if state is None else State.merge(state, whole)
        y = readout(q, whole, backend=backend)
        return (y, whole) if return_state else y
    before, *whole_too = merged(own, ("before", "all") if return_state else ("before",), group)
    before, *whole_too = (
        x if state is None else State.merge(state, x) for x in (before, *whole_too)
    )
    y = ops.ea_series(
        q,
        k,
        v,
        expansion=expansion,
        causal=True,
        key_mask=key_mask,
        state=before,
        backend=backend,
    )
    return (y, *whole_too) if return_state else y


def _check_packed(causal: bool, state: State | None) -> None:
    if not causal:
        raise ValueError(
            "cu_seqlens needs causal=True here: a sequence's later slices are not known"
        )
    if state is not None:
        raise ValueError("state must be None with cu_seqlens: the ranks before give it")


def _packed(
    qkv: QKV,
    expansion: Expansion,
    key_mask: Tensor | None,
    cu_seqlens: Tensor,
    continues: bool,
    return_state: bool,
    backend: str | None,
    group: dist.ProcessGroup | None,
) -> Any:
    """Only the last sequence goes on, and only the first has begun before."""
    _, k, v = qkv
    last, rows = int(cu_seqlens[-2]), len(cu_seqlens) - 1
    mask = None if key_mask is None else key_mask[:, last:]
    own = accumulate(k[:, last:], v[:, last:], expansion=expansion, key_mask=mask, backend=backend)
    begins = rows > 1 or not continues
    (before,) = merged(own, ("before",), group, begins=begins, continues=continues)
    empty = State.zeros(
        rows - 1, k.shape[2], expansion=expansion, device=k.device, dtype=before.s.dtype
    )
    state = tree_map(lambda *pair: torch.cat(pair), before, empty)
    y, after = ops.ea_series(
        *qkv,
        expansion=expansion,
        causal=True,
        key_mask=key_mask,
        cu_seqlens=cu_seqlens,
        state=state,
        return_state=True,
        backend=backend,
    )
    return (y, after) if return_state else y
