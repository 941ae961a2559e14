"""The equations exactly as the paper writes them, and a quadratic form of EA that never underflows.

These are the specification that every backend is tested against, so they are simple and slow.
Axes: B batch, L tokens, D channels, N = order + 1 terms. Indices: i query, j key, n power.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion, Quadrature, Taylor
from eattn.ops.features import smallest_den


class State(NamedTuple):
    """Sums over the tokens seen so far (Eq. 12, Eq. 13), each of shape [B, D, N]."""

    s: Tensor
    z: Tensor


def initial_state(like: Tensor, order: int) -> State:
    """Return s_0 = z_0 = 0 (Eq. 8, Eq. 9) for tokens of shape [B, D]."""
    return State(like.new_zeros(*like.shape, order + 1), like.new_zeros(*like.shape, order + 1))


def taylor(order: int, like: Tensor) -> Tensor:
    """Return the coefficients 2^n / n! of e^(2qk) for n = 0..order, [N] (Eq. 4, Eq. 7)."""
    if order < 0 or order % 2:
        raise ValueError(f"order must be even and >= 0, got {order}")
    return like.new_tensor([2.0**n / math.factorial(n) for n in range(order + 1)])


def powers(x: Tensor, order: int) -> Tensor:
    """Return (1, x, ..., x^order) (Eq. 10, Eq. 11): [..., D] -> [..., D, N]."""
    return x.unsqueeze(-1) ** torch.arange(order + 1, device=x.device)


def ea(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute y_i = sum_j softmax_j(-(q_i - k_j)^2) v_j in O(LLD) (Eq. 1, Eq. 2)."""
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    o = -(q.unsqueeze(2) - k.unsqueeze(1)).square()  # Eq. 1 [B, i, j, D]
    weight = _softmax(o, _masked(q, k, causal, key_mask))
    return (weight * v.unsqueeze(1)).sum(dim=2)  # Eq. 2 [B, L, D]


def ea_series(q: Tensor, k: Tensor, v: Tensor, *, order: int, causal: bool = False) -> Tensor:
    """Compute EA with e^(-q^2) cancelled (Eq. 3) and e^(2qk) expanded (Eq. 4), in O(NLD)."""
    z = powers(k, order) * torch.exp(-k.square()).unsqueeze(-1)  # [B, L, D, N]
    s = z * v.unsqueeze(-1)
    if causal:  # the last query is aligned with the last key
        first = k.shape[1] - q.shape[1]
        return readout(q, State(s.cumsum(1)[:, first:], z.cumsum(1)[:, first:]))  # Eq. 6
    return readout(q, State(s.sum(1, keepdim=True), z.sum(1, keepdim=True)))  # Eq. 5


