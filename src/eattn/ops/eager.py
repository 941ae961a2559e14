"""EA-series in plain PyTorch: O(LD) memory, O(NLD) time, any device, exportable.

L tokens are cut into C chunks of T and laid out [T, B, C, D]. All chunks walk their tokens side by
side: once for the totals of the chunks, then, as soon as what precedes each chunk is known, again
to read out. So a step is a few calls on [B, C, D], no [B, L, D, N] tensor ever exists, and a long
sum is a sum of short ones.

Sums are [N, 2, B, C, D]: for each power n the pair (s_n, z_n) of Eq. 12 and Eq. 13, relative to
the shift m, the least |k| so far. As K(q, k) = sum_n c_n q^n k^n is symmetric, the backward is the
same scan from the other end with q and k in exchanged roles: it sums the pair (a_i y_i, a_i) q_i^n,
where a_i = gy_i / den_i, and reads at k.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

LOG2E = 1 / math.log(2)  # exp2 is up to three times as fast as exp, which may go through MKL
TILE = 64  # T of an exported program, which cannot choose it by L
REACH = 14  # how often it doubles its reach over chunks: enough for L = 2^14 * TILE = 2^20

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Token = Callable[[int], tuple[Tensor, Tensor, Tensor]]  # step -> x, first, weights of its chain
Pair = Callable[[int], Tensor]  # n -> (s_n, z_n) [2, B, C, D], overwritten by the next
Emit = Callable[[int, Pair], None]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    shift: Tensor | None,
    *,
    order: int,
    causal: bool,
    save: bool,
) -> Outputs:
    """y of Eq. 5 or Eq. 6, and the state after the last key: (y, s, z, shift, nothing saved)."""
    if cu_seqlens is not None:
        tokens, rows = (q, k, v, key_mask), (s, z, shift)
        return _packed_forward(cu_seqlens, tokens, rows, order=order, causal=causal)
    if torch.compiler.is_exporting():
        return _exported((q, k, v, key_mask, s, z, shift), order, causal)
    call = _Call((q, k, v, key_mask, s, z, shift), order, causal)
    y, y_at = _output(q, call.q)

    def emit(t: int, pair: Pair) -> None:
        (num, den), _ = call.kernel.read(*call.query(t), pair)  # Eq. 14, Eq. 15
        y_at[t] = num.div_(den).masked_fill_(den == 0, 0)  # Eq. 16; nothing to attend to: 0

    sums = call.forward_scan(emit)
    return y[:, : q.shape[1]].contiguous(), *_state(sums, call.last), sums.new_empty(0)


def backward(
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    shift: Tensor | None,
    final_s: Tensor,
    final_z: Tensor,
    final_shift: Tensor,
    saved: Tensor,
    *,
    order: int,
    causal: bool,
) -> Gradients:
    """Gradients of q, k, v and the initial s, z from those of y and the final s, z.

    dq_i = a_i (S'(q_i) - y_i Z'(q_i)), and with Sr, Zr the polynomials of the reverse sums,
    dv_j = w_j Zr(k_j), dk_j = w_j [v_j Zr'(k_j) - Sr'(k_j) - 2 k_j (v_j Zr(k_j) - Sr(k_j))].
    """
    if cu_seqlens is not None:
        tokens = (gy, q, k, v, key_mask)
        rows = (gs, gz, s, z, shift, final_s, final_z, final_shift)
        return _packed_backward(cu_seqlens, tokens, rows, saved, order=order, causal=causal)
    call = _Call((q, k, v, key_mask, s, z, shift), order, causal)
    scale = _scale(gy, call.dtype)
    gy_at = _chunks(gy, len(call.q))
    weights = gy.new_empty(len(call.q), 2, *call.q.shape[1:], dtype=call.dtype)
    dq, dq_at = _output(q, call.q)

    def emit_query(t: int, pair: Pair) -> None:
        (num, den), (dnum, dden) = call.kernel.read(*call.query(t), pair, slope=True)
        empty, g = den == 0, gy_at[t].to(call.dtype)
        y = num.div_(den).masked_fill_(empty, 0)
        dq_at[t] = dnum.addcmul_(y, dden, value=-1).div_(den).mul_(g).masked_fill_(empty, 0)
        a = torch.mul(g, scale, out=weights[t, 1]).div_(den).masked_fill_(empty, 0)
        torch.mul(a, y, out=weights[t, 0])

    call.forward_scan(emit_query)
    (dk, dk_at), (dv, dv_at) = _output(k, call.k), _output(v, call.k)

    def emit_key(t: int, pair: Pair) -> None:
        x, w = call.key(t)
        (sr, zr), (dsr, dzr) = call.kernel.read(x, w / scale, pair, slope=True)
        value = call.v[t].to(call.dtype)
        dv_at[t] = zr
        dk_at[t] = dzr.mul_(value).sub_(dsr).addcmul_(x, zr.mul_(value).sub_(sr), value=-2)

    sums = call.reverse_scan(weights, call.final_gradient(gs, gz, scale), emit_key)
    dq, dk, dv = dq[:, : q.shape[1]], dk[:, : k.shape[1]], dv[:, : k.shape[1]]
    if key_mask is not None:  # 0 even where a NaN came in from a query
        dk.masked_fill_(~key_mask.unsqueeze(-1), 0)
        dv.masked_fill_(~key_mask.unsqueeze(-1), 0)
    ds, dz = (None, None) if s is None else call.initial_gradient(sums, scale)
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), ds, dz


class _Taylor:
    """The expansion, e^(2qk) = sum_n c_n q^n k^n (Eq. 4). The scan knows no more of it than this.

    Either side of the kernel is a chain first * x^n. For k it starts at the weight relative to the
    shift. For q it starts at max(1, |q|)^-order, which cancels between num and den and keeps what
    is read with it from overflow; the cap keeps den from underflow in turn.
    """

    def __init__(self, order: int, dtype: torch.dtype) -> None:
        self.c = [2.0**n / math.factorial(n) for n in range(order + 1)]  # Eq. 7
        self.order = order
        self.cap = torch.finfo(dtype).max ** (0.8 / max(order, 1))

    def query(self, q: Tensor) -> Tensor:
        return q.abs().clamp_(1.0, self.cap).pow_(-self.order)

    def decay(self, old: Tensor, new: Tensor) -> Tensor:
        """e^-|old^2 - new^2|, as a product: a difference of rounded squares loses its digits."""
        return (old - new).abs_().mul_(old + new).mul_(-LOG2E).exp2_()

    def terms(self, x: Tensor, first: Tensor) -> Iterator[Tensor]:
        """first * x^n, n = 0..order (Eq. 10, Eq. 11), each overwritten by the next."""
        f = first.clone()
        yield f
        for _ in range(self.order):
            yield f.mul_(x)

    def read(
        self, x: Tensor, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        """sum_n c_n first x^n pair(n), and if asked for its derivative in x: [2, B, C, D] each."""
        f, value = first.clone(), first * pair(0)
        derivative = torch.zeros_like(value) if slope else value
        for n in range(1, self.order + 1):
            sums = pair(n)
            if slope:
                derivative.addcmul_(f, sums, value=n * self.c[n])
            value.addcmul_(f.mul_(x), sums, value=self.c[n])
        return value, derivative


class _Call:
    """One call cut into chunks, and the two scans over it."""

    def __init__(self, inputs: Inputs, order: int, causal: bool) -> None:
        q, k, v, key_mask, *state = inputs
        L, T = k.shape[1], _steps(k.shape[1])
        self.start, self.shift = _start(k, order, *state)
        self.dtype = self.start.dtype
        self.kernel = _Taylor(order, self.dtype)
        self.causal = causal and L > 0
        self.hidden: Tensor | None = None
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask.unsqueeze(-1), 0) for x in (k, v))
        if key_mask is not None or L % T:
            real = k.new_ones(k.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
            self.hidden = ~_chunks(real.unsqueeze(-1), T)
        self.q, self.k, self.v = _chunks(q, _steps(q.shape[1])), _chunks(k, T), _chunks(v, T)
        self.m = self._shifts()
        self.last = self.m[-1][:, -1:]

    def _shifts(self) -> Tensor:
        """m at every key, [T, B, C, D]; not causal, the last one for all: [1, B, 1, D]."""
        T, *shape = self.k.shape
        m = self.shift.new_empty(T if self.causal else 1, *shape)
        old = self.shift
        for t in range(T):
            size = self.k[t].to(self.dtype).abs()
            if self.hidden is not None:
                size.masked_fill_(self.hidden[t], _far(self.dtype))
            old = torch.minimum(size, old, out=m[t if self.causal else 0])
        ends = torch.cat([self.shift, m[-1]], 1).cummin(1).values
        return torch.minimum(m, ends[:, :-1], out=m) if self.causal else ends[None, :, -1:]

    def query(self, t: int) -> tuple[Tensor, Tensor]:
        """q of step t, and the start of its chain."""
        q = self.q[t].to(self.dtype)
        return q, self.kernel.query(q)

    def key(self, t: int) -> tuple[Tensor, Tensor]:
        """k of step t, and its weight relative to the shift there: 0 for a hidden key."""
        k = self.k[t].to(self.dtype)
        w = self.kernel.decay(k.abs(), self.m[t if self.causal else 0])
        return k, w if self.hidden is None else w.masked_fill_(self.hidden[t], 0)

    def forward_scan(self, emit: Emit) -> Tensor:
        """Sum over keys, show `emit` the sums at every query, return the last sums."""
        pair = self.start.new_ones(2, *self.k.shape[1:])

        def token(t: int) -> tuple[Tensor, Tensor, Tensor]:
            pair[0] = self.v[t]
            return *self.key(t), pair

        steps = range(len(self.k))
        if self.causal:
            return _scan(self.kernel, steps, token, emit, self.m, self.start, self.shift)
        start = self.start * self.kernel.decay(self.shift, self.last)
        return _total(self.kernel, steps, token, emit, start, self.k.shape[2], len(self.q))

    def reverse_scan(self, weights: Tensor, start: Tensor, emit: Emit) -> Tensor:
        """Sum over queries from the last, show `emit` the sums at every key, return the last."""

        def token(t: int) -> tuple[Tensor, Tensor, Tensor]:
            return *self.query(t), weights[t]

        steps = range(len(self.q))
        if self.causal:
            return _scan(self.kernel, steps[::-1], token, emit, self.m, start, self.last)
        return _total(self.kernel, steps, token, emit, start, self.q.shape[2], len(self.k))

    def final_gradient(self, gs: Tensor | None, gz: Tensor | None, scale: Tensor) -> Tensor:
        """What the gradient of the final state adds to the reverse sums, at the last shift."""
        if gs is None or gz is None:
            return torch.zeros_like(self.start)
        sums = torch.stack([-gz, gs]).to(self.dtype) / self.start.new_tensor(self.kernel.c)
        return sums.permute(3, 0, 1, 2).unsqueeze(3) * scale

    def initial_gradient(self, sums: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the initial state: the reverse sums at the first key, moved to its shift."""
        first = self.m[0][:, :1]
        c = sums.new_tensor(self.kernel.c).view(-1, 1, 1, 1, 1)
        dz, ds, _ = _state(sums * c * (self.kernel.decay(first, self.shift) / scale), first)
        return ds, dz.neg_()


