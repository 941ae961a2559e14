"""EA-series in plain PyTorch: O(LD) memory, O(NLD) time, any device, exportable.

L tokens are cut into C chunks of T and laid out [T, B, C, D]; all chunks walk their tokens side by
side, first from zero for the totals of the chunks, then from the sum of what precedes each chunk
to read out. So a step is a few calls on [B, C, D], no [B, L, D, N] tensor ever exists, and a long
sum is a sum of short ones.

Sums are [N, 2, B, C, D]: for each power n the pair (s_n, z_n) of Eq. 12 and Eq. 13, relative to the
shift m, the least |k| so far. As K(q, k) = sum_n c_n q^n k^n is symmetric, the backward is the same
scan from the other end with q and k in exchanged roles: it sums the pair (a_i y_i, a_i) q_i^n, where
a_i = gy_i / den_i, and reads at k.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

LOG2E = 1 / math.log(2)  # exp2 is up to three times as fast as exp, which may go through MKL
TILE = 64  # T of an exported program, which cannot choose it by L
REACH = 14  # an exported program doubles its reach over chunks so often: L <= 2^14 * TILE

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
Token = Callable[[int], tuple[Tensor, Tensor, Tensor]]
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
        return _packed_forward(tokens, rows, cu_seqlens, order=order, causal=causal)
    call = _Call(q, k, v, key_mask, s, z, shift, order, causal)
    if torch.compiler.is_exporting():
        y, sums, last = _exported(call)
        y = y.permute(1, 2, 0, 3).flatten(1, 2)
    else:
        y, y_at = call.output(q, call.q)

        def emit(t: int, pair: Pair) -> None:
            (num, den), _ = call.kernel.read(*call.query(t), pair)  # Eq. 14, Eq. 15
            y_at[t] = num.div_(den).masked_fill_(den == 0, 0)  # Eq. 16; 0 with nothing to see

        sums, last = call.forward_scan(emit), call.last
    y = y[:, : q.shape[1]].to(q.dtype).contiguous()
    return y, *call.state(sums, last), sums.new_empty(0)


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
        return _packed_backward(tokens, rows, cu_seqlens, order=order, causal=causal)
    call = _Call(q, k, v, key_mask, s, z, shift, order, causal)
    gy_at = _chunks(gy, len(call.q))
    scale = _scale(gy, call.dtype)
    dq, dq_at = call.output(q, call.q)
    weights = torch.empty(len(call.q), 2, *call.q.shape[1:], dtype=call.dtype, device=q.device)

    def emit_query(t: int, pair: Pair) -> None:
        (num, den), (dnum, dden) = call.kernel.read(*call.query(t), pair, slope=True)
        empty, g = den == 0, gy_at[t].to(call.dtype)
        y = num.div_(den).masked_fill_(empty, 0)
        dq_at[t] = dnum.addcmul_(y, dden, value=-1).div_(den).mul_(g).masked_fill_(empty, 0)
        a = torch.mul(g, scale, out=weights[t, 1]).div_(den).masked_fill_(empty, 0)
        torch.mul(a, y, out=weights[t, 0])

    call.forward_scan(emit_query)
    (dk, dk_at), (dv, dv_at) = call.output(k, call.k), call.output(v, call.k)

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
        largest = torch.finfo(dtype).max
        self.far = largest**0.5 / 4  # stands for the infinite shift of no keys: inf - inf is NaN
        self.cap = largest ** (0.8 / max(order, 1))

    def query(self, q: Tensor) -> Tensor:
        return q.abs().clamp_(1, self.cap).pow_(-self.order)

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

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        s: Tensor | None,
        z: Tensor | None,
        shift: Tensor | None,
        order: int,
        causal: bool,
    ) -> None:
        B, L, D = k.shape
        wide = torch.float64 in (q.dtype, q.dtype if s is None else s.dtype)
        self.dtype = torch.float64 if wide else torch.float32
        self.kernel = _Taylor(order, self.dtype)
        if s is None or z is None or shift is None:
            self.start = k.new_zeros(order + 1, 2, B, 1, D, dtype=self.dtype)
            self.shift = k.new_full((B, 1, D), self.kernel.far, dtype=self.dtype)
        else:
            self.start = torch.stack([s, z]).to(self.dtype).permute(3, 0, 1, 2).unsqueeze(3)
            self.shift = shift.to(self.dtype).unsqueeze(1).clamp(max=self.kernel.far)
        exporting = torch.compiler.is_exporting()
        self.causal = causal and (exporting or L > 0)
        T, Tq = (TILE, TILE) if exporting else (_steps(L), _steps(q.shape[1]))
        self.hidden: Tensor | None = None
        if key_mask is not None or exporting or L % T:
            real = k.new_ones(B, L, dtype=torch.bool) if key_mask is None else key_mask
            self.hidden = ~_chunks(real.unsqueeze(-1), T)
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask.unsqueeze(-1), 0) for x in (k, v))
        self.q, self.k, self.v = _chunks(q, Tq), _chunks(k, T), _chunks(v, T)
        if not exporting:
            self.m = self._shifts()
            self.last = self.m[-1][:, -1:]

    def _shifts(self) -> Tensor:
        """m at every key, [T, B, C, D]; not causal, the last one for all: [1, B, 1, D]."""
        m = self.k.new_empty(self.k.shape, dtype=self.dtype)
        for t in range(len(m)):
            torch.minimum(self.size(t), m[t - 1] if t else self.shift, out=m[t])
        ends = torch.cat([self.shift, m[-1]], 1).cummin(1).values
        return torch.minimum(m, ends[:, :-1], out=m) if self.causal else ends[None, :, -1:]

    def size(self, t: int | slice) -> Tensor:
        """|k|, far away for a hidden key."""
        size = self.k[t].to(self.dtype).abs()
        return size if self.hidden is None else size.masked_fill_(self.hidden[t], self.kernel.far)

    def key(self, t: int) -> tuple[Tensor, Tensor]:
        """k of step t, and its weight relative to the shift there: 0 for a hidden key."""
        k = self.k[t].to(self.dtype)
        w = self.kernel.decay(k.abs(), self.m[t if self.causal else 0])
        return k, w if self.hidden is None else w.masked_fill_(self.hidden[t], 0)

    def query(self, t: int) -> tuple[Tensor, Tensor]:
        """q of step t, and the start of its chain."""
        q = self.q[t].to(self.dtype)
        return q, self.kernel.query(q)

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

    def output(self, like: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
        """An empty [B, C * T, D], and the same memory as chunks."""
        T, B, C, D = chunks.shape
        y = like.new_empty(B, C * T, D)
        return y, _chunks(y, T)

    def state(self, sums: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(s, z, shift), s and z as [B, D, N] over memory [B, N, D]."""
        s, z = (x[:, :, 0].transpose(0, 1).clone(memory_format=torch.contiguous_format).mT
                for x in sums.unbind(1))  # fmt: skip
        shift = last.squeeze(1)
        return s, z, shift.masked_fill(shift >= self.kernel.far, torch.inf)

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
        dz, ds, _ = self.state(sums * c * (self.kernel.decay(first, self.shift) / scale), first)
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
    sums = start.new_zeros(*start.shape[:3], *m.shape[2:])
    prefix = _walk(kernel, steps, token, sums, m, before).clone()
    carry, decay = start[:, :, :, 0], kernel.decay(before, ends)
    lost = torch.zeros_like(carry)  # by rounding, in Kahan's manner
    for c in range(C) if forth else reversed(range(C)):
        moved = carry * decay[:, c]
        total = torch.addcmul(prefix[:, :, :, c], lost, decay[:, c])
        prefix[:, :, :, c] = carry
        carry = moved + total
        lost = total - (carry - moved)

    total = torch.empty_like(sums[0])

    def emit_total(t: int, _: Pair) -> None:
        decay = kernel.decay(before, m[t])
        emit(t, lambda n: torch.addcmul(sums[n], prefix[n], decay, out=total))

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
    for t in steps:
        x, first, weights = token(t)
        if m is None or old is None:
            for n, f in enumerate(kernel.terms(x, first)):
                sums[n].addcmul_(f, weights)
        else:
            decay, old = kernel.decay(old, m[t]), m[t]
            for n, f in enumerate(kernel.terms(x, first)):  # Eq. 12, Eq. 13
                torch.addcmul(f * weights, sums[n], decay, out=sums[n])
        if emit is not None:
            emit(t, sums.__getitem__)
    return sums