def ea_series_step(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """Process one causal token in O(ND): q, k, v and y are [B, D]."""
    z = powers(k, state.z.shape[-1] - 1) * torch.exp(-k.square()).unsqueeze(-1)
    state = State(state.s + z * v.unsqueeze(-1), state.z + z)  # Eq. 12, Eq. 13
    return readout(q, state), state


def readout(q: Tensor, state: State) -> Tensor:
    """Return y = num / den (Eq. 14, Eq. 15, Eq. 16): q [..., D], state [..., D, N] -> [..., D]."""
    order = state.z.shape[-1] - 1
    weight = taylor(order, q) * powers(q, order)
    return (weight * state.s).sum(-1) / (weight * state.z).sum(-1)


Sums = tuple[Tensor, Tensor, Tensor]  # s, z and shift, as in eattn.State


def ea_expanded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    expansion: Expansion,
    causal: bool = False,
    key_mask: Tensor | None = None,
    state: Sums | None = None,
) -> Tensor:
    """Compute Eq. 5 or Eq. 6 for keys of any size, in O(LLD) time and memory.

    y_i = sum_j w_ij K(q_i, k_j) v_j / sum_j w_ij K(q_i, k_j). For Taylor, K = P(2qk) and
    w_ij = e^(m_i^2 - k_j^2), where m_i is the smallest |k_j| that row i attends to. m cancels in
    the ratio. Without it, e^(-k^2) would give 0/0 for |k| > 27 in float64. The exponent is computed
    as a product, because a difference of rounded squares is inaccurate. For Quadrature,
    K = sum_m f_m(q) f_m(k) and w = 1; a query too far from all keys is read by `far_features`.
    Rows that attend to no key give 0, with zero gradient. `state` is (s, z, shift) of earlier keys
    that every row attends to, as returned by `accumulate_expanded`.
    """
    masked = _masked(q, k, causal, key_mask)
    k, v = (_zero_masked(x, key_mask).unsqueeze(1) for x in (k, v))  # [B, 1, j, D]
    size = _magnitude(k, expansion).expand(-1, q.shape[1], -1, -1)
    m = size.detach().masked_fill(masked, torch.inf)
    m = torch.nn.functional.pad(m, (0, 0, 0, 1), value=torch.inf).amin(2, keepdim=True)
    if state is not None:
        m = m.minimum(state[2].detach()[:, None, None])
    m = m.masked_fill(m == torch.inf, 0.0)  # no key: w is 0 for any finite m
    w = torch.exp(((m - size) * (m + size)).masked_fill(masked, -torch.inf))
    w = w * _kernel(q.unsqueeze(2), k, expansion)  # [B, i, j, D]
    num, den = (w * v).sum(2), w.sum(2)
    if isinstance(expansion, Quadrature):
        num, den = _read_grid(q, k, v, masked, num, den, state, expansion)
    elif state is not None:
        s, z, shift = (x.unsqueeze(1) for x in state)
        m = m.squeeze(2)
        weight = torch.exp((m - shift) * (m + shift)).unsqueeze(-1)
        weight = weight * coefficients(expansion, q) * features(q, expansion)
        num, den = num + (weight * s).sum(-1), den + (weight * z).sum(-1)
    return num / den.masked_fill(den == 0, 1.0)


def _read_grid(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor,
    num: Tensor,
    den: Tensor,
    state: Sums | None,
    expansion: Quadrature,
) -> tuple[Tensor, Tensor]:
    """Add the state to num and den, and read again where no key is near: k, v [B, 1, j, D]."""
    s, z = (
        (q.new_zeros(1), q.new_zeros(1)) if state is None else (x.unsqueeze(1) for x in state[:2])
    )
    f = features(q, expansion)
    num, den = num + (f * s).sum(-1), den + (f * z).sum(-1)
    far = den <= smallest_den(den.dtype)
    if not far.any():
        return num, den
    own = features(k, expansion).masked_fill(masked.unsqueeze(-1), 0.0)  # [B, i, j, D, N]
    s, z = s + (own * v.unsqueeze(-1)).sum(2), z + own.sum(2)
    f = far_features(q, z, expansion)
    return torch.where(far, (f * s).sum(-1), num), torch.where(far, (f * z).sum(-1), den)


def far_features(q: Tensor, z: Tensor, expansion: Quadrature) -> Tensor:
    """Return features of q at the nearest written node on each side, and 0 at all other nodes.

    They are e^-2(q - u)^2 without their common factor, as constants: their gradient is 0. A node u
    is written if its z is not negligible. q [..., D] and z [..., D, N] -> [..., D, N].
    """
    offset = grid(expansion, q) - q.detach().clamp(-expansion.reach, expansion.reach).unsqueeze(-1)
    distance = offset.abs().masked_fill(z.detach() <= smallest_den(z.dtype), torch.inf)
    left, right = offset <= 0, offset > 0
    nearest = [
        distance.masked_fill(~side, torch.inf).amin(-1, keepdim=True) for side in (left, right)
    ]
    closest = torch.minimum(*nearest)
    read = (left & (distance == nearest[0])) | (right & (distance == nearest[1]))
    weight = torch.exp(-2 * (distance - closest) * (distance + closest))
    return weight.masked_fill(~read | distance.isinf(), 0.0)