def _scan(
    kernel: _Taylor, steps: range, token: Token, emit: Emit, m: Tensor, start: Tensor, shift: Tensor
) -> Tensor:
    """Running sums from `start` at `shift` along the path m [T, B, C, D], in the order of `steps`.

    Shows `emit` the sums at every step, the step's own token included; returns the last sums.
    """
    C, forth, ends = m.shape[2], steps.step > 0, m[steps[-1]]
    before = torch.cat([shift, ends[:, :-1]] if forth else [ends[:, 1:], shift], 1)
    if C == 1:
        return _walk(kernel, steps, token, start.clone(), m, before, emit)
    sums = _walk(kernel, steps, token, start.new_zeros(*start.shape[:3], *m.shape[2:]), m, before)
    prefix, decay = torch.empty_like(sums), kernel.decay(before, ends)
    carry = start[:, :, :, 0]
    lost = torch.zeros_like(carry)  # to rounding, and made good: Kahan's sum
    for c in range(C) if forth else reversed(range(C)):
        prefix[:, :, :, c] = carry
        moved = carry * decay[:, c]
        total = torch.addcmul(sums[:, :, :, c], lost, decay[:, c])
        carry = moved + total
        lost = total - (carry - moved)
    pair = torch.empty_like(sums[0])

    def emit_total(t: int, inner: Pair) -> None:  # apart till here: small sums round less
        decay = kernel.decay(before, m[t])
        emit(t, lambda n: torch.addcmul(inner(n), prefix[n], decay, out=pair))

    _walk(kernel, steps, token, sums.zero_(), m, before, emit_total)
    return carry.unsqueeze(3)


