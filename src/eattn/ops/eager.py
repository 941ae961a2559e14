"""EA-series in plain PyTorch: O(LD) memory, O(NLD) time, any device.

L tokens are split into C chunks of T tokens and laid out as [T, B, C, D]. All chunks walk their
tokens in parallel, twice: first to sum each chunk, then, with the sums before each chunk known, to
read out. A step is a few calls on [B, C, D], no [B, L, D, N] tensor ever exists, and a long sum is
a sum of short ones.

Sums are [N, 2, B, C, D]: for each term n the pair (s_n, z_n) of Eq. 12 and Eq. 13, relative to the
shift m. Since K(q, k) = sum_n c_n f_n(q) f_n(k) is symmetric, the backward is the same scan in
reverse order with q and k exchanged: it sums the pair (a_i y_i, a_i) f_n(q_i), where
a_i = gy_i / den_i, and reads out at k.

How the sums move from shift to shift, with and without decay, is in `ops.moves`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops.chunks import (
    as_state,
    chunks,
    initial_sums,
    output,
    packed_backward,
    packed_forward,
    steps,
    zero_masked,
)
from eattn.ops.expansion import Expansion
from eattn.ops.features import Chain, Features, Pair, decay, features
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums
from eattn.ops.moves import Decays, Moves, Shifts, Walk

Token = Callable[[int], tuple[Chain, Tensor]]  # step -> chain and weights of its tokens
Emit = Callable[[int, Pair], None]


def forward(inputs: Inputs, *, expansion: Expansion, causal: bool, save: bool = False) -> Outputs:
    """Return y of Eq. 5 or Eq. 6, and the state after the last key; nothing is saved."""
    if inputs.cu_seqlens is not None:
        return packed_forward(forward, inputs, expansion=expansion, causal=causal)
    q = inputs.q
    call = _Call(inputs, expansion, causal)
    y, y_at = output(q, call.q)

    def emit(t: int, pair: Pair) -> None:
        value, _ = call.kernel.read(*call.query(t), pair)  # Eq. 14, Eq. 15
        if call.kernel.min_den and (value[1] <= call.kernel.min_den).any():
            value = call.kernel.read_far(call.q[t].to(call.dtype), value, call.sums(pair))
        num, den = value
        y_at[t] = num.div_(den).masked_fill_(den == 0, 0)  # Eq. 16; 0 if there is no key

    sums = call.forward_scan(emit).total * call.moves.to_last()
    return y[:, : q.shape[1]].contiguous(), *as_state(sums, call.moves.last), None


def backward(
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    inputs: Inputs,
    final: Sums,
    saved: Tensor,
    *,
    expansion: Expansion,
    causal: bool,
) -> Gradients:
    """Return the gradients of the inputs from those of y and the final s, z.

    dq_i = a_i (S'(q_i) - y_i Z'(q_i)). With Sr and Zr read from the reverse sums,
    dv_j = w_j Zr(k_j), dk_j = w_j [v_j Zr'(k_j) - Sr'(k_j) + slope_j (v_j Zr(k_j) - Sr(k_j))],
    where slope_j is -2 k_j for Taylor features. The log decay of token i scales the sums before i,
    so that its gradient is the product of these sums with the reverse sums. Since y does not depend
    on the scale of the sums, it grows from i to i + 1 by u_i = w_i (v_i Zr(k_i) - Sr(k_i)). The
    product is computed once per chunk.
    """
    if inputs.cu_seqlens is not None:
        given = gy, gs, gz, inputs, final, saved
        return packed_backward(backward, *given, expansion=expansion, causal=causal)
    q, k, v, key_mask = inputs[:4]
    call = _Call(inputs, expansion, causal)
    scale = _scale(gy, call.dtype)
    gy_at = chunks(gy, len(call.q))
    weights = gy.new_empty(len(call.q), 2, *call.q.shape[1:], dtype=call.dtype)
    dq, dq_at = output(q, call.q)

    def emit_query(t: int, pair: Pair) -> None:
        (num, den), (dnum, dden) = call.kernel.read(*call.query(t), pair, slope=True)
        empty, g = den.abs() <= call.kernel.min_den, gy_at[t].to(call.dtype)
        y = num.div_(den).masked_fill_(empty, 0)
        dq_at[t] = dnum.addcmul_(y, dden, value=-1).div_(den).mul_(g).masked_fill_(empty, 0)
        a = torch.mul(g, scale, out=weights[t, 1]).div_(den).masked_fill_(empty, 0)
        torch.mul(a, y, out=weights[t, 0])

    ahead = call.forward_scan(emit_query)
    (dk, dk_at), (dv, dv_at) = output(k, call.k), output(v, call.k)
    through = torch.zeros_like(call.k, dtype=call.dtype) if call.decays else None

    def emit_key(t: int, pair: Pair) -> None:
        point, w = call.key(t)
        (sr, zr), (dsr, dzr) = call.kernel.read(point, w, pair, slope=True)
        value, slope = call.v[t].to(call.dtype), call.kernel.slope(call.k[t].to(call.dtype))
        dv_at[t] = zr / scale
        direct, through_w = dzr.mul_(value).sub_(dsr), zr.mul_(value).sub_(sr)
        if through is not None:
            through[t] = through_w
        dk_at[t] = direct.addcmul_(slope, through_w).div_(scale)

    back = call.reverse_scan(weights, call.final_gradient(gs, gz, scale), emit_key)
    dq, dk, dv = dq[:, : q.shape[1]], dk[:, : k.shape[1]], dv[:, : k.shape[1]]
    if key_mask is not None:  # zero even if a query is NaN
        dk.masked_fill_(~key_mask.unsqueeze(-1), 0)
        dv.masked_fill_(~key_mask.unsqueeze(-1), 0)
    ds, dz = (None, None) if inputs.s is None else call.initial_gradient(back.total, scale)
    dg = None
    if inputs.log_decay is not None:
        dg = torch.zeros_like(inputs.log_decay)
        if through is not None:
            each = call.decay_gradient(ahead, back, through)[:, : k.shape[1]] / scale
            dg = each.sum((0, 1)) if dg.dim() == 1 else each.contiguous()
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), ds, dz, dg


class _Scanned(NamedTuple):
    """Results of a scan: the sums over all tokens, and those before each chunk of the walk."""

    total: Tensor  # [N, 2, B, 1, D]
    before: Tensor  # [N, 2, B, C, D]


class _Call:
    """Inputs of one call split into chunks, and the two scans over them."""

    def __init__(self, inputs: Inputs, expansion: Expansion, causal: bool) -> None:
        q, k, v, key_mask = inputs[:4]
        L, T = k.shape[1], steps(k.shape[1])
        self.start, self.shift = initial_sums(inputs, expansion.terms)
        self.dtype = self.start.dtype
        self.kernel = features(expansion, self.dtype)
        self.causal = causal and L > 0
        self.masked: Tensor | None = None
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
        if key_mask is not None or L % T:
            valid = k.new_ones(k.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
            self.masked = ~chunks(valid.unsqueeze(-1), T)
        self.q, self.k, self.v = chunks(q, steps(q.shape[1])), chunks(k, T), chunks(v, T)
        self.moves: Moves
        self.decays = self.causal and inputs.log_decay is not None
        if self.decays and inputs.log_decay is not None:
            lost = chunks(zero_masked(inputs.log_decay.expand(k.shape), key_mask), T)
            self.moves = Decays(self.kernel, self.k, self.masked, self.shift, lost)
        else:
            tokens = self.kernel, self.k, self.masked, self.shift
            self.moves = Shifts(*tokens, causal=self.causal)

    def sums(self, pair: Pair) -> Iterator[tuple[int, Tensor]]:
        """Yield n and (s_n, z_n)."""
        return ((n, pair(n)) for n in range(len(self.start)))

    def query(self, t: int) -> Chain:
        """Return the chain of the queries of step t."""
        return self.kernel.query(self.q[t].to(self.dtype))

    def key(self, t: int) -> Chain:
        """Return the chain of the keys of step t, relative to their shift; 0 for a masked key."""
        point, first = self.moves.key(t)
        return point, first if self.masked is None else first.masked_fill_(self.masked[t], 0)

    def forward_scan(self, emit: Emit) -> _Scanned:
        """Sum over keys, and call `emit` with the sums at every query."""
        pair = self.start.new_ones(2, *self.k.shape[1:])

        def token(t: int) -> tuple[Chain, Tensor]:
            pair[0] = self.v[t]
            return self.key(t), pair

        steps = range(len(self.k))
        if self.causal:
            return _scan(self.kernel, steps, token, emit, self.moves.walk(steps), self.start, pair)
        start = self.start * decay(self.shift, self.moves.last)
        return _total(self.kernel, steps, token, emit, start, self.k.shape[2], len(self.q))

    def reverse_scan(self, weights: Tensor, start: Tensor, emit: Emit) -> _Scanned:
        """Sum over queries in reverse, and call `emit` with the sums at every key."""

        def token(t: int) -> tuple[Chain, Tensor]:
            return self.kernel.bounded(self.query(t), weights[t, 1]), weights[t]

        steps = range(len(self.q))
        if self.causal:
            walk = self.moves.walk(steps[::-1])
            return _scan(self.kernel, steps[::-1], token, emit, walk, start, weights[0])
        return _total(self.kernel, steps, token, emit, start, self.q.shape[2], len(self.k))

    def final_gradient(self, gs: Tensor | None, gz: Tensor | None, scale: Tensor) -> Tensor:
        """Return the initial reverse sums: the gradient of the sums after the last token."""
        if gs is None or gz is None:
            return torch.zeros_like(self.start)
        sums = torch.stack([-gz, gs]).to(self.dtype) / self.start.new_tensor(self.kernel.c)
        return sums.permute(3, 0, 1, 2).unsqueeze(3) * (scale * self.moves.to_last())

    def initial_gradient(self, sums: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the initial state: the final reverse sums, moved to its shift."""
        c = sums.new_tensor(self.kernel.c).view(-1, 1, 1, 1, 1)
        dz, ds, _ = as_state(sums * c * (self.moves.to_first() / scale), self.shift)
        return ds, dz.neg_()

    def decay_gradient(self, ahead: _Scanned, back: _Scanned, through: Tensor) -> Tensor:
        """Return the gradient of the log decay [B, L, D], times the scale of `through`.

        `through` [T, B, C, D] has u of all tokens.
        """
        last = self.moves.walk(range(len(self.q))[::-1]).step(len(self.q) - 1)
        c = ahead.total.new_tensor(self.kernel.c).view(-1, 1, 1, 1)
        ends = torch.cat([ahead.before[:, :, :, 1:], ahead.total], 3)
        (s, z), (sr, zr) = ends.unbind(1), back.before.unbind(1)
        end = (c * (s * zr - z * sr)).sum(0) * last
        each = (end - through.flip(0).cumsum(0)).flip(0)
        if self.masked is not None:
            each = each.masked_fill(self.masked, 0)
        return each.permute(1, 2, 0, 3).flatten(1, 2)