def _exported(call: _Call) -> tuple[Tensor, Tensor, Tensor]:
    """The forward for torch.export, where L is a symbol: y [T, B, C, D], last sums, last shift.

    Loops over tokens become doublings: after r of them a position holds the sum of its last 2^r.
    First over the TILE tokens of each chunk, then over chunks, the initial state before the first.
    """
    kernel, every = call.kernel, slice(None)
    q, k, v = (x.to(call.dtype) for x in (call.q, call.k, call.v))
    ends = torch.cat([call.shift, call.size(every).amin(0)], 1)
    chunks = _doublings(ends, REACH)
    for earlier, _ in chunks:
        ends = torch.minimum(ends, ends.index_select(1, earlier))
    m, last = ends[:, -1:], ends[:, -1:]
    if call.causal:
        m = call.size(every)
        tokens = _doublings(m.transpose(0, 1), TILE.bit_length() - 1)
        for earlier, _ in tokens:
            m = torch.minimum(m, m.index_select(0, earlier))
        m = torch.minimum(m, ends[:, :-1])
        inner = [kernel.decay(m.index_select(0, j), m) * ok.view(-1, 1, 1, 1) for j, ok in tokens]
        outer = [kernel.decay(ends.index_select(1, j), ends) * ok.view(-1, 1) for j, ok in chunks]
    w = kernel.decay(k.abs(), m).masked_fill(call.hidden, 0)

    num_den, sums = q.new_zeros(()), []
    for n, (f, g) in enumerate(zip(kernel.terms(k, w), kernel.terms(q, kernel.query(q)))):
        x = torch.stack([f * v, f])  # [2, T, B, C, D]
        if call.causal:
            for (earlier, _), decay in zip(tokens, inner):
                x = x + x.index_select(1, earlier) * decay
            total = torch.cat([call.start[n], x[:, -1]], 2)  # [2, B, 1 + C, D]
            for (earlier, _), decay in zip(chunks, outer):
                total = total + total.index_select(2, earlier) * decay
            x = x + total[:, None, :, :-1] * kernel.decay(ends[:, :-1], m)
            sums.append(total[:, :, -1:])
        else:
            start = call.start[n] * kernel.decay(call.shift, last)
            sums.append(x.sum((1, 3)).unsqueeze(2) + start)
            x = sums[-1].unsqueeze(1)
        num_den = num_den + kernel.c[n] * (g * x)
    num, den = num_den
    return (num / den).masked_fill(den == 0, 0), torch.stack(sums), last