def _total(
    kernel: _Taylor, steps: range, token: Token, emit: Emit, start: Tensor, C: int, readers: int
) -> Tensor:
    """The sums over all tokens, added to `start`; every one of `readers` steps is shown them."""
    sums = start.new_zeros(*start.shape[:3], C, start.shape[4])
    sums = _walk(kernel, steps, token, sums).sum(3, keepdim=True).add_(start)
    for t in range(readers):
        emit(t, sums.__getitem__)
    return sums


def _walk(
    kernel: _Taylor,
    steps: range,
    token: Token,
    sums: Tensor,
    m: Tensor | None = None,
    old: Tensor | None = None,
    emit: Emit | None = None,
) -> Tensor:
    """Add the tokens of all chunks to `sums`, in place; with a path m, decay as the shift moves."""
    pairs = sums.unbind()
    for t in steps:
        x, first, weights = token(t)
        if m is None or old is None:
            for pair, f in zip(pairs, kernel.terms(x, first), strict=True):
                pair.addcmul_(f, weights)
        else:
            decay, old = kernel.decay(old, m[t]), m[t]
            for pair, f in zip(pairs, kernel.terms(x, first), strict=True):
                torch.addcmul(f * weights, pair, decay, out=pair)  # Eq. 12, Eq. 13
        if emit is not None:
            emit(t, pairs.__getitem__)
    return sums


