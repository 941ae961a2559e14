"""The paper's equations as it writes them, and a quadratic form of EA that never underflows.

These are the oracles every backend is tested against, so they are plain and slow on purpose.
Axes: B batch, L tokens, D channels, N = order + 1 terms. Indices: i query, j key, n power.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion, Taylor


class State(NamedTuple):
    """Sums over the tokens seen so far (Eq. 12, Eq. 13): [B, D, N] each, for any L."""

    s: Tensor
    z: Tensor


def initial_state(like: Tensor, order: int) -> State:
    """s_0 = z_0 = 0 (Eq. 8, Eq. 9) for tokens shaped like [B, D]."""
    return State(like.new_zeros(*like.shape, order + 1), like.new_zeros(*like.shape, order + 1))


def taylor(order: int, like: Tensor) -> Tensor:
    """Coefficients 2^n / n! of e^(2qk) (Eq. 4, Eq. 7) -> [N]; `order` is the highest power."""
    if order < 0 or order % 2:
        raise ValueError(f"order must be even and >= 0, got {order}")
    return like.new_tensor([2.0**n / math.factorial(n) for n in range(order + 1)])


def powers(x: Tensor, order: int) -> Tensor:
    """(1, x, ..., x^order) (Eq. 10, Eq. 11): [..., D] -> [..., D, N]."""
    return x.unsqueeze(-1) ** torch.arange(order + 1, device=x.device)


def ea(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """y_i = sum_j softmax_j(-(q_i - k_j)^2) v_j in O(LLD) (Eq. 1, Eq. 2)."""
    k, v = _real(k, key_mask), _real(v, key_mask)
    o = -(q.unsqueeze(2) - k.unsqueeze(1)).square()  # Eq. 1 [B, i, j, D]
    weight = _softmax(o, _hidden(q, k, causal, key_mask))
    return (weight * v.unsqueeze(1)).sum(dim=2)  # Eq. 2 [B, L, D]


def ea_series(q: Tensor, k: Tensor, v: Tensor, *, order: int, causal: bool = False) -> Tensor:
    """As `ea`, with e^(-q^2) cancelled (Eq. 3) and e^(2qk) expanded (Eq. 4), in O(NLD)."""
    z = powers(k, order) * torch.exp(-k.square()).unsqueeze(-1)  # [B, L, D, N]
    s = z * v.unsqueeze(-1)
    if causal:
        return readout(q, State(s.cumsum(1), z.cumsum(1)))  # Eq. 6
    return readout(q, State(s.sum(1, keepdim=True), z.sum(1, keepdim=True)))  # Eq. 5


def ea_series_step(q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
    """One causal token in O(ND): q, k, v and y are [B, D]."""
    z = powers(k, state.z.shape[-1] - 1) * torch.exp(-k.square()).unsqueeze(-1)
    state = State(state.s + z * v.unsqueeze(-1), state.z + z)  # Eq. 12, Eq. 13
    return readout(q, state), state


def readout(q: Tensor, state: State) -> Tensor:
    """y = num / den (Eq. 14, Eq. 15, Eq. 16): q [..., D], state [..., D, N] -> [..., D]."""
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
    """Eq. 5 and Eq. 6 for keys of any size: y_i = sum_j w_ij K(q_i, k_j) v_j / (the same, v = 1).

    For Taylor K = P(2qk) and w_ij = e^(m_i^2 - k_j^2) with m_i the least |k_j| that row i attends
    to: m cancels in the ratio, and where the literal e^(-k^2) is 0/0 (|k| > 27 in float64) the
    nearest key keeps weight 1. The exponent is a product, as a difference of rounded squares would
    lose its digits. For Quadrature K = sum_m f_m(q) f_m(k), and w = 1.
    O(LLD) time and memory; rows that attend to nothing give 0, with zero gradient. `state` holds
    earlier keys, which every row attends to: (s, z, shift) as `accumulate_expanded` returns them.
    """
    hidden = _hidden(q, k, causal, key_mask)
    k, v = _real(k, key_mask).unsqueeze(1), _real(v, key_mask).unsqueeze(1)  # [B, 1, j, D]
    size = _magnitude(k, expansion).expand(-1, q.shape[1], -1, -1)
    m = size.detach().masked_fill(hidden, torch.inf)
    m = torch.nn.functional.pad(m, (0, 0, 0, 1), value=torch.inf).amin(2, keepdim=True)
    if state is not None:
        m = m.minimum(state[2].detach()[:, None, None])
    m = m.masked_fill(m == torch.inf, 0.0)  # no key at all: any number will do, w is 0
    w = torch.exp(((m - size) * (m + size)).masked_fill(hidden, -torch.inf))
    w = w * _kernel(q.unsqueeze(2), k, expansion)  # [B, i, j, D]
    num, den = (w * v).sum(2), w.sum(2)
    if state is not None:
        s, z, shift = (x.unsqueeze(1) for x in state)
        m = m.squeeze(2)
        weight = torch.exp((m - shift) * (m + shift)).unsqueeze(-1)
        weight = weight * coefficients(expansion, q) * features(q, expansion)
        num, den = num + (weight * s).sum(-1), den + (weight * z).sum(-1)
    return num / den.masked_fill(den == 0, 1.0)


def accumulate_expanded(
    k: Tensor,
    v: Tensor,
    *,
    expansion: Expansion,
    key_mask: Tensor | None = None,
    state: Sums | None = None,
) -> Sums:
    """Eq. 12 and Eq. 13 over all of k and v [B, L, D], relative to the shift: (s, z, shift)."""
    size = _magnitude(k, expansion).detach()
    if key_mask is not None:
        size = size.masked_fill(~key_mask.unsqueeze(-1), torch.inf)
    k, v = _real(k, key_mask), _real(v, key_mask)
    m = torch.nn.functional.pad(size, (0, 0, 0, 1), value=torch.inf).amin(1)
    if state is not None:
        m = m.minimum(state[2].detach())
    finite = m.masked_fill(m == torch.inf, 0.0).unsqueeze(1)
    own = _magnitude(k, expansion)
    w = torch.exp((finite - own) * (finite + own))
    w = w.masked_fill(size == torch.inf, 0.0).unsqueeze(-1) * features(k, expansion)  # [B, L, D, N]
    s, z = (w * v.unsqueeze(-1)).sum(1), w.sum(1)
    if state is not None:
        finite = finite.squeeze(1)
        moved = torch.exp((finite - state[2]) * (finite + state[2])).unsqueeze(-1)
        s, z = s + moved * state[0], z + moved * state[1]
    return s, z, m


def features(x: Tensor, expansion: Expansion) -> Tensor:
    """x^n, or e^-2(x - u_n)^2 at the nodes u_n of a grid: [..., D] -> [..., D, N].

    Beyond the reach x counts as there, and its gradient is the one there.
    """
    if isinstance(expansion, Taylor):
        return powers(x, expansion.order)
    half, radius = expansion.nodes // 2, expansion.radius
    nodes = torch.arange(-half, half + 1, dtype=x.dtype, device=x.device) * (radius / half)
    inside = x + (x.clamp(-expansion.reach, expansion.reach) - x).detach()
    return torch.exp(-2 * (inside.unsqueeze(-1) - nodes).square())


def coefficients(expansion: Expansion, like: Tensor) -> Tensor:
    """c_n of K(q, k) = sum_n c_n f_n(q) f_n(k) -> [N]; those of a quadrature cancel in y."""
    if isinstance(expansion, Taylor):
        return taylor(expansion.order, like)
    return like.new_ones(expansion.nodes)


def _kernel(q: Tensor, k: Tensor, expansion: Expansion) -> Tensor:
    """sum_n c_n f_n(q) f_n(k), less the weight e^(-k^2) of a Taylor expansion."""
    if isinstance(expansion, Taylor):
        return _polynomial(2 * q * k, expansion.order)
    return (features(q, expansion) * features(k, expansion)).sum(-1)


def _magnitude(k: Tensor, expansion: Expansion) -> Tensor:
    """Per-key magnitude whose running minimum is the shift."""
    return k.abs() if isinstance(expansion, Taylor) else torch.zeros_like(k)


@functools.cache
def condition(expansion: Expansion) -> float:
    """By how much reading an expansion amplifies rounding: y is off by some kappa * eps * max|v|.

    For Taylor kappa = max_x sum_n |x^n / n!| / P(x), with P the polynomial of e^x of this order,
    least against its terms at negative x. Gaussian features are positive and nothing cancels, but
    each is a power of a rounded number, and the power grows with the distance from the centre.
    """
    if not isinstance(expansion, Taylor):
        return 1 + expansion.reach**2
    order = expansion.order
    x = -torch.linspace(0, 2 * order + 1, 100_001, dtype=torch.float64)
    return float((_polynomial(-x, order) / _polynomial(x, order)).max())


def _polynomial(x: Tensor, order: int) -> Tensor:
    """P(x) = sum_n x^n / n! by Horner's rule (Eq. 4)."""
    taylor(order, x)  # rejects an odd order
    p = x**0  # not ones_like: at order 0, q still gets a gradient (of zeros)
    for n in range(order, 0, -1):
        p = 1 + p * x / n
    return p


