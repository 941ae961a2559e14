"""Wide grids in plain PyTorch: features are evaluated at the nodes near x only, on any device.

Tokens are laid out as in `ops.eager`: C chunks of T tokens, [T, B, C, D], whose sums
[N, 2, B, C, D] grow in parallel. A token reads and writes the W nodes near it by their indices, so
that its cost does not depend on N. Gaussian features need no shift.

The causal forward saves y, 1 / den and dy/dq of every query, [3, B, L, D], and the backward is one
scan in reverse order. A far query, one with no key near, saves a negative 1 / den; in place of
dy/dq, which is 0, it saves the two nodes that it reads, as left * PACKED + right.

With decay, the sums of a chunk and channel are e^c times the true ones, see `Scales`.
"""

import math
from collections.abc import Callable
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
from eattn.ops.expansion import Quadrature
from eattn.ops.features import smallest_den
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums

MAX_SCALE = 20.0  # largest c
FORGETS = 1000.0  # e^-1000 is 0
PACKED = 2048  # above the largest number of nodes; same in native/grid.cpp

Write = Callable[[Tensor, int], None]  # (sums, t): add the tokens of step t


def saved_shape(q: Tensor) -> tuple[int, ...]:
    """Return the shape of the tensor that a causal forward saves on a wide grid."""
    return 3, *q.shape


class Near(NamedTuple):
    """Nodes near a token, and its features there, [W, B, C, D]."""

    node: Tensor
    f: Tensor
    offset: Tensor  # x - u


class Reading(NamedTuple):
    """Result of reading sums at queries [B, C, D]."""

    y: Tensor
    inverse: Tensor  # 1 / den; negative for a far query, 0 if there is no key
    slope: Tensor  # dy/dq; for a far query the nodes that it reads