def _exported(inputs: Inputs, order: int, causal: bool) -> Outputs:
    """The forward for torch.export, where L is a symbol and no loop may depend on it."""
    q, k, v, key_mask, *state = inputs
    start, shift = _start(k, order, *state)
    kernel = _Taylor(order, start.dtype)
    hidden = k.new_zeros(1, k.shape[1], 1, dtype=torch.bool)
    if key_mask is not None:
        hidden = ~key_mask.unsqueeze(-1)
        k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    q, k, v = (x.to(start.dtype) for x in (q, k, v))
    scan = _exported_scan if causal else _exported_total
    (num, den), sums, last = scan(kernel, q, k, v, hidden, start, shift)
    y = (num / den).masked_fill(den == 0, 0).to(inputs[0].dtype)
    return y, *_state(sums, last), sums.new_empty(0)


def _exported_total(
    kernel: _Taylor, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    size = k.abs().masked_fill(hidden, _far(k.dtype))
    last = torch.minimum(size.amin(1, keepdim=True), shift)
    w = kernel.decay(k.abs(), last).masked_fill(hidden, 0)
    sums = [torch.stack([f * v, f]).sum(2, keepdim=True) for f in kernel.terms(k, w)]
    total = torch.stack(sums) + start * kernel.decay(shift, last)
    return kernel.read(q, kernel.query(q), total.__getitem__)[0], total, last


def _exported_scan(
    kernel: _Taylor, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Doublings in place of loops: after r of them a position holds the sum of its last 2^r.

    First over the TILE tokens of a chunk, [B, C, T, D], then over chunks, `start` before the first.
    """
    L, C = k.shape[1], k.shape[1] // TILE + 2  # not 0 or 1, which torch.export takes for constants
    token, chunk = torch.arange(TILE, device=k.device), torch.arange(C + 1, device=k.device)
    position = chunk[1:].unsqueeze(1) * TILE + token - TILE
    q, k, v, hidden = (x[:, position.clamp(max=L - 1)] for x in (q, k, v, hidden))
    hidden = hidden | (position >= L).unsqueeze(-1)

    tokens, chunks = _reaches(token, TILE.bit_length() - 1), _reaches(chunk, REACH)
    m = k.abs().masked_fill(hidden, _far(k.dtype))
    for earlier, _ in tokens:
        m = torch.minimum(m, m.index_select(2, earlier))
    ends = torch.cat([shift, m[:, :, -1]], 1)
    for earlier, _ in chunks:
        ends = torch.minimum(ends, ends.index_select(1, earlier))
    before = ends[:, :-1].unsqueeze(2)
    m = torch.minimum(m, before)
    inner = [(i, kernel.decay(m.index_select(2, i), m) * any_) for i, any_ in tokens]
    outer = [(i, kernel.decay(ends.index_select(1, i), ends) * any_) for i, any_ in chunks]
    terms, sums = kernel.terms(k, kernel.decay(k.abs(), m).masked_fill(hidden, 0)), []

    def pair(n: int) -> Tensor:
        f = next(terms)
        x = torch.stack([f * v, f])
        for earlier, decay in inner:
            x = x + x.index_select(3, earlier) * decay
        total = torch.cat([start[n], x[:, :, :, -1]], 2)
        for earlier, decay in outer:
            total = total + total.index_select(2, earlier) * decay
        sums.append(total[:, :, -1:])
        return x + total[:, :, :-1].unsqueeze(3) * kernel.decay(before, m)

    i = torch.arange(L, device=k.device)
    value = kernel.read(q, kernel.query(q), pair)[0][:, :, i // TILE, i % TILE]
    return value, torch.stack(sums), ends[:, -1:]


def _reaches(here: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """For 1, 2, 4, ... positions before `here`: which that is, the first at least; if it exists."""
    return [((here - (1 << r)).clamp(min=0), (here >= 1 << r).unsqueeze(-1)) for r in range(count)]


def _far(dtype: torch.dtype) -> float:
    """Stands for the infinite shift of no keys in here, where inf - inf would be NaN."""
    return math.sqrt(torch.finfo(dtype).max) / 4


def _start(
    k: Tensor, order: int, s: Tensor | None, z: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The initial state as sums [N, 2, B, 1, D] and shift [B, 1, D], in the dtype to compute in."""
    B, _, D = k.shape
    wide = torch.float64 in (k.dtype, k.dtype if s is None else s.dtype)
    dtype = torch.float64 if wide else torch.float32
    if s is None or z is None or shift is None:
        sums = k.new_zeros(order + 1, 2, B, 1, D, dtype=dtype)
        return sums, k.new_full((B, 1, D), _far(dtype), dtype=dtype)
    sums = torch.stack([s, z]).to(dtype).permute(3, 0, 1, 2).unsqueeze(3)
    return sums, shift.to(dtype).unsqueeze(1).clamp(max=_far(dtype))


def _state(sums: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [N, 2, B, 1, D] as s and z, [B, D, N] over memory [B, N, D], and the shift [B, D]."""
    s, z = (x.squeeze(2).transpose(0, 1) for x in sums.unbind(1))
    shift = last.squeeze(1)
    shift = shift.masked_fill(shift >= _far(shift.dtype), torch.inf)
    dense = torch.contiguous_format
    return s.clone(memory_format=dense).mT, z.clone(memory_format=dense).mT, shift


def _output(like: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
    """An empty [B, C * T, D], and the same memory as chunks."""
    T, B, C, D = chunks.shape
    y = like.new_empty(B, C * T, D)
    return y, _chunks(y, T)


def _chunks(x: Tensor, T: int) -> Tensor:
    """[B, L, D] -> [T, B, C, D], a view where T divides L; else L is filled up with zeros."""
    B, L, D = x.shape
    C = -(-L // T)
    x = pad(x, (0, 0, 0, C * T - L)) if L % T else x
    return x.reshape(B, C, T, D).permute(2, 0, 1, 3)


def _steps(L: int) -> int:
    """T, a power of two near sqrt(L): as many tokens in a chunk as chunks. Short: one chunk."""
    return 1 << L.bit_length() // 2 if L > 16 else max(L, 1)


def _scale(gy: Tensor, dtype: torch.dtype) -> Tensor:
    """A power of two that brings gy near 1, [B, 1, D]: so no a_i q_i^n falls below the floats."""
    if gy.shape[1] == 0:
        return gy.new_ones(gy.shape[0], 1, gy.shape[2], dtype=dtype)
    peak = torch.maximum(gy.amax(1, keepdim=True), -gy.amin(1, keepdim=True)).to(dtype)
    scale = torch.exp2(-peak.log2().floor_().clamp_(-48, 48))
    return scale.masked_fill_((peak == 0) | ~peak.isfinite(), 1)


def _packed_forward(
    cu_seqlens: Tensor, tokens: Sequence[Any], rows: Sequence[Any], *, order: int, causal: bool
) -> Outputs:
    """One call per sequence of (q, k, v, key_mask), with a row of (s, z, shift) each."""
    parts = [
        forward(q, k, v, mask, None, s, z, shift, order=order, causal=causal, save=False)
        for (q, k, v, mask), (s, z, shift) in _sequences(cu_seqlens, tokens, rows)
    ]
    y, all_s, all_z, shifts, saved = zip(*parts, strict=True)
    return torch.cat(y, 1), _cat_sums(all_s), _cat_sums(all_z), torch.cat(shifts), saved[0]


def _packed_backward(
    cu_seqlens: Tensor,
    tokens: Sequence[Any],
    rows: Sequence[Any],
    saved: Tensor,
    *,
    order: int,
    causal: bool,
) -> Gradients:
    """One call per sequence of (gy, q, k, v, key_mask), with a row of (gs, gz, s, z, ...) each."""
    parts = []
    for (gy, q, k, v, mask), (gs, gz, *state) in _sequences(cu_seqlens, tokens, rows):
        inputs: Any = (gy, gs, gz, q, k, v, mask, None, *state, saved)
        parts.append(backward(*inputs, order=order, causal=causal))
    dq, dk, dv, ds, dz = zip(*parts, strict=True)
    states = (None, None) if ds[0] is None else (_cat_sums(ds), _cat_sums(dz))
    return torch.cat(dq, 1), torch.cat(dk, 1), torch.cat(dv, 1), *states


def _sequences(
    cu_seqlens: Tensor, tokens: Sequence[Any], rows: Sequence[Any]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Its tokens and its row of the state, for each of the packed sequences."""
    for i, (a, b) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        sequence = [None if x is None else x[:, a:b] for x in tokens]
        yield sequence, [None if x is None else x[i : i + 1] for x in rows]


def _cat_sums(rows: Sequence[Tensor]) -> Tensor:
    """Rows of s or z as one tensor, [R, D, N] over memory [R, N, D]."""
    return torch.cat([x.mT for x in rows]).mT