# ---- the mechanisms the paper compares with, one head each ---------------------------------------


def sa(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """y_i = sum_j softmax_j(q_i k_j^T) v_j in O(LLD), not scaled (Eq. 17)."""
    k, v = _real(k, key_mask), _real(v, key_mask)
    o = (q @ k.mT).unsqueeze(-1)
    return _softmax(o, _hidden(q, k, causal, key_mask)).squeeze(-1) @ v


def la(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """y_i = sum_j phi(q_i) phi(k_j)^T v_j / (the same, v = 1), phi(x) = elu(x) + 1 (Eq. 18)."""
    hidden = _hidden(q, k, causal, key_mask)
    k, v = _real(k, key_mask), _real(v, key_mask)
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return _average((phi_q @ phi_k.mT).unsqueeze(-1), v, hidden)


def aft(
    k: Tensor, v: Tensor, w: Tensor, *, causal: bool = False, key_mask: Tensor | None = None
) -> Tensor:
    """y_i = sum_j softmax_j(k_j + w_ij) v_j, per channel, with learnt biases w [L, L] (Eq. 19)."""
    hidden = _hidden(k, k, causal, key_mask)
    k, v = _real(k, key_mask), _real(v, key_mask)
    o = k.unsqueeze(1) + w.unsqueeze(-1)  # [B, i, j, D]
    return (_softmax(o, hidden) * v.unsqueeze(1)).sum(dim=2)


def taylor_dot(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = 2,
    causal: bool = False,
    key_mask: Tensor | None = None,
) -> Tensor:
    """As `sa`, with e^(q k^T) cut to its Taylor polynomial of even `order` (Eq. 20)."""
    hidden = _hidden(q, k, causal, key_mask)
    k, v = _real(k, key_mask), _real(v, key_mask)
    return _average(_polynomial(q @ k.mT, order).unsqueeze(-1), v, hidden)


def _softmax(o: Tensor, hidden: Tensor) -> Tensor:
    """Softmax over j of o [B, i, j, D or 1]; a row that sees no key has zero weights."""
    # The second fill turns the NaN of a row without keys into 0, and stops its gradient.
    return o.masked_fill(hidden, -torch.inf).softmax(dim=2).masked_fill(hidden, 0.0)


def _average(weight: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """sum_j weight_ij v_j / sum_j weight_ij over the keys that i sees: weight [B, i, j, 1]."""
    weight = weight.masked_fill(hidden, 0.0).squeeze(-1)
    den = weight.sum(2, keepdim=True)
    return weight @ v / den.masked_fill(den == 0, 1.0)


def _hidden(q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None) -> Tensor:
    """True where query i must not see key j, [B or 1, i, j, 1]; the last ones see each other."""
    hidden = torch.zeros(1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    if causal:
        hidden = ~torch.ones_like(hidden).tril(k.shape[1] - q.shape[1])
    if key_mask is not None:
        hidden = hidden | ~key_mask.unsqueeze(1)
    return hidden.unsqueeze(-1)


def _real(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x with masked tokens replaced by 0, selected and not multiplied: NaN there is never read."""
    return x if key_mask is None else x.masked_fill(~key_mask.unsqueeze(-1), 0.0)
