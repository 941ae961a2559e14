"""The mechanisms that the paper compares EA with, in fast PyTorch; `reference` has the formulas.

Heads are an axis: q [B, H, Lq, d], k and v [B, H, Lk, d]. `causal` aligns the last query with the
last key, so that queries may follow earlier keys. `key_mask` [B, Lk] is True for valid keys; masked
keys must be finite. A query that attends to no key gives 0, with zero gradient.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from eattn.ops.checks import has_values
from eattn.ops.transforms import Operator, transform, transforming

# ---- softmax attention (Eq. 17) ------------------------------------------------------------------


def sa(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v with PyTorch's SDPA, in O(LD) memory (Eq. 17).

    With both `causal` and `key_mask`, SDPA needs a mask of all pairs, one byte each.
    """
    if key_mask is None and (not causal or q.shape[2] == 1):
        return F.scaled_dot_product_attention(q, k, v)
    if key_mask is None and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen, blind = _seen(q, k, causal, key_mask)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | blind)
    return y.masked_fill(blind, 0.0)


def sa_math(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute `sa` with the weights [B, H, Lq, Lk] in memory, as in the paper's costs (Eq. 17)."""
    o = (q * q.shape[-1] ** -0.5) @ k.mT
    if key_mask is None and (not causal or q.shape[2] == 1):
        return o.softmax(-1) @ v
    seen, blind = _seen(q, k, causal, key_mask)
    y = o.masked_fill(~(seen | blind), -torch.inf).softmax(-1) @ v
    return y.masked_fill(blind, 0.0)


def _seen(q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return masks of visible keys [B or 1, 1, Lq or 1, Lk] and of queries without keys [.., 1]."""
    if key_mask is None:
        seen = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=q.device)
    else:
        seen = key_mask[:, None, None]
    if causal and q.shape[2] > 1:
        every = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        seen = seen & every.tril(k.shape[2] - q.shape[2])
    return seen, ~seen.any(-1, keepdim=True)


ROPE_BASE = 10_000.0


def rope(x: Tensor, position: Tensor) -> Tensor:
    """Rotate each pair (x_a, x_(a + d/2)) by position * 10000^(-2a/d), for rotary positions.

    x [B, H, L, d] with an even d, position [B or 1, L]. The product of a rotated query and a
    rotated key depends only on the difference of their positions.
    """
    wide, half = torch.promote_types(x.dtype, torch.float32), x.shape[-1] // 2
    frequency = ROPE_BASE ** (torch.arange(half, dtype=wide, device=x.device) / -half)
    angle = position[:, None, :, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x.to(wide).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


# ---- linear attention (Eq. 18) and the Taylor polynomial of the dot product (Eq. 20) -------------


class Kernel(NamedTuple):
    """Weights phi(q) phi(k)^T, from features or, within a chunk, directly."""

    phi: Callable[[Tensor], Tensor]  # [..., L, d] -> [..., L, F]
    weights: Callable[[Tensor, Tensor], Tensor]  # q [..., i, d], k [..., j, d] -> [..., i, j]
    chunk: int
    recompute: bool  # whether the backward recomputes the features, which are wide


def _elu(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def _taylor_features(x: Tensor) -> Tensor:
    """Return (1, x_a, x_a^2 / sqrt 2, x_a x_b for a < b); F = 1 + d + d (d + 1) / 2 (Eq. 20)."""
    squares = x.square() * 0.5**0.5
    # Slices: gathering the pairs takes longer than the matrix products that use them.
    pairs = (x[..., a : a + 1] * x[..., a + 1 :] for a in range(x.shape[-1] - 1))
    return torch.cat([torch.ones_like(x[..., :1]), x, squares, *pairs], -1)


def _taylor_weights(q: Tensor, k: Tensor) -> Tensor:
    o = q @ k.mT
    return 1 + o + o.square() / 2  # Eq. 20


ELU = Kernel(_elu, lambda q, k: _elu(q) @ _elu(k).mT, chunk=128, recompute=False)
TAYLOR = Kernel(_taylor_features, _taylor_weights, chunk=256, recompute=True)


def linear_attention(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute y_i = phi(q_i) S / phi(q_i) Z chunk by chunk, in O(L F d) (Eq. 18, Eq. 20).

    Returns y and the state [B, H, F, d + 1], the sum of phi(k_j)^T (v_j, 1) over all keys: S, with
    Z as its last column.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    with _full_precision(q):
        q, k, v1 = q.to(wide), k.to(wide), F.pad(v.to(wide), (0, 1), value=1.0)
        if key_mask is not None:
            v1 = v1.masked_fill(~key_mask[:, None, :, None], 0.0)
        if state is None:
            features = kernel.phi(q[:, :, :0]).shape[-1]
            state = q.new_zeros(*q.shape[:2], features, v1.shape[-1])
        out, state = _sums(kernel, q, k, v1, state, causal)
        num, den = out[..., :-1], out[..., -1:]
        y = num / den.masked_fill(den == 0, 1.0)
    return y.to(v.dtype), state


def _sums(
    kernel: Kernel, q: Tensor, k: Tensor, v1: Tensor, state: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return num and den at every query, [B, H, L, d + 1], and the state after all keys."""

    def add(state: Tensor, k: Tensor, v1: Tensor) -> Tensor:
        return state + kernel.phi(k).mT @ v1

    def read(state: Tensor, q: Tensor) -> Tensor:
        return kernel.phi(q) @ state

    def both(state: Tensor, q: Tensor, k: Tensor, v1: Tensor) -> tuple[Tensor, Tensor]:
        return read(state, q) + kernel.weights(q, k).tril() @ v1, add(state, k, v1)

    def run(function: Callable[..., Any], *inputs: Tensor) -> Any:
        # torch.func cannot transform a checkpoint.
        again = kernel.recompute and torch.is_grad_enabled() and not transforming()
        return checkpoint(function, *inputs, use_reentrant=False) if again else function(*inputs)

    def chunks(*inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(x.split(kernel.chunk, 2) for x in inputs), strict=True)

    # All queries attend to the first `early` keys.
    early = k.shape[2] - q.shape[2] if causal and q.shape[2] > 1 else k.shape[2]
    for kc, vc in chunks(k[:, :, :early], v1[:, :, :early]):
        state = run(add, state, kc, vc)
    out = []
    if early == k.shape[2]:
        out = [run(read, state, qc) for (qc,) in chunks(q)]
    else:
        for qc, kc, vc in chunks(q, k[:, :, early:], v1[:, :, early:]):
            y, state = run(both, state, qc, kc, vc)
            out.append(y)
    return torch.cat(out, 2), state


# ---- linear attention with the delta rule or with forget gates -----------------------------------

CHUNK = 64  # tokens; a power of 2


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    key_mask: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute y_t = S_t q_t with S_t = S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T.

    Causal; q, k, v have the same shape, and beta is [B, H, L]. Masked tokens leave S unchanged.
    Returns y and the last S, [B, H, d, d], whose rows belong to v.

    Chunks of C tokens take O(L (C + d) d). After token t of a chunk that starts with S,
    S_t = S + sum_(j <= t) u_j k_j^T. The rows u_t = beta_t (v_t - S_(t-1) k_t) solve the unit lower
    triangular system (I + tril(beta k k^T, -1)) u = beta (v - k S^T), the UT transform. Its
    right-hand side is linear in S, so all chunks are solved at once before S is known.
    """
    dtype, L = v.dtype, q.shape[2]
    wide = torch.promote_types(dtype, torch.float32)
    with _full_precision(q):
        beta = beta.to(wide).unsqueeze(-1)
        if key_mask is not None:
            beta = beta.masked_fill(~key_mask[:, None, :, None], 0.0)
        # [B, H, n, C, d]
        q, k, v, beta = (_chunks(x.to(wide), min(CHUNK, L)) for x in (q, k, v, beta))
        u = beta * torch.cat([v, k], -1)
        if u.shape[3] > 1:
            u = torch.linalg.solve_triangular(beta * (k @ k.mT), u, upper=False, unitriangular=True)
        u, w = u.chunk(2, -1)
        if state is None:
            state = q.new_zeros(*q.shape[:2], v.shape[-1], k.shape[-1])
        states = [state.to(wide)]
        for forget, write in zip((w.mT @ k).unbind(2), (u.mT @ k).unbind(2), strict=True):
            states.append(states[-1] - states[-1] @ forget + write)
        s = torch.stack(states, 2)[:, :, :-1].mT  # before each chunk
        y = q @ s + (q @ k.mT).tril() @ (u - w @ s)
    return y.flatten(2, 3)[:, :, :L].to(dtype), states[-1]


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    key_mask: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute y_t = q_t S_t with S_t = diag(e^(g_t)) S_(t-1) + k_t^T v_t, for log decays g <= 0.

    Causal; q, k, v and g have the same shape. Masked tokens leave S unchanged. Returns y and the
    last S, [B, H, d, d], whose rows belong to k.

    Chunks of C tokens take O(L (C + d) d). Within a chunk, blocks of 1, 2, 4, ... tokens are read
    from the blocks after them. Decays between two blocks are products of factors at most 1: from
    the key to the end of its block, and from there to the query. No factor e^(-g) can overflow.
    """
    dtype, L = v.dtype, q.shape[2]
    wide = torch.promote_types(dtype, torch.float32)
    with _full_precision(q):
        q, k, v, g = (x.to(wide) for x in (q, k, v, log_decay))
        if key_mask is not None:
            masked = ~key_mask[:, None, :, None]
            k, g = k.masked_fill(masked, 0.0), g.masked_fill(masked, 0.0)
        size = min(CHUNK, 2 ** (L - 1).bit_length()) if L else 1
        q, k, v, g = (_chunks(x, size) for x in (q, k, v, g))
        if state is None:
            state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
        states, total = [state.to(wide)], g.sum(-2).exp().unsqueeze(-1)
        written = (k * _after(g).exp()).mT @ v
        for decay, write in zip(total.unbind(2), written.unbind(2), strict=True):
            states.append(decay * states[-1] + write)
        y = (q * k).sum(-1, keepdim=True) * v
        for half in (2**n for n in range(size.bit_length() - 1)):
            (_, q1), (k0, _), (v0, _), (g0, g1), (y0, y1) = (
                x.unflatten(-2, (-1, 2, half)).unbind(-3) for x in (q, k, v, g, y)
            )
            weights = (q1 * g1.cumsum(-2).exp()) @ (k0 * _after(g0).exp()).mT
            y = torch.stack([y0, y1 + weights @ v0], -3).flatten(-4, -2)
        y = y + (q * g.cumsum(-2).exp()) @ torch.stack(states, 2)[:, :, :-1]
    return y.flatten(2, 3)[:, :, :L].to(dtype), states[-1]


def _after(g: Tensor) -> Tensor:
    """Return the sum of g over all later tokens of the chunk or block, [..., C, d]."""
    return F.pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _chunks(x: Tensor, size: int) -> Tensor:
    """Reshape [B, H, L, d] to [B, H, n, size, d], padded with 0."""
    L, size = x.shape[2], max(1, size)
    return F.pad(x, (0, 0, 0, -L % size)).unflatten(2, (-(-L // size), size))


# ---- attention-free transformer (Eq. 19) ---------------------------------------------------------


def aft(
    k: Tensor, v: Tensor, w: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute y_i = sum_j e^(k_j + w_ij) v_j / sum_j e^(k_j + w_ij) as a matrix product (Eq. 19).

    k, v [B, Lk, D], w [Lq, Lk] -> y [B, Lq, D], in O(LLD) time and O(LL + LD) memory. If causal
    keys differ so much that a later one would make the earlier ones underflow, a slower softmax
    over blocks of rows is used instead (in compiled code and under vmap, the differences are
    clamped).
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    with _full_precision(k):
        k, values, w = k.to(wide), v.to(wide), w.to(wide)
        seen = torch.ones(1, *w.shape, dtype=torch.bool, device=w.device)
        if causal:
            seen = seen.tril(w.shape[1] - w.shape[0])
        if key_mask is not None:
            k = k.masked_fill(~key_mask.unsqueeze(-1), torch.finfo(wide).min)
        if not w.numel() or not k.numel():
            y = k.new_zeros(k.shape[0], w.shape[0], k.shape[2]) + values.sum() * 0 + w.sum() * 0
        elif causal and has_values(k) and _spread(k, key_mask) > MAX_SPREAD:
            seen = seen if key_mask is None else seen & key_mask.unsqueeze(1)
            y = _aft_rows(k, values, w, seen)
        else:
            y = _aft_product(k, values, w.masked_fill(~seen[0], -torch.inf), key_mask)
    return y.to(v.dtype)


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on the device of x; the meta device has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


MAX_SPREAD = 80.0  # e^-80 is close to the smallest normal float32


def _spread(k: Tensor, key_mask: Tensor | None) -> float:
    """Return the largest distance between two keys of a channel."""
    least = k if key_mask is None else k.masked_fill(~key_mask.unsqueeze(-1), torch.inf)
    return float((k.amax(1) - least.amin(1)).detach().max())


def _aft_product(k: Tensor, v: Tensor, w: Tensor, key_mask: Tensor | None) -> Tensor:
    """Compute all rows at once: e^w (e^k v) / e^w e^k, with k and w relative to their maxima."""
    e_k = torch.exp((k - k.detach().amax(1, keepdim=True)).clamp(min=-MAX_SPREAD))
    if key_mask is not None:
        e_k = e_k.masked_fill(~key_mask.unsqueeze(-1), 0.0)
    e_w = torch.exp(w - w.detach().amax(1, keepdim=True))
    num, den = (e_w @ torch.cat([e_k * v, e_k], -1)).chunk(2, -1)
    return num / den.masked_fill(den == 0, 1.0)


def _aft_rows(k: Tensor, v: Tensor, w: Tensor, seen: Tensor) -> Tensor:
    """Compute a softmax over the visible keys of blocks of rows; recompute it in the backward."""

    def rows(k: Tensor, v: Tensor, w: Tensor, seen: Tensor) -> Tensor:
        masked = ~seen.unsqueeze(-1)
        o = (k.unsqueeze(1) + w.unsqueeze(-1)).masked_fill(masked, -torch.inf)  # [B, i, j, D]
        return (o.softmax(2).masked_fill(masked, 0.0) * v.unsqueeze(1)).sum(2)

    size = max(1, 2**22 // k.numel())
    parts = zip(w.split(size), seen.split(size, 1), strict=True)
    return torch.cat([checkpoint(rows, k, v, *part, use_reentrant=False) for part in parts], 1)


# ---- linear recurrence ---------------------------------------------------------------------------


def linear_rnn(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Compute h_t = a_t h_(t-1) + b_t for all t: a, b [B, L, D], h [B, D] -> [B, L, D].

    Chunks of about sqrt(L) tokens are walked in parallel and then joined, in 2 sqrt(L) steps.
    """
    if transforming():
        operator = Operator("linear_rnn", lambda *inputs: (_LinearRNN.apply(*inputs),))
        return transform(operator, a, b, h)[0]
    result: Tensor = _LinearRNN.apply(a, b, h)
    return result


class _LinearRNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        out = _scan(a, b, h)
        ctx.save_for_backward(a, h, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence in reverse for the gradient of b: u_t = g_t + a_(t+1) u_(t+1)."""
        a, h, out = ctx.saved_tensors
        if not a.shape[1]:
            return torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(h)
        later = F.pad(a[:, 1:], (0, 0, 0, 1))
        u = _scan(later.flip(1), g.flip(1), torch.zeros_like(h)).flip(1)
        before = torch.cat([h.unsqueeze(1), out[:, :-1]], 1)
        return u * before, u, a[:, 0] * u[:, 0]


def _scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    L = a.shape[1]
    T = max(1, int(L**0.5))
    pad = -L % T
    a, b = (F.pad(x, (0, 0, 0, pad)).unflatten(1, ((L + pad) // T, T)) for x in (a, b))
    out, decay = torch.empty_like(b), torch.empty_like(a)  # h if it starts at 0; factor of h
    for t in range(T):
        decay[:, :, t] = a[:, :, t] * decay[:, :, t - 1] if t else a[:, :, t]
        out[:, :, t] = torch.addcmul(b[:, :, t], a[:, :, t], out[:, :, t - 1]) if t else b[:, :, t]
    for c in range(a.shape[1]):
        out[:, c].addcmul_(decay[:, c], h.unsqueeze(1))
        h = out[:, c, -1]
    return out.flatten(1, 2)[:, :L]
