"""EA-series in plain PyTorch: O(LD) memory, O(NLD) time, any device.

L tokens are split into C chunks of T tokens and laid out as [T, B, C, D]. All chunks walk their
tokens in parallel, twice: first to sum each chunk, then, with the sums before each chunk known, to
read out. A step is a few calls on [B, C, D], no [B, L, D, N] tensor ever exists, and a long sum is
a sum of short ones.

Sums are [N, 2, B, C, D]: for each term n the pair (s_n, z_n) of Eq. 12 and Eq. 13, relative to the
shift m. Since K(q, k) = sum_n c_n f_n(q) f_n(k) is symmetric, the backward is the same scan in
reverse order with q and k exchanged: it sums the pair (a_i y_i, a_i) f_n(q_i), where
a_i = gy_i / den_i, and reads out at k.
"""

from collections.abc import Callable, Iterator

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
from eattn.ops.features import Chain, Features, Pair, decay, empty_shift, features
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums

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

    sums = call.forward_scan(emit)
    return y[:, : q.shape[1]].contiguous(), *as_state(sums, call.last), None


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
    """Return the gradients of q, k, v and the initial s, z from those of y and the final s, z.

    dq_i = a_i (S'(q_i) - y_i Z'(q_i)). With Sr and Zr read from the reverse sums,
    dv_j = w_j Zr(k_j), dk_j = w_j [v_j Zr'(k_j) - Sr'(k_j) + slope_j (v_j Zr(k_j) - Sr(k_j))],
    where slope_j is -2 k_j for Taylor features.
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

    call.forward_scan(emit_query)
    (dk, dk_at), (dv, dv_at) = output(k, call.k), output(v, call.k)

    def emit_key(t: int, pair: Pair) -> None:
        point, w = call.key(t)
        (sr, zr), (dsr, dzr) = call.kernel.read(point, w, pair, slope=True)
        value, slope = call.v[t].to(call.dtype), call.kernel.slope(call.k[t].to(call.dtype))
        dv_at[t] = zr / scale
        direct, through_w = dzr.mul_(value).sub_(dsr), zr.mul_(value).sub_(sr)
        dk_at[t] = direct.addcmul_(slope, through_w).div_(scale)

    sums = call.reverse_scan(weights, call.final_gradient(gs, gz, scale), emit_key)
    dq, dk, dv = dq[:, : q.shape[1]], dk[:, : k.shape[1]], dv[:, : k.shape[1]]
    if key_mask is not None:  # zero even if a query is NaN
        dk.masked_fill_(~key_mask.unsqueeze(-1), 0)
        dv.masked_fill_(~key_mask.unsqueeze(-1), 0)
    ds, dz = (None, None) if inputs.s is None else call.initial_gradient(sums, scale)
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), ds, dz


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
        self.m = self._shifts()
        self.last = self.m[-1][:, -1:]

    def _shifts(self) -> Tensor:
        """Return the shift at every key, [T, B, C, D]; if not causal the last one, [1, B, 1, D]."""
        T, *shape = self.k.shape
        m = self.shift.new_empty(T if self.causal else 1, *shape)
        old = self.shift
        for t in range(T):
            magnitude = self.kernel.magnitude(self.k[t].to(self.dtype))
            if self.masked is not None:
                magnitude.masked_fill_(self.masked[t], empty_shift(self.dtype))
            old = torch.minimum(magnitude, old, out=m[t if self.causal else 0])
        ends = torch.cat([self.shift, m[-1]], 1).cummin(1).values
        return torch.minimum(m, ends[:, :-1], out=m) if self.causal else ends[None, :, -1:]

    def sums(self, pair: Pair) -> Iterator[tuple[int, Tensor]]:
        """Yield n and (s_n, z_n)."""
        return ((n, pair(n)) for n in range(len(self.start)))

    def query(self, t: int) -> Chain:
        """Return the chain of the queries of step t."""
        return self.kernel.query(self.q[t].to(self.dtype))

    def key(self, t: int) -> Chain:
        """Return the chain of the keys of step t, relative to their shift; 0 for a masked key."""
        k = self.k[t].to(self.dtype)
        point, first = self.kernel.key(k, self.m[t if self.causal else 0])
        return point, first if self.masked is None else first.masked_fill_(self.masked[t], 0)

    def forward_scan(self, emit: Emit) -> Tensor:
        """Sum over keys, call `emit` with the sums at every query, return the final sums."""
        pair = self.start.new_ones(2, *self.k.shape[1:])

        def token(t: int) -> tuple[Chain, Tensor]:
            pair[0] = self.v[t]
            return self.key(t), pair

        steps = range(len(self.k))
        if self.causal:
            return _scan(self.kernel, steps, token, emit, self.m, self.start, self.shift)
        start = self.start * decay(self.shift, self.last)
        return _total(self.kernel, steps, token, emit, start, self.k.shape[2], len(self.q))

    def reverse_scan(self, weights: Tensor, start: Tensor, emit: Emit) -> Tensor:
        """Sum over queries in reverse, call `emit` with the sums at every key, return the last."""

        def token(t: int) -> tuple[Chain, Tensor]:
            return self.kernel.bounded(self.query(t), weights[t, 1]), weights[t]

        steps = range(len(self.q))
        if self.causal:
            return _scan(self.kernel, steps[::-1], token, emit, self.m, start, self.last)
        return _total(self.kernel, steps, token, emit, start, self.q.shape[2], len(self.k))

    def final_gradient(self, gs: Tensor | None, gz: Tensor | None, scale: Tensor) -> Tensor:
        """Return the initial reverse sums: the gradient of the final state, at the final shift."""
        if gs is None or gz is None:
            return torch.zeros_like(self.start)
        sums = torch.stack([-gz, gs]).to(self.dtype) / self.start.new_tensor(self.kernel.c)
        return sums.permute(3, 0, 1, 2).unsqueeze(3) * scale

    def initial_gradient(self, sums: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the initial state: the final reverse sums, moved to its shift."""
        first = self.m[0][:, :1]
        c = sums.new_tensor(self.kernel.c).view(-1, 1, 1, 1, 1)
        dz, ds, _ = as_state(sums * c * (decay(first, self.shift) / scale), first)
        return ds, dz.neg_()


