"""Exact EA (Eq. 2) block by block: O(LLD) time, O(LD) memory.

This is an online softmax. Weights are relative to the nearest key so far, at distance m from q:
w = e^(m^2 - (q - k)^2) = e^(-(k - (q + m)) (k - (q - m))). The product of differences stays
accurate for distant keys, while a difference of rounded squares does not.
A block is [G, T, T]: G of the B * D channels, T queries, T keys.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eattn.ops import reference
from eattn.ops.checks import check_qkv
from eattn.ops.features import LOG2E, empty_shift
from eattn.ops.traceable import exporting
from eattn.ops.transforms import Operator, transform, transforming

BLOCK = 2**20  # weights per block: hides the overhead of a call, and fits into the cache

Block = tuple[slice, slice, slice, int | None, Tensor, Tensor]


def ea(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Exact element-wise attention, in O(LLD) time and O(LD) memory (Eq. 1, Eq. 2).

    y_i = sum_j e^(-(q_i - k_j)^2) v_j / sum_j e^(-(q_i - k_j)^2)

    Parameters
    ----------
    q : Tensor, shape (B, Lq, D) or (1, Lq, D)
        Queries. A batch size of 1 is broadcast.
    k, v : Tensor, shape (B, Lk, D)
        Keys and values.
    causal : bool, default False
        Let query i attend only to keys up to i. With Lq < Lk, the queries are aligned with the
        last Lq keys.
    key_mask : bool Tensor, shape (B, Lk), optional
        True for valid keys. Masked keys and values are never read.

    Returns
    -------
    y : Tensor, shape (B, Lq, D)
        0, with zero gradient, for queries that attend to no key.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 2, 100, 8).unbind()
    >>> ea(q, k, v, causal=True).shape
    torch.Size([2, 100, 8])
    """
    q, k, v = check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    if exporting():  # L is a symbol: no loop over blocks, O(LLD) memory
        wide = torch.promote_types(q.dtype, torch.float32)
        y = reference.ea(q.to(wide), k.to(wide), v.to(wide), causal=causal, key_mask=key_mask)
    elif transforming():
        operator = Operator("ea", lambda *inputs: (_forward(*inputs, causal)[0],))
        (y,) = transform(operator, q, k, v, key_mask)
    else:
        y = _forward(q, k, v, key_mask, causal)[0]
    return y.to(q.dtype)