def accumulate_expanded(
    k: Tensor,
    v: Tensor,
    *,
    expansion: Expansion,
    key_mask: Tensor | None = None,
    state: Sums | None = None,
) -> Sums:
    """Sum Eq. 12 and Eq. 13 over k and v [B, L, D]; return s, z (relative to shift) and shift."""
    size = _magnitude(k, expansion).detach()
    if key_mask is not None:
        size = size.masked_fill(~key_mask.unsqueeze(-1), torch.inf)
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    m = torch.nn.functional.pad(size, (0, 0, 0, 1), value=torch.inf).amin(1)
    if state is not None:
        m = m.minimum(state[2].detach())
    finite = m.masked_fill(m == torch.inf, 0.0).unsqueeze(1)
    magnitude = _magnitude(k, expansion)
    w = torch.exp((finite - magnitude) * (finite + magnitude))
    w = w.masked_fill(size == torch.inf, 0.0).unsqueeze(-1) * features(k, expansion)  # [B, L, D, N]
    s, z = (w * v.unsqueeze(-1)).sum(1), w.sum(1)
    if state is not None:
        finite = finite.squeeze(1)
        moved = torch.exp((finite - state[2]) * (finite + state[2])).unsqueeze(-1)
        s, z = s + moved * state[0], z + moved * state[1]
    return s, z, m


def ea_decayed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    expansion: Expansion,
    key_mask: Tensor | None = None,
    state: Sums | None = None,
) -> tuple[Tensor, Sums]:
    """Compute causal EA-series with decay, token by token; return y and the final s, z and shift.

    s_i = e^(g_i) s_(i-1) + f(k_i) e^(-k_i^2) v_i, and z_i is the same without v. The sums are
    relative to the shift m_i^2 = min(m_(i-1)^2 - g_i, k_i^2), which is a constant for the gradient.
    For Quadrature there is neither e^(-k^2) nor a shift. A masked token changes nothing.
    """
    B, L, D = k.shape
    zeros = k.new_zeros(B, D, expansion.terms)
    s, z, m = (zeros, zeros, k.new_full((B, D), torch.inf)) if state is None else state
    valid = k.new_ones(B, L, dtype=torch.bool) if key_mask is None else key_mask
    k, v, g = (_zero_masked(x, key_mask) for x in (k, v, log_decay.expand(B, L, D)))
    y = []
    for t in range(L):
        size, old = _magnitude(k[:, t], expansion), m.detach()
        decayed = old if isinstance(expansion, Quadrature) else (old.square() - g[:, t]).sqrt()
        new = torch.minimum(decayed, size).detach()
        moved = ((new - old) * (new + old)).nan_to_num(nan=0.0)  # inf - inf: there is no key yet
        kept, w = torch.exp(moved + g[:, t]), torch.exp((new - size) * (new + size))
        f = w.unsqueeze(-1) * features(k[:, t], expansion)
        next_s = kept.unsqueeze(-1) * s + f * v[:, t].unsqueeze(-1)
        next_z = kept.unsqueeze(-1) * z + f
        here = valid[:, t, None]
        s, z = (torch.where(here.unsqueeze(-1), x, x0) for x, x0 in ((next_s, s), (next_z, z)))
        m = torch.where(here, new, old)
        y.append(_read_sums(q[:, t], s, z, expansion))
    return torch.stack(y, 1) if y else torch.zeros_like(q), (s, z, m)


def _read_sums(q: Tensor, s: Tensor, z: Tensor, expansion: Expansion) -> Tensor:
    """Return y of queries [B, D] from sums [B, D, N]; 0 where there is no key."""
    f = coefficients(expansion, q) * features(q, expansion)
    if isinstance(expansion, Quadrature):
        far = (f * z).sum(-1, keepdim=True) <= smallest_den(z.dtype)
        f = torch.where(far, far_features(q, z, expansion), f)
    den = (f * z).sum(-1)
    return (f * s).sum(-1) / den.masked_fill(den == 0, 1.0)