class Grid:
    """A quadrature whose features are computed node by node."""

    def __init__(self, expansion: Quadrature, like: Tensor, window: int) -> None:
        self.radius, self.reach, self.cutoff = expansion.radius, expansion.reach, expansion.cutoff
        self.nodes, self.spacing, self.window = expansion.nodes, expansion.spacing, window
        self.smallest = smallest_den(like.dtype)
        position = torch.arange(self.nodes, dtype=like.dtype, device=like.device)
        self.u = (position - self.nodes // 2) * self.spacing
        self.steps = torch.arange(window, device=like.device).view(-1, 1, 1, 1)

    def near(self, x: Tensor) -> Near:
        """Return the nodes near x [B, C, D] and the features there."""
        x = x.clamp(-self.reach, self.reach)
        if self.window < self.nodes:
            first = (x.nan_to_num(0) + (self.radius - self.cutoff)).div_(self.spacing).floor_()
            index = first.add_(1).clamp_(0, self.nodes - self.window).long() + self.steps
        else:
            index = self.steps.expand(-1, *x.shape)
        offset = x - self.u[index]
        f = torch.exp(-2 * offset.square())
        return Near(index, f.masked_fill_(offset.abs() >= self.cutoff, 0), offset)

    def nearest_written(self, q: Tensor, empty: Tensor) -> Tensor:
        """Return the nearest written node on each side of q [n], [2, n]; `empty` is [N, n].

        If one side has none, both are the node of the other side.
        """
        offset = self.u.unsqueeze(1) - q.clamp(-self.reach, self.reach)
        distance = offset.abs().masked_fill_(empty, torch.inf)
        sides = [distance.masked_fill(side, torch.inf).min(0) for side in (offset > 0, offset <= 0)]
        near, index = (torch.stack(of) for of in zip(*sides, strict=True))
        return torch.where(near.isinf(), index.flip(0), index)

    def far(self, q: Tensor, nodes: Tensor) -> Tensor:
        """Return the features of q [n] at two nodes [2, n], relative to the larger one.

        If both nodes are the same, the second feature is 0.
        """
        distance = (self.u[nodes] - q.clamp(-self.reach, self.reach)).abs_()
        closest = distance.amin(0)
        f = torch.exp(-2 * (distance - closest) * (distance + closest))
        f[1].masked_fill_(nodes[0] == nodes[1], 0)
        return f

    def read(self, q: Tensor, sums: Tensor, scale: Tensor | None = None) -> Reading:
        """Return y (Eq. 14 to Eq. 16) and its derivative at queries [B, C, D].

        `scale` [B, C, D] is the factor of the true sums; None for 1.
        """
        index, f, offset = self.near(q)
        pairs = _gather(sums, index)
        num, den = (pairs * f.unsqueeze(1)).sum(0)
        dnum, dden = (pairs * (f * offset).unsqueeze(1)).sum(0)
        smallest = self.smallest if scale is None else scale * self.smallest
        far = den <= smallest
        inverse = 1 / den
        y = num * inverse
        slope = (dnum - y * dden).mul_(inverse).mul_(-4)
        if far.any():
            s, z = (x[:, far] for x in sums.expand(-1, -1, -1, q.shape[1], -1).unbind(1))
            least = smallest[far] if isinstance(smallest, Tensor) else smallest
            nodes = self.nearest_written(q[far], z <= least)
            f = self.far(q[far], nodes)
            num, den = ((f * x.gather(0, nodes)).sum(0) for x in (s, z))
            empty = den == 0
            y[far] = (num / den).masked_fill_(empty, 0)
            inverse[far] = (-1 / den).masked_fill_(empty, 0)
            slope[far] = (nodes[0] * PACKED + nodes[1]).to(q.dtype).masked_fill_(empty, 0)
        return Reading(y, inverse, slope)

    def query(self, q: Tensor, found: Reading) -> Near:
        """Return the nodes that queries [B, C, D] have read, and their features there."""
        near, far = self.near(q), found.inverse < 0
        if not far.any():
            return near
        index, f, offset = near
        packed = found.slope[far].long()
        nodes = torch.stack([packed // PACKED, packed % PACKED])
        index = index.clone()
        index[:2, far], f[2:, far], f[:2, far] = nodes, 0, self.far(q[far], nodes)
        return Near(index, f, offset)

    def key(self, k: Tensor, masked: Tensor) -> Near:
        """Return the nodes near keys [B, C, D], and their features there; 0 for a masked key."""
        index, f, offset = self.near(k)
        return Near(index, f.masked_fill_(masked, 0), offset)


class Scales:
    """Factors of the sums of chunks of tokens, [T, B, C, D], with decay.

    The sums at token t are e^c times the true ones. The log decay is added to c, so that a token
    changes the sums near its key only. If c exceeds MAX_SCALE, token t multiplies all sums of the
    channel by e^-c, and c is 0 again, as it is before each chunk.
    """

    def __init__(self, log_decay: Tensor) -> None:
        self.up = torch.empty_like(log_decay)  # e^c
        self.kept = torch.ones_like(log_decay)  # factor of the sums before token t
        c = torch.zeros_like(log_decay[0])
        rest = torch.zeros_like(c)  # rounding error of c (Kahan summation)
        for t, lost in enumerate(log_decay.neg().clamp_(max=FORGETS)):
            added = lost + rest
            total = c + added
            part = total - c
            rest = (c - (total - part)) + (added - part)
            keeps = total <= MAX_SCALE
            self.kept[t].copy_(torch.exp(-total) * (1 - rest)).masked_fill_(keeps, 1)
            c, rest = total.masked_fill(~keeps, 0), rest.masked_fill(~keeps, 0)
            self.up[t] = torch.exp(c) * (1 + rest)
        self.moved = self.kept != 1
        self.moves = self.moved.flatten(1).any(1).tolist()
        # Factor from the sums after a chunk to the true ones, and over the whole chunk, [B, C, D].
        self.down = torch.exp(-c) * (1 - rest)
        self.whole = self.kept.prod(0) * self.down

    def move(self, sums: Tensor, t: int) -> None:
        """Multiply the sums before token t, or the reverse sums after it."""
        if self.moves[t]:
            moved = self.moved[t]
            sums[:, :, moved] *= self.kept[t][moved]


class _Call:
    """Inputs of one call, in the dtype of the sums."""

    def __init__(self, inputs: Inputs, expansion: Quadrature, causal: bool) -> None:
        self.start, self.shift = initial_sums(inputs, expansion.terms)
        dtype, L = self.start.dtype, inputs.k.shape[1]
        k, v = (zero_masked(x, inputs.key_mask).to(dtype) for x in (inputs.k, inputs.v))
        window = expansion.nodes
        if expansion.cutoff < expansion.radius:
            window = min(window, math.ceil(2 * expansion.cutoff / expansion.spacing))
        self.grid = Grid(expansion, self.start, window)
        self.any_nan = bool(k.isnan().any())
        self.causal = causal and L > 0
        # A chunk has its own sums, so that long chunks save memory.
        T = self.T = steps(L, at_least=expansion.nodes // 2 if self.causal else 1)
        valid = inputs.key_mask
        if valid is None:
            valid = torch.ones(k.shape[:2], dtype=torch.bool, device=k.device)
        self.q = chunks(inputs.q.to(dtype), T if self.causal else steps(inputs.q.shape[1]))
        self.k, self.v, self.masked = chunks(k, T), chunks(v, T), ~chunks(valid.unsqueeze(-1), T)
        self.last = self.shift.masked_fill(valid.any(1)[:, None, None], 0)
        self.scales: Scales | None = None
        if self.causal and inputs.log_decay is not None:
            log_decay = zero_masked(inputs.log_decay.expand(k.shape), inputs.key_mask)
            self.scales = Scales(chunks(log_decay, T))

    def scale(self, t: int) -> Tensor | None:
        """Return the factor of the true sums at step t, [B, C, D]; None for 1."""
        return None if self.scales is None else self.scales.up[t]

    def move(self, sums: Tensor, t: int) -> None:
        """Decay the sums before step t, or the reverse sums after it."""
        if self.scales is not None:
            self.scales.move(sums, t)

    def write(self, sums: Tensor, t: int) -> None:
        """Add the keys and values of step t (Eq. 12, Eq. 13)."""
        self.move(sums, t)
        v, scale = self.v[t], self.scale(t)
        pair = (v, torch.ones_like(v)) if scale is None else (v * scale, scale)
        _scatter(sums, self.grid.key(self.k[t], self.masked[t]), *pair)
        if self.any_nan:  # a NaN key affects all nodes
            sums.masked_fill_(self.k[t].isnan(), torch.nan)

    def gradient(self, t: int, sums: Tensor) -> list[Tensor]:
        """Return dk, dv and, with decay, dw of step t from the reverse sums.

        dw is the gradient of the logarithm of the key's weight.
        """
        near, scale = self.grid.key(self.k[t], self.masked[t]), self.scale(t)
        s, z = _gather(sums, near.node).unbind(1)
        both = self.v[t] * z - s
        grads = [(near.f * near.offset * both).sum(0).mul_(-4), (near.f * z).sum(0)]
        if scale is not None:
            grads = [x.mul_(scale) for x in (*grads, (near.f * both).sum(0))]
        return [x.masked_fill_(self.masked[t], 0) for x in grads]

    def sums_before(self) -> Tensor:
        """Return the sums before each chunk: [N, 2, B, C, D]."""
        return _prefixes(self.start, self.k, self.write, range(self.T), self.scales)

    def decay_gradient(self, scales: Scales, final: Tensor, after: Tensor, dw: Tensor) -> Tensor:
        """Return the gradient of the log decays, [B, C * T, D].

        It is the product of the sums before a token with the reverse sums. Since y does not depend
        on the scale of the sums, it changes from token to token by dw, [T, B, C, D] in reverse
        order, and the product is computed at the end of each chunk only, from the final sums and
        the reverse sums `after` each chunk.
        """
        ends = final
        if dw.shape[2] > 1:
            ends = torch.cat([self.sums_before()[:, :, :, 1:], final], 3)
        (s, z), (sr, zr) = ends.unbind(1), after.unbind(1)
        end = (s * zr - z * sr).sum(0)
        each = (end - dw.cumsum(0)).flip(0)
        each = each.masked_fill_(self.masked | (scales.kept == 0), 0)
        return each.permute(1, 2, 0, 3).flatten(1, 2)


def forward(inputs: Inputs, *, expansion: Quadrature, causal: bool, save: bool = False) -> Outputs:
    """Return y of Eq. 5 or Eq. 6, the final state, and what a causal backward needs."""
    if inputs.cu_seqlens is not None:
        return packed_forward(forward, inputs, expansion=expansion, causal=causal, save=save)
    call, L = _Call(inputs, expansion, causal), inputs.q.shape[1]
    y, y_at = output(inputs.q, call.q)
    if not call.causal:
        sums = _total(call.start, call.k, call.write)
        for t, q in enumerate(call.q):
            y_at[t] = call.grid.read(q, sums).y
        nothing = sums.new_empty(saved_shape(inputs.q)) if causal and save else None
        return y[:, :L].contiguous(), *as_state(sums, call.last, wide=True), nothing
    sums = call.sums_before()
    found = sums.new_empty(3, len(y), y.shape[1], y.shape[2]) if save else None
    for t, q in enumerate(call.q):
        call.write(sums, t)
        reading = call.grid.read(q, sums, call.scale(t))
        y_at[t] = reading.y
        for kept, x in zip(() if found is None else found, reading, strict=False):
            chunks(kept, call.T)[t] = x
    saved = None if found is None else found[:, :, :L].contiguous()
    sums = sums[:, :, :, -1:]
    if call.scales is not None:
        sums = sums * call.scales.down[:, -1:]
    return y[:, :L].contiguous(), *as_state(sums, call.last, wide=True), saved


def backward(
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    inputs: Inputs,
    final: Sums,
    saved: Tensor,
    *,
    expansion: Quadrature,
    causal: bool,
) -> Gradients:
    """Return the gradients of the inputs from those of y and the final s, z.

    The reverse sums are those of (a_i y_i, a_i) f_n(q_i) with a_i = gy_i / den_i. With s and z read
    from them at a key, dv = z(k) and dk = v z'(k) - s'(k).
    """
    given = gy, gs, gz, inputs, final, saved
    if inputs.cu_seqlens is not None:
        return packed_backward(backward, *given, expansion=expansion, causal=causal)
    call, Lk = _Call(inputs, expansion, causal), inputs.k.shape[1]
    start = torch.zeros_like(call.start)
    if gs is not None and gz is not None:
        start += _sums(-gz, gs)
    grid, gy_at = call.grid, chunks(gy.to(start.dtype), len(call.q))
    (dq, dq_at), (dk, dk_at), (dv, dv_at) = (
        output(x, like) for x, like in zip(inputs[:3], (call.q, call.k, call.k), strict=True)
    )
    kept = [chunks(x, call.T) for x in saved] if call.causal else None
    end = _sums(*final[:2]).to(start.dtype)  # read by a call that is not causal

    def write(sums: Tensor, t: int) -> None:
        q, g = call.q[t], gy_at[t]
        found = Reading(*(x[t] for x in kept)) if kept else grid.read(q, end)
        a = g * found.inverse.abs()
        dq_at[t] = (g * found.slope).masked_fill_(found.inverse <= 0, 0)
        _scatter(sums, grid.query(q, found), a * found.y, a)

    def write_and_move(sums: Tensor, t: int) -> None:
        write(sums, t)
        call.move(sums, t)

    dg = None if inputs.log_decay is None else torch.zeros_like(inputs.log_decay)
    if call.causal:
        backwards, scales = range(call.T)[::-1], call.scales
        after = _prefixes(start, call.q, write_and_move, backwards, scales)
        sums = after if scales is None else after * scales.down
        dws: list[Tensor] = []
        for t in backwards:
            write(sums, t)
            dk_at[t], dv_at[t], *dw = call.gradient(t, sums)
            dws += dw
            call.move(sums, t)
        sums = sums[:, :, :, :1]
        if scales is not None and dg is not None:
            each = call.decay_gradient(scales, end, after, torch.stack(dws))[:, :Lk]
            dg = each.sum((0, 1)) if dg.dim() == 1 else each.contiguous()
    else:
        sums = _total(start, call.q, write)
        for t in range(len(call.k)):
            dk_at[t], dv_at[t] = call.gradient(t, sums)
    dq, dk, dv = dq[:, : inputs.q.shape[1]], dk[:, :Lk], dv[:, :Lk]
    ds = dz = None
    if inputs.s is not None:
        dz, ds, _ = as_state(sums, call.last, wide=True)
        dz = dz.neg_()
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), ds, dz, dg


def _total(start: Tensor, tokens: Tensor, write: Write) -> Tensor:
    """Return `start` plus the sums of all tokens [T, B, C, D], which `write` adds step by step."""
    sums = start.new_zeros(*start.shape[:3], *tokens.shape[2:])
    for t in range(len(tokens)):
        write(sums, t)
    return sums.sum(3, keepdim=True).add_(start)


def _prefixes(
    start: Tensor, tokens: Tensor, write: Write, order: range, scales: Scales | None
) -> Tensor:
    """Return the sums before each chunk, in the order of the walk: [N, 2, B, C, D]."""
    C = tokens.shape[2]
    if C == 1:
        return start.clone()
    sums = start.new_zeros(*start.shape[:3], *tokens.shape[2:])
    for t in order:
        write(sums, t)
    if scales is not None:
        if order.step > 0:
            sums *= scales.down
        carry, prefix = start[:, :, :, 0], torch.empty_like(sums)
        for c in range(C)[:: order.step]:
            prefix[:, :, :, c] = carry
            carry = torch.addcmul(sums[:, :, :, c], carry, scales.whole[:, c])
        return prefix
    if order.step > 0:
        return torch.cat([start, sums[:, :, :, :-1]], 3).cumsum(3)
    return torch.cat([start, sums[:, :, :, 1:].flip(3)], 3).cumsum(3).flip(3)


def _gather(sums: Tensor, index: Tensor) -> Tensor:
    """Read sums [N, 2, B, C or 1, D] at nodes [W, B, C, D]: [W, 2, B, C, D]."""
    shape = index.shape
    index = index.unsqueeze(1).expand(-1, 2, *shape[1:])
    return sums.expand(-1, -1, -1, shape[2], -1).gather(0, index)


def _scatter(sums: Tensor, near: Near, s: Tensor, z: Tensor) -> None:
    """Add f_n s and f_n z [B, C, D] to the sums at the nodes near a token."""
    index = near.node.unsqueeze(1).expand(-1, 2, *near.node.shape[1:])
    sums.scatter_add_(0, index, near.f.unsqueeze(1) * torch.stack([s, z]))


def _sums(s: Tensor, z: Tensor) -> Tensor:
    """Lay out s and z [B, D, N] as sums [N, 2, B, 1, D]."""
    return torch.stack([s, z]).permute(3, 0, 1, 2).unsqueeze(3)