def _scan(
    kernel: Features,
    steps: range,
    token: Token,
    emit: Emit,
    m: Tensor,
    start: Tensor,
    shift: Tensor,
) -> Tensor:
    """Compute running sums from `start` at `shift`; m [T, B, C, D] is the shift at every token.

    Walks in the order of `steps` and calls `emit` with the sums up to and including every token.
    Returns the final sums.
    """
    C, forth, ends = m.shape[2], steps.step > 0, m[steps[-1]]
    before = torch.cat([shift, ends[:, :-1]] if forth else [ends[:, 1:], shift], 1)
    if C == 1:
        return _walk(kernel, steps, token, start.clone(), m, before, emit)
    sums = _walk(kernel, steps, token, start.new_zeros(*start.shape[:3], *m.shape[2:]), m, before)
    prefix, kept = torch.empty_like(sums), decay(before, ends)
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
        kept = decay(before, m[t])
        emit(t, lambda n: torch.addcmul(inner(n), prefix[n], kept, out=pair))

    _walk(kernel, steps, token, sums.zero_(), m, before, emit_total)
    return carry.unsqueeze(3)


def _total(
    kernel: Features, steps: range, token: Token, emit: Emit, start: Tensor, C: int, readers: int
) -> Tensor:
    """Return the sums over all tokens plus `start`; call `emit` with them for `readers` steps."""
    sums = start.new_zeros(*start.shape[:3], C, start.shape[4])
    sums = _walk(kernel, steps, token, sums).sum(3, keepdim=True).add_(start)
    for t in range(readers):
        emit(t, sums.__getitem__)
    return sums


def _walk(
    kernel: Features,
    steps: range,
    token: Token,
    sums: Tensor,
    m: Tensor | None = None,
    old: Tensor | None = None,
    emit: Emit | None = None,
) -> Tensor:
    """Add the tokens of all chunks to `sums` in place; with shifts m, decay when they change."""
    pairs = sums.unbind()
    for t in steps:
        chain, weights = token(t)
        if m is None or old is None:
            for n, f in kernel.terms(*chain):
                pairs[n].addcmul_(f, weights)
        else:
            kept, old = decay(old, m[t]), m[t]
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