def ea_decayed_quadratic(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    expansion: Expansion,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute the same as `ea_decayed` in O(LLD), from the weight of every key for every query.

    It is e^(g_(j+1) + ... + g_i - k_j^2), relative to the largest one of a query. Far queries on a
    grid are not supported.
    """
    L = k.shape[1]
    masked = _masked(q, k, True, key_mask)
    g = _zero_masked(log_decay.expand(k.shape), key_mask)
    after = torch.ones(L, L, dtype=torch.bool, device=k.device).tril(-1).view(1, L, L, 1)
    # A sum of the terms after j, not a difference of two sums: g may be -inf.
    lost = torch.where(after, g.unsqueeze(2), 0.0).cumsum(1)
    k, v = (_zero_masked(x, key_mask).unsqueeze(1) for x in (k, v))
    size = _magnitude(k, expansion).expand_as(lost)
    best = (lost - size.square()).masked_fill(masked, -torch.inf).argmax(2, keepdim=True)
    least, kept = (x.detach().gather(2, best) for x in (size, lost))
    exponent = (least - size) * (least + size) + (lost - kept)
    weight = torch.exp(exponent.masked_fill(masked, -torch.inf)) * _kernel(
        q.unsqueeze(2), k, expansion
    )
    den = weight.sum(2)
    return (weight * v).sum(2) / den.masked_fill(den == 0, 1.0)


def features(x: Tensor, expansion: Expansion) -> Tensor:
    """Return x^n, or e^-2(x - u_n)^2 at the nodes u_n of a grid: [..., D] -> [..., D, N].

    For a grid, x is clamped to ±reach; its gradient is that of the clamped value, not 0. The
    feature is 0 at a distance of `cutoff` or more.
    """
    if isinstance(expansion, Taylor):
        return powers(x, expansion.order)
    inside = x + (x.clamp(-expansion.reach, expansion.reach) - x).detach()
    offset = inside.unsqueeze(-1) - grid(expansion, x)
    return torch.exp(-2 * offset.square()).masked_fill(offset.abs() >= expansion.cutoff, 0.0)


def grid(expansion: Quadrature, like: Tensor) -> Tensor:
    """Return the nodes of a quadrature, [N]."""
    half = expansion.nodes // 2
    nodes = torch.arange(-half, half + 1, dtype=like.dtype, device=like.device)
    return nodes * expansion.spacing


def coefficients(expansion: Expansion, like: Tensor) -> Tensor:
    """Return c_n of K(q, k) = sum_n c_n f_n(q) f_n(k), [N]; 1 for a quadrature, where c cancels."""
    if isinstance(expansion, Taylor):
        return taylor(expansion.order, like)
    return like.new_ones(expansion.nodes)


def _kernel(q: Tensor, k: Tensor, expansion: Expansion) -> Tensor:
    """Return sum_n c_n f_n(q) f_n(k), without the weight e^(-k^2) of a Taylor expansion."""
    if isinstance(expansion, Taylor):
        return _polynomial(2 * q * k, expansion.order)
    return (features(q, expansion) * features(k, expansion)).sum(-1)


def _magnitude(k: Tensor, expansion: Expansion) -> Tensor:
    """Return the per-key magnitude whose running minimum is the shift."""
    return k.abs() if isinstance(expansion, Taylor) else torch.zeros_like(k)


@functools.cache
def condition(expansion: Expansion) -> float:
    """Return the condition number kappa: the rounding error of y is about kappa * eps * max|v|.

    For Taylor, kappa = max_x sum_n |x^n / n!| / P(x), where P is the Taylor polynomial of e^x;
    terms cancel at negative x. Gaussian features are positive, so that nothing cancels, but each is
    a power of a rounded number, and the exponent grows with the distance from the central node or,
    on a wide grid, from the nearest one.
    """
    if not isinstance(expansion, Taylor):
        return 1 + min(expansion.reach, expansion.cutoff) ** 2
    order = expansion.order
    x = -torch.linspace(0, 2 * order + 1, 100_001, dtype=torch.float64)
    return float((_polynomial(-x, order) / _polynomial(x, order)).max())


def _polynomial(x: Tensor, order: int) -> Tensor:
    """Return P(x) = sum_n x^n / n! by Horner's rule (Eq. 4)."""
    taylor(order, x)  # rejects an odd order
    p = x**0  # not ones_like, so that q gets a (zero) gradient at order 0
    for n in range(order, 0, -1):
        p = 1 + p * x / n
    return p


# ---- the mechanisms that the paper compares with, one head each ----------------------------------


def sa(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute y_i = sum_j softmax_j(q_i k_j^T) v_j in O(LLD), without scaling (Eq. 17)."""
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    o = (q @ k.mT).unsqueeze(-1)
    return _softmax(o, _masked(q, k, causal, key_mask)).squeeze(-1) @ v


def la(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute linear attention with phi(x) = elu(x) + 1 (Eq. 18).

    y_i = sum_j phi(q_i) phi(k_j)^T v_j / sum_j phi(q_i) phi(k_j)^T
    """
    masked = _masked(q, k, causal, key_mask)
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return _average((phi_q @ phi_k.mT).unsqueeze(-1), v, masked)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Compute y_t = S_t q_t with S_t = S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, S_0 = 0.

    q, k, v [B, L, d], beta [B, L]. The rule of DeltaNet (Yang et al., 2024), not in the paper.
    """
    identity = torch.eye(k.shape[-1], dtype=q.dtype, device=q.device)
    s, y = torch.zeros_like(identity), []
    for t in range(q.shape[1]):
        k_t, v_t, b = k[:, t].unsqueeze(-1), v[:, t].unsqueeze(-1), beta[:, t, None, None]
        s = s @ (identity - b * k_t @ k_t.mT) + b * v_t @ k_t.mT
        y.append((s @ q[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(y, 1)


def gated_la(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Compute y_t = q_t S_t with S_t = diag(e^(g_t)) S_(t-1) + k_t^T v_t and S_0 = 0.

    q, k, v and the log decay g <= 0 are [B, L, d]. The rule of GLA (Yang et al., 2023).
    """
    s, y = q.new_zeros(len(q), k.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        s = log_decay[:, t].exp().unsqueeze(-1) * s + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(1)
        y.append((q[:, t].unsqueeze(1) @ s).squeeze(1))
    return torch.stack(y, 1)


def rope(x: Tensor, position: Tensor) -> Tensor:
    """Rotate x_a + i x_(a + d/2) by position * 10000^(-2a/d) for a < d/2 (Su et al., 2021).

    x is [B, L, d] with an even d, position [B, L]. Products of rotated q and k depend on the
    positions only through their difference.
    """
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angle = position.unsqueeze(-1) * frequency
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def aft(
    k: Tensor, v: Tensor, w: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """Compute y_i = sum_j softmax_j(k_j + w_ij) v_j per channel, with learned w [L, L] (Eq. 19)."""
    masked = _masked(k, k, causal, key_mask)
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    o = k.unsqueeze(1) + w.unsqueeze(-1)  # [B, i, j, D]
    return (_softmax(o, masked) * v.unsqueeze(1)).sum(dim=2)


def taylor_dot(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = 2,
    causal: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute `sa` with e^(q k^T) replaced by its Taylor polynomial of even `order` (Eq. 20)."""
    masked = _masked(q, k, causal, key_mask)
    k, v = _zero_masked(k, key_mask), _zero_masked(v, key_mask)
    return _average(_polynomial(q @ k.mT, order).unsqueeze(-1), v, masked)


def _softmax(o: Tensor, masked: Tensor) -> Tensor:
    """Return the softmax over j of o [B, i, j, D or 1]; zeros for a row that attends to no key."""
    # The second fill replaces the NaN of a row without keys by 0, with zero gradient.
    return o.masked_fill(masked, -torch.inf).softmax(dim=2).masked_fill(masked, 0.0)


def _average(weight: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """Return sum_j weight_ij v_j / sum_j weight_ij over visible keys; weight is [B, i, j, 1]."""
    weight = weight.masked_fill(masked, 0.0).squeeze(-1)
    den = weight.sum(2, keepdim=True)
    return weight @ v / den.masked_fill(den == 0, 1.0)


def _masked(q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None) -> Tensor:
    """Return True where query i must not attend to key j, [B or 1, i, j, 1].

    The last query is aligned with the last key.
    """
    masked = torch.zeros(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    if causal:
        masked = ~torch.ones_like(masked).tril(k.shape[1] - q.shape[1])
    if key_mask is not None:
        masked = masked | ~key_mask.unsqueeze(1)
    return masked.unsqueeze(-1)


def _zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Replace masked tokens by 0, without multiplying, so that NaN in them has no effect."""
    return x if key_mask is None else x.masked_fill(~key_mask.unsqueeze(-1), 0.0)