def _scan(
    kernel: Features,
    steps: range,
    token: Token,
    emit: Emit,
    walk: Walk,
    start: Tensor,
    like: Tensor,
) -> _Scanned:
    """Compute running sums from `start`; `like` [2, B, C, D] has the shape of one term.

    Walks in the order of `steps` and calls `emit` with the sums up to and including every token.
    """
    C, forth = like.shape[2], steps.step > 0
    if C == 1:
        return _Scanned(_walk(kernel, steps, token, start.clone(), walk, emit), start)
    sums = _walk(kernel, steps, token, start.new_zeros(len(start), *like.shape), walk)
    prefix, kept = torch.empty_like(sums), walk.whole()
    carry = start[:, :, :, 0]
    lost = torch.zeros_like(carry)  # rounding error of the carry (Kahan summation)
    for c in range(C) if forth else reversed(range(C)):
        prefix[:, :, :, c] = carry
        moved = carry * kept[:, c]
        total = torch.addcmul(sums[:, :, :, c], lost, kept[:, c])
        carry = moved + total
        lost = total - (carry - moved)
    pair = torch.empty_like(sums[0])

    # The sums of a chunk and of its prefix are kept apart until here, which rounds less.
    def emit_total(t: int, inner: Pair) -> None:
        kept = walk.since(t)
        emit(t, lambda n: torch.addcmul(inner(n), prefix[n], kept, out=pair))

    _walk(kernel, steps, token, sums.zero_(), walk, emit_total)
    return _Scanned(carry.unsqueeze(3), prefix)