def _doublings(x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """For axis 1 of x and reach 1, 2, 4, ...: the position that far before, and if there is one."""
    here = torch.arange(x.shape[1], device=x.device)
    return [((here - (1 << r)).clamp(min=0), here >= 1 << r) for r in range(count)]


def _steps(L: int) -> int:
    """T, a power of two near sqrt(L): as many tokens in a chunk as chunks. Short: one chunk."""
    return 1 << L.bit_length() // 2 if L > 16 else max(L, 1)


def _chunks(x: Tensor, T: int) -> Tensor:
    """[B, L, D] -> [T, B, C, D], a view where T divides L; else L is filled up with zeros."""
    B, L, D = x.shape
    C = (L + T - 1) // T
    if torch.compiler.is_exporting() or L % T:
        x = pad(x, (0, 0, 0, C * T - L))
    return x.reshape(B, C, T, D).permute(2, 0, 1, 3)


def _scale(gy: Tensor, dtype: torch.dtype) -> Tensor:
    """A power of two that brings gy near 1, [B, 1, D]: so no a_i q_i^n falls below the floats."""
    if gy.shape[1] == 0:
        return gy.new_ones(gy.shape[0], 1, gy.shape[2], dtype=dtype)
    peak = torch.maximum(gy.amax(1, keepdim=True), -gy.amin(1, keepdim=True)).to(dtype)
    scale = torch.exp2(-peak.log2().floor_().clamp_(-48, 48))
    return scale.masked_fill_((peak == 0) | ~peak.isfinite(), 1)


def _packed_forward(
    tokens: Sequence[Tensor | None],
    rows: Sequence[Tensor | None],
    cu_seqlens: Tensor,
    *,
    order: int,
    causal: bool,
) -> Outputs:
    """One call per sequence of (q, k, v, key_mask), with one row of (s, z, shift) each."""
    parts = []
    for token, row in _sequences(cu_seqlens, tokens, rows):
        parts.append(forward(*token, None, *row, order=order, causal=causal, save=False))
    y, s, z, shift, saved = zip(*parts, strict=True)
    return torch.cat(y, 1), _cat_rows(s), _cat_rows(z), torch.cat(shift), saved[0]


def _packed_backward(
    tokens: Sequence[Tensor | None],
    rows: Sequence[Tensor | None],
    cu_seqlens: Tensor,
    *,
    order: int,
    causal: bool,
) -> Gradients:
    """One call per sequence of (gy, q, k, v, key_mask), with one row of each state and gradient."""
    parts = []
    for (gy, *token), (gs, gz, *row) in _sequences(cu_seqlens, tokens, rows):
        nothing = gy.new_empty(0)
        parts.append(
            backward(gy, gs, gz, *token, None, *row, nothing, order=order, causal=causal)
        )
    dq, dk, dv, ds, dz = zip(*parts, strict=True)
    states = (None, None) if ds[0] is None else (_cat_rows(ds), _cat_rows(dz))
    return torch.cat(dq, 1), torch.cat(dk, 1), torch.cat(dv, 1), *states


def _cat_rows(sums: Sequence[Tensor]) -> Tensor:
    """Rows of state as one, still [R, D, N] over memory [R, N, D]."""
    return torch.cat([x.mT for x in sums]).mT


def _sequences(
    cu_seqlens: Tensor, tokens: Sequence[Tensor | None], rows: Sequence[Tensor | None]
) -> Iterator[tuple[list[Tensor | None], list[Tensor | None]]]:
    """The tokens and the row of state of each packed sequence."""
    for i, (a, b) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        token = [x if x is None else x[:, a:b] for x in tokens]
        yield token, [x if x is None else x[i : i + 1] for x in rows]