@torch.library.custom_op("eattn::ea_exact", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y in float32 or wider, m and den; the log-sum-exp of a row is log(den) - m^2."""
    qt, kt, vt = _channels(q), _channels(k, key_mask, torch.inf), _channels(v, key_mask, 0)
    far = empty_shift(qt.dtype)  # m before the first key; masked keys are at inf
    num, den, m = torch.zeros_like(qt), torch.zeros_like(qt), torch.full_like(qt, far)
    for g, i, j, diagonal, a, b in _blocks(qt, kt, causal):
        qb, kb, vb = qt[g, i, None], kt[g, None, j], vt[g, None, j]
        distance = torch.sub(kb, qb, out=a).abs_()
        if diagonal is not None:
            distance.tril_(diagonal).add_(a.new_full(a.shape[1:], far).triu_(diagonal + 1))
        old, new = m[g, i], torch.minimum(m[g, i], distance.amin(2))
        decay = torch.exp2((old - new) * (old + new) * -LOG2E)
        m[g, i] = new
        w = _weights(qb, kb, new, diagonal, a, b)
        den[g, i] = torch.addcmul(w.sum(2), den[g, i], decay)
        w *= vb
        if diagonal is not None:
            w.tril_(diagonal)  # again, so that a NaN in a later value does not reach earlier rows
        num[g, i] = torch.addcmul(w.sum(2), num[g, i], decay)
    y = (num / den).masked_fill_(den == 0, 0)
    return _tokens(y, q), m, den


@torch.library.custom_op("eattn::ea_exact_backward", mutates_args=())
def _backward(
    gy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    y: Tensor,
    m: Tensor,
    den: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq_i = 2 sum_j u_ij, dk_j = -2 sum_i u_ij and dv_j = sum_i p_ij gy_i.

    p_ij = w_ij / den_i are the softmax weights and u_ij = p_ij gy_i (v_j - y_i) (k_j - q_i).
    """
    qt, kt, vt = _channels(q), _channels(k, key_mask, torch.inf), _channels(v, key_mask, 0)
    k0 = _channels(k, key_mask, 0)  # masked keys are 0 in u, as 0 * inf would be NaN
    yt, dq, dk, dv = _channels(y), torch.zeros_like(qt), torch.zeros_like(kt), torch.zeros_like(kt)
    g_den = (_channels(gy) / den).masked_fill_(den == 0, 0)
    for g, i, j, diagonal, a, b in _blocks(qt, kt, causal):
        qb, kb = qt[g, i, None], kt[g, None, j]
        w = _weights(qb, kb, m[g, i], diagonal, a, b).mul_(g_den[g, i, None])
        dv[g, j] += w.sum(1)
        w *= torch.sub(vt[g, None, j], yt[g, i, None], out=b)
        w *= torch.sub(k0[g, None, j], qb, out=b)
        if diagonal is not None:
            w.tril_(diagonal)  # again, so that a NaN in a later token does not reach earlier rows
        dq[g, i] += w.sum(2)
        dk[g, j] -= w.sum(1)
    if key_mask is not None:  # zero even if a query is NaN
        masked = ~key_mask.repeat_interleave(k.shape[2], 0)
        dk.masked_fill_(masked, 0)
        dv.masked_fill_(masked, 0)
    grads = _tokens(dq.mul_(2), q), _tokens(dk.mul_(2), k), _tokens(dv, v)
    return grads[0].to(q.dtype), grads[1].to(q.dtype), grads[2].to(q.dtype)


def _blocks(q: Tensor, k: Tensor, causal: bool) -> Iterator[Block]:
    """Yield every block that is not fully masked: channels, queries, keys, diagonal, two buffers.

    The last query is aligned with the last key. `diagonal` is the argument of `tril` that masks
    later keys, or None if no key of the block is later than a query.
    """
    (BD, Lq), Lk = q.shape, k.shape[1]
    ahead = Lk - Lq  # keys before the first query
    T = 64
    while T < 512 and 4 * T * T * BD <= BLOCK:  # longer blocks for few channels
        T *= 2
    G = max(1, BLOCK // max(1, min(T, Lq) * min(T, Lk)))
    buffers = q.new_empty(2, min(G, BD) * min(T, Lq) * min(T, Lk))
    for g in range(0, BD, G):
        for i in range(0, Lq, T):
            for j in range(0, min(i + T + ahead, Lk) if causal else Lk, T):
                shape = min(G, BD - g), min(T, Lq - i), min(T, Lk - j)
                a, b = buffers[:, : math.prod(shape)].view(2, *shape)
                partial = causal and i + ahead < j + shape[2] - 1
                diagonal = i + ahead - j if partial else None
                yield slice(g, g + G), slice(i, i + T), slice(j, j + T), diagonal, a, b


def _weights(q: Tensor, k: Tensor, m: Tensor, diagonal: int | None, a: Tensor, b: Tensor) -> Tensor:
    """Compute w [G, i, j] of q [G, i, 1], k [G, 1, j], m [G, i] in buffer a; 0 for later keys."""
    m = m.unsqueeze(2)
    torch.sub(k, q + m, out=a)
    torch.sub(k, q - m, out=b)
    w = torch.addcmul(a.new_zeros(()), a, b, value=-LOG2E, out=a).exp2_()
    return w if diagonal is None else w.tril_(diagonal)


def _channels(x: Tensor, key_mask: Tensor | None = None, fill: float = 0) -> Tensor:
    """Return [B, L, D] as [B * D, L] in float32 or wider, with masked tokens replaced by `fill`."""
    if key_mask is not None:
        x = x.masked_fill(~key_mask.unsqueeze(-1), fill)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _tokens(x: Tensor, like: Tensor) -> Tensor:
    """Return [B * D, L] as [B, L, D]."""
    B, L, D = like.shape
    return x.view(B, D, L).transpose(1, 2).contiguous()


@_forward.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    B, L, D = q.shape
    y = q.new_empty(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))
    return y, y.new_empty(B * D, L), y.new_empty(B * D, L)


@_backward.register_fake
def _(gy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, key_mask, ctx.causal = inputs
    y, m, den = output
    ctx.mark_non_differentiable(m, den)
    ctx.save_for_backward(q, k, v, key_mask, y, m, den)


def _gradient(ctx, gy, _gm, _gden):  # type: ignore[no-untyped-def]
    return *_backward(gy, *ctx.saved_tensors, ctx.causal), None, None


def _no_second_gradient(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError("ea does not support a second derivative")


_forward.register_autograd(_gradient, setup_context=_setup)
_backward.register_autograd(_no_second_gradient)