def _total(
    kernel: Features, steps: range, token: Token, emit: Emit, start: Tensor, C: int, readers: int
) -> _Scanned:
    """Compute the sums over all tokens plus `start`; call `emit` with them for `readers` steps."""
    sums = start.new_zeros(*start.shape[:3], C, start.shape[4])
    sums = _walk(kernel, steps, token, sums).sum(3, keepdim=True).add_(start)
    for t in range(readers):
        emit(t, sums.__getitem__)
    return _Scanned(sums, start)


def _walk(
    kernel: Features,
    steps: range,
    token: Token,
    sums: Tensor,
    walk: Walk | None = None,
    emit: Emit | None = None,
) -> Tensor:
    """Add the tokens of all chunks to `sums` in place, which move along the walk."""
    pairs = sums.unbind()
    for t in steps:
        chain, weights = token(t)
        if walk is None:
            for n, f in kernel.terms(*chain):
                pairs[n].addcmul_(f, weights)
        else:
            kept = walk.step(t)
            for n, f in kernel.terms(*chain):
                torch.addcmul(f * weights, pairs[n], kept, out=pairs[n])  # Eq. 12, Eq. 13
        if emit is not None:
            emit(t, pairs.__getitem__)
    return sums


def _scale(gy: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a power of two [B, 1, D] that scales gy to about 1: no a_i q_i^n underflows then."""
    if gy.shape[1] == 0:
        return gy.new_ones(gy.shape[0], 1, gy.shape[2], dtype=dtype)
    peak = torch.maximum(gy.amax(1, keepdim=True), -gy.amin(1, keepdim=True)).to(dtype)
    scale = torch.exp2(-peak.log2().floor_().clamp_(-48, 48))
    return scale.masked_fill_((peak == 0) | ~peak.isfinite(), 1)
