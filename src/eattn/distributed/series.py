"""EA-series of one sequence that is split over the ranks of a process group.

The `State` is all that a rank needs to know about the keys and values of other ranks. Each rank
sends its state, O(BDN) bytes whatever the length of the sequence, and merges those it receives. The
backward exchanges gradients of the merged states, which have the same size.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from eattn import ops
from eattn.distributed.agreement import RADIUS_SCALE
from eattn.distributed.context import Shard
from eattn.distributed.exchange import merge_ranks
from eattn.ops import Expansion, Quadrature, State, accumulate, readout
from eattn.ops.backends import choose
from eattn.ops.checks import FLOATS, check_cu_seqlens, check_log_decay, check_qkv, check_state
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
    log_decay: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
    group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> Any:
    """Compute `eattn.ea_series` for this rank's shard of a sequence over the ranks of `group`.

    Every rank of the group must make this call and run its backward; otherwise the others hang.
    Gradients are those of the sum of all ranks' losses. For tensors that all ranks share, such as
    `state`, weights or a `log_decay` of shape (D,), each rank gets its own part of the gradient,
    and the sum over the ranks is the gradient.

    Parameters
    ----------
    q : Tensor, shape (B, Lq, D)
        Queries of this rank. Shards are in rank order and may have any length, including 0.
    k, v : Tensor, shape (B, Lk, D)
        Keys and values of this rank.
    order : int, default 6
        Highest power of the Taylor polynomial. Cannot be combined with `expansion`.
    expansion : Taylor or Quadrature, optional
        Expansion of the kernel.
    causal : bool, default False
        Attend only to earlier tokens and the token itself.
    key_mask : bool Tensor, shape (B, Lk), optional
        True for valid keys of this rank.
    cu_seqlens : int32 Tensor, shape (n + 1,), optional
        Offsets of sequences packed along this rank's shard, with B = 1. Requires `causal`.
    continues : bool, default False
        With `cu_seqlens`, whether the first sequence continues from the shard before.
    log_decay : Tensor, shape (B, Lk, D) or (D,), optional
        Log decay before each token of this rank, as in `eattn.ea_series`. Requires `causal`.
    state : State, optional
        State before the first shard, the same on every rank. Cannot be combined with `cu_seqlens`.
    return_state : bool, default False
        Also return the state after the last shard or, with `cu_seqlens`, the state after each of
        this rank's sequences, up to the end of the shard.
    backend : str, optional
        Name of the backend; the fastest that fits by default.
    group : ProcessGroup, optional
        Ranks that share the sequence; the default group if omitted.
    check : bool, default True
        Compare B, D, expansion, dtype and options of all ranks first, in a message of 104 bytes.

    Returns
    -------
    y : Tensor, shape (B, Lq, D)
        Outputs for this rank's queries, which attend to the keys of all ranks.
    state : State, only if `return_state`

    Raises
    ------
    DisagreementError
        On every rank if the arguments of the ranks do not match, or if another rank raises.

    Examples
    --------
    On every rank, for q, k and v [B, L, D] of the whole sequence::

        own, _ = Shard(group).rows(L)
        y = ea_series(q[:, own], k[:, own], v[:, own], causal=True, group=group)
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed must be initialised first: start with torchrun and call"
            " init_process_group, or use eattn.ea_series in a single process"
        )

    def checked() -> tuple[tuple[Expansion, QKV], dict[str, int]]:
        found = resolve_expansion(order, expansion)
        x, *_ = qkv = check_qkv(q, k, v, causal=causal, key_mask=key_mask)  # in one dtype
        choose(backend, x, found)
        if causal and x.shape[1] != k.shape[1]:
            raise ValueError(
                "causal=True needs as many queries as keys on each rank, got"
                f" Lq = {x.shape[1]} and Lk = {k.shape[1]}"
            )
        if log_decay is not None:
            check_log_decay(log_decay, k, causal)
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
            "radius": round(found.radius * RADIUS_SCALE),
            "dtype": FLOATS.index(x.dtype),
            "causal": causal,
            "cu_seqlens": cu_seqlens is not None,
            "log_decay": log_decay is not None,
            "state": state is not None,
            "return_state": return_state,
            "gradient": torch.is_grad_enabled()
            and any(x is not None and x.requires_grad for x in (k, v, log_decay)),
        }

    expansion, (q, k, v) = Shard(group, check=check).agree(checked)
    if cu_seqlens is not None:
        return _packed(
            (q, k, v),
            expansion,
            key_mask,
            cu_seqlens,
            continues,
            log_decay,
            return_state,
            backend,
            group,
        )
    tokens: Any = dict(key_mask=key_mask, log_decay=log_decay)
    own = accumulate(k, v, expansion=expansion, **tokens, backend=backend)
    if not causal:
        (whole,) = merge_ranks(own, ("all",), group)
        whole = whole if state is None else State.merge(state, whole)
        y = readout(q, whole, backend=backend)
        return (y, whole) if return_state else y
    merged = merge_ranks(own, ("before", "all") if return_state else ("before",), group)
    before, *last = (x if state is None else State.merge(state, x) for x in merged)
    options: Any = dict(expansion=expansion, causal=True, state=before, backend=backend)
    y = ops.ea_series(q, k, v, **tokens, **options)
    return (y, *last) if return_state else y


def _check_packed(causal: bool, state: State | None) -> None:
    if not causal:
        raise ValueError(
            "cu_seqlens needs causal=True over several ranks: later shards are not known"
        )
    if state is not None:
        raise ValueError("state must be None with cu_seqlens: earlier ranks provide it")


def _packed(
    qkv: QKV,
    expansion: Expansion,
    key_mask: Tensor | None,
    cu_seqlens: Tensor,
    continues: bool,
    log_decay: Tensor | None,
    return_state: bool,
    backend: str | None,
    group: dist.ProcessGroup | None,
) -> Any:
    """Compute packed sequences: only the first one has a past, only the last one continues."""
    _, k, v = qkv
    last, rows = int(cu_seqlens[-2]), len(cu_seqlens) - 1
    mask = None if key_mask is None else key_mask[:, last:]
    decays = log_decay
    if log_decay is not None and log_decay.dim() == 3:
        decays = log_decay[:, last:]
    options: Any = dict(expansion=expansion, backend=backend)
    own = accumulate(k[:, last:], v[:, last:], key_mask=mask, log_decay=decays, **options)
    begins = rows > 1 or not continues
    (before,) = merge_ranks(own, ("before",), group, begins=begins, continues=continues)
    like: Any = dict(decay=log_decay is not None, device=k.device, dtype=before.s.dtype)
    empty = State.zeros(rows - 1, k.shape[2], expansion=expansion, **like)
    state = tree_map(lambda *pair: torch.cat(pair), before, empty)
    y, after = ops.ea_series(
        *qkv,
        causal=True,
        key_mask=key_mask,
        cu_seqlens=cu_seqlens,
        log_decay=log_decay,
        state=state,
        return_state=True,
        **options,
    )
    return (y, after) if return_state else y
