"""EA-series for torch.export: plain operators, and no loop over L, which is a symbol."""

from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops import reference
from eattn.ops.chunks import as_state, initial_sums
from eattn.ops.expansion import Expansion, Quadrature
from eattn.ops.features import (
    GAUSSIAN_ROOT,
    Features,
    decay,
    empty_shift,
    features,
    smallest_den,
)
from eattn.ops.inputs import Inputs, Outputs

TILE = 16  # tokens per chunk: a longer chunk needs more doublings, a shorter one more memory
MAX_DOUBLINGS = 22  # over chunks: enough for L = 2^22 * TILE = 2^26


def exporting() -> bool:
    """Return whether torch.export is tracing; always False before torch 2.7."""
    known = getattr(torch.compiler, "is_exporting", None)
    return known is not None and known()


def forward(inputs: Inputs, *, expansion: Expansion, causal: bool) -> Outputs:
    """Return the same as `eager.forward`; packed sequences are not supported."""
    if inputs.cu_seqlens is not None:
        raise ValueError("cu_seqlens cannot be exported: export padded sequences with key_mask")
    q, k, v, key_mask = inputs[:4]
    start, shift = initial_sums(inputs, expansion.terms)
    masked = k.new_zeros(1, k.shape[1], 1, dtype=torch.bool)
    if key_mask is not None:
        masked = ~key_mask.unsqueeze(-1)
        k, v = k.masked_fill(masked, 0), v.masked_fill(masked, 0)
    q, k, v = (x.to(start.dtype) for x in (q, k, v))
    lost = None
    if inputs.log_decay is not None:
        lost = -inputs.log_decay.expand(k.shape).masked_fill(masked, 0)
    # A single token needs no scan, causal or not. A symbolic length is never an int.
    alone = isinstance(k.shape[1], int) and k.shape[1] == 1 and q.shape[1] == 1
    if lost is not None and alone:
        start, shift = _decayed(start, shift, lost, fixed=isinstance(expansion, Quadrature))
    scan = causal and not alone
    tokens, before = (q, k, v, masked), (start, shift)
    if isinstance(expansion, Quadrature):
        (num, den), sums, last = _grid(expansion, *tokens, *before, lost, scan)
    elif scan:
        kernel = features(expansion, start.dtype)
        (num, den), sums, last = _scan(kernel, *tokens, *before, lost)
    else:
        (num, den), sums, last = _total(features(expansion, start.dtype), *tokens, *before)
    y = (num / den).masked_fill(den == 0, 0).to(inputs.q.dtype)
    return y, *as_state(sums, last, wide=expansion.wide), None


def _decayed(start: Tensor, shift: Tensor, lost: Tensor, *, fixed: bool) -> tuple[Tensor, Tensor]:
    """Return sums and shift after a decay of e^-lost; a fixed shift stays as it is."""
    if fixed:
        return start * torch.exp(-lost), shift
    m = (shift.square() + lost).sqrt().clamp(max=empty_shift(shift.dtype))
    return start * torch.exp((m - shift) * (m + shift) - lost), m


def _grid(
    expansion: Quadrature,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor,
    start: Tensor,
    shift: Tensor,
    lost: Tensor | None,
    causal: bool,
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Compute all features of a grid as one tensor [B, L, D, N]: the graph does not grow with N."""
    q, k = (x.clamp(-expansion.reach, expansion.reach) for x in (q, k))
    z = reference.features(k, expansion).masked_fill(masked.unsqueeze(-1), 0)
    s = z * v.unsqueeze(-1)
    first = start.permute(1, 2, 3, 4, 0)
    if causal and lost is not None:
        s, z = _scan_grid(torch.stack([s, z]), lost, first).unbind()
    else:
        own = (x.cumsum(1) if causal else x.sum(1, keepdim=True) for x in (s, z))
        s, z = (x + x0 for x, x0 in zip(own, first, strict=True))
    f = reference.features(q, expansion) * (1 if expansion.wide else GAUSSIAN_ROOT**2)
    far = (f * z).sum(-1, keepdim=True) <= smallest_den(z.dtype)
    f = torch.where(far, reference.far_features(q, z, expansion), f)
    last = torch.stack([s[:, -1:], z[:, -1:]]).permute(4, 0, 1, 2, 3)
    has_keys = ~masked.all(1, keepdim=True)
    return ((f * s).sum(-1), (f * z).sum(-1)), last, shift.masked_fill(has_keys, 0)


def _scan_grid(x: Tensor, lost: Tensor, start: Tensor) -> Tensor:
    """Return decaying sums of x [2, B, L, D, N] after `start`, as in `_scan`; the shift stays 0."""
    layout = _Layout(lost)
    x = layout.split(x, 2).masked_fill(layout.padded.unsqueeze(-1), 0)
    lost = layout.split(lost, 1).masked_fill(layout.padded, 0)
    inner = layout.tokens.existing(torch.exp(-layout.tokens.spans(lost)))
    whole = torch.cat([torch.zeros_like(lost[:, :1, 0]), lost.sum(2)], 1)
    outer = layout.chunks.existing(torch.exp(-layout.chunks.spans(whole)))
    total = torch.cat([start, (x * torch.exp(-_lost_after(lost)).unsqueeze(-1)).sum(3)], 2)
    for earlier, kept in zip(layout.chunks.earlier, outer, strict=True):
        total = total + total.index_select(2, earlier) * kept.unsqueeze(-1)
    for earlier, kept in zip(layout.tokens.earlier, inner, strict=True):
        x = x + x.index_select(3, earlier) * kept.unsqueeze(-1)
    carried = torch.exp(-lost.cumsum(2)).unsqueeze(-1)
    return layout.join(x + total[:, :, :-1].unsqueeze(3) * carried)


def _total(
    kernel: Features, q: Tensor, k: Tensor, v: Tensor, masked: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    magnitude = kernel.magnitude(k).masked_fill(masked, empty_shift(k.dtype))
    last = torch.minimum(magnitude.amin(1, keepdim=True), shift)
    point, w = kernel.key(k, last)
    terms = kernel.terms(point, w.masked_fill(masked, 0))
    sums = {n: torch.stack([f * v, f]).sum(2, keepdim=True) for n, f in terms}
    total = _stack(sums) + start * decay(shift, last)
    return kernel.read(*kernel.query(q), total.__getitem__)[0], total, last


def _scan(
    kernel: Features,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor,
    start: Tensor,
    shift: Tensor,
    lost: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute causal sums by doubling: after r steps a position holds the sum of its last 2^r.

    Doubles over the TILE tokens of a chunk, [B, C, T, D], and over chunks, which follow `start`.
    """
    layout = _Layout(k)
    q, k, v, masked = (layout.split(x, 1) for x in (q, k, v, masked))
    masked = masked | layout.padded
    if lost is None:
        moves = _shifts(kernel, layout, k, masked, shift)
    else:
        lost = layout.split(lost, 1).masked_fill(layout.padded, 0)
        moves = _decays(kernel, layout, k, masked, shift, lost)
    w = moves.w.masked_fill(masked, 0)

    # Sum each chunk, at its final shift, before doubling: all terms are doubled in one call.
    own = kernel.terms(moves.point, w * moves.to_end)
    total = torch.cat([start, _stack({n: torch.stack([f * v, f]).sum(3) for n, f in own})], 3)
    for earlier, kept in zip(layout.chunks.earlier, moves.outer, strict=True):
        total = total + total.index_select(3, earlier) * kept
    terms = kernel.terms(moves.point, w)

    def pair(n: int) -> Tensor:
        number, f = next(terms)
        assert number == n, "`read` must ask for the terms in their order"
        x = torch.stack([f * v, f])
        for earlier, kept in zip(layout.tokens.earlier, moves.inner, strict=True):
            x = x + x.index_select(3, earlier) * kept
        return x + total[n, :, :, :-1].unsqueeze(3) * moves.carried

    value = layout.join(kernel.read(*kernel.query(q), pair)[0])
    last = total[:, :, :, -1:]
    return value, last if moves.rest is None else last * moves.rest, moves.last


class _Moves(NamedTuple):
    """Key features of a Taylor series relative to the shift, and factors between shifts."""

    point: Tensor  # [B, C, T, D]
    w: Tensor  # [B, C, T, D]
    inner: tuple[Tensor, ...]  # from the token 1, 2, 4, ... before, [B, C, T, D]; 0 if missing
    outer: tuple[Tensor, ...]  # from the chunk 1, 2, 4, ... before, [B, C + 1, D]; 0 if missing
    to_end: Tensor  # from each token to the end of its chunk, [B, C, T, D]
    carried: Tensor  # from the end of the chunk before, [B, C, T, D]
    last: Tensor  # final shift, [B, 1, D]
    rest: Tensor | None = None  # from the end of the last chunk to the final shift, [B, 1, D]


def _shifts(
    kernel: Features, layout: "_Layout", k: Tensor, masked: Tensor, shift: Tensor
) -> _Moves:
    """Without decay, the shift is the smallest |k| so far."""
    tokens, chunks = layout.tokens, layout.chunks
    m = kernel.magnitude(k).masked_fill(masked, empty_shift(k.dtype))
    for earlier in tokens.earlier:
        m = torch.minimum(m, m.index_select(2, earlier))
    ends = torch.cat([shift, m[:, :, -1]], 1)
    for earlier in chunks.earlier:
        ends = torch.minimum(ends, ends.index_select(1, earlier))
    before = ends[:, :-1].unsqueeze(2)
    m = torch.minimum(m, before)
    inner, outer = (
        over.existing(decay(over.all(x), x)) for x, over in ((m, tokens), (ends, chunks))
    )
    point, w = kernel.key(k, m)
    to_end, carried = decay(m, m[:, :, -1:]), decay(before, m)
    return _Moves(point, w, inner, outer, to_end, carried, ends[:, -1:])


class _Shift(NamedTuple):
    """With decay, the squared shift is m^2 + c: the |k| of a key, and what it lost since."""

    m: Tensor
    c: Tensor

    def rise(self, lost: Tensor | float, new: "_Shift") -> Tensor:
        """Return the exponent by which sums at this shift, after a loss, exceed those at `new`."""
        return (self.m - new.m) * (self.m + new.m) + (self.c + lost - new.c)

    def then(self, lost: Tensor, new: "_Shift") -> "_Shift":
        """Return the smaller one of this shift after a loss and `new`."""
        newer = self.rise(lost, new) > 0
        return _Shift(torch.where(newer, new.m, self.m), torch.where(newer, new.c, self.c + lost))

    def at(self, position: Tensor) -> "_Shift":
        return _Shift(self.m.index_select(-2, position), self.c.index_select(-2, position))

    def kept(self, spans: Tensor, over: "_Doubling") -> tuple[Tensor, ...]:
        """Return the factors from the shifts at earlier positions to these; 0 if missing."""
        earlier = _Shift(over.all(self.m), over.all(self.c))
        return over.existing(torch.exp(-earlier.rise(spans, self)))


def _decays(
    kernel: Features,
    layout: "_Layout",
    k: Tensor,
    masked: Tensor,
    shift: Tensor,
    lost: Tensor,
) -> _Moves:
    """With decay, m_i^2 = min(m_(i-1)^2 + lost_i, k_i^2); `lost` is 0 for masked tokens."""
    tokens, chunks = layout.tokens, layout.chunks
    magnitude = kernel.magnitude(k).masked_fill(masked, empty_shift(k.dtype))
    own = _Shift(magnitude, torch.zeros_like(magnitude))
    spans = tokens.spans(lost)
    local = _running(own, spans, tokens)
    whole = torch.cat([torch.zeros_like(shift), lost.sum(2)], 1)
    first = (
        torch.cat([shift, local.m[:, :, -1]], 1),
        torch.cat([whole[:, :1], local.c[:, :, -1]], 1),
    )
    whole_spans = chunks.spans(whole)
    ends = _running(_Shift(*first), whole_spans, chunks)
    before = _Shift(*(x[:, :-1].unsqueeze(2) for x in ends))
    after = _Shift(*(x[:, 1:].unsqueeze(2) for x in ends))
    since = lost.cumsum(2)
    here = before.then(since, local)
    m, c = (x[:, -1:] for x in ends)
    last = torch.where(c > 0, (m.square() + c).sqrt(), m)
    return _Moves(
        point=kernel.key(k, magnitude)[0],
        w=torch.exp(-own.rise(0, here)),
        inner=here.kept(spans, tokens),
        outer=ends.kept(whole_spans, chunks),
        to_end=torch.exp(-here.rise(_lost_after(lost), after)),
        carried=torch.exp(-before.rise(since, here)),
        last=last,
        rest=torch.exp((last - m) * (last + m) - c),
    )


def _running(own: _Shift, spans: Tensor, over: "_Doubling") -> _Shift:
    """Return the shift at each position from the shifts of single positions."""
    for earlier, lost in zip(over.earlier, spans.unbind(), strict=True):
        own = own.at(earlier).then(lost, own)  # a missing position 0 lost too much to be smaller
    return own


def _lost_after(lost: Tensor) -> Tensor:
    """Return what is lost from each token to the end of its chunk, [B, C, T, D]."""
    later = torch.cat([lost[:, :, 1:], torch.zeros_like(lost[:, :, :1])], 2)
    return later.flip(2).cumsum(2).flip(2)  # not a difference: inf - inf is NaN


class _Doubling:
    """Positions 1, 2, 4, ... before each of n positions, clamped to 0."""

    def __init__(self, here: Tensor, count: int) -> None:
        there = here - here.new_tensor([1 << r for r in range(count)]).unsqueeze(1)
        self.earlier, self.missing = there.clamp(min=0).unbind(), there < 0

    def all(self, x: Tensor) -> Tensor:
        """Return x [..., n, D] at all earlier positions, [count, ..., n, D]."""
        earlier = x.index_select(-2, torch.cat(self.earlier))
        return earlier.unflatten(-2, (len(self.earlier), -1)).movedim(-3, 0)

    def existing(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return [count, ..., n, D] for each distance, with 0 where the position is missing."""
        missing = self.missing.view(len(self.earlier), *(1,) * (x.dim() - 3), -1, 1)
        return x.masked_fill(missing, 0).unbind()

    def spans(self, x: Tensor) -> Tensor:
        """Sum x [..., n, D] over the last 1, 2, 4, ... positions, [count, ..., n, D]."""
        found = [x]
        for earlier, missing in zip(self.earlier[:-1], self.missing.unsqueeze(-1), strict=False):
            before = found[-1].index_select(-2, earlier).masked_fill(missing, 0)
            found.append(found[-1] + before)
        return torch.stack(found)


class _Layout:
    """L tokens as C chunks of TILE tokens, padded at the end, and the doublings over both."""

    def __init__(self, like: Tensor) -> None:
        L, C = like.shape[1], like.shape[1] // TILE + 2  # not 0 or 1: torch.export fixes those
        token, chunk = (
            torch.arange(TILE, device=like.device),
            torch.arange(C + 1, device=like.device),
        )
        position = chunk[1:].unsqueeze(1) * TILE + token - TILE
        self.position, self.padded = position.clamp(max=L - 1), (position >= L).unsqueeze(-1)
        self.index = torch.arange(L, device=like.device)
        self.tokens = _Doubling(token, TILE.bit_length() - 1)
        self.chunks = _Doubling(chunk, _doublings(C + 1))

    def split(self, x: Tensor, axis: int) -> Tensor:
        """Split an axis of L tokens into chunks."""
        return x[(slice(None),) * axis + (self.position,)]

    def join(self, x: Tensor) -> Tensor:
        """Return [2, B, C, T, ...] as [2, B, L, ...]."""
        return x[:, :, self.index // TILE, self.index % TILE]


def _stack(sums: dict[int, Tensor]) -> Tensor:
    return torch.stack([sums[n] for n in range(len(sums))])


def _doublings(size: int) -> int:
    """Return the smallest number of doublings that covers `size` for all values of its symbols."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return next(
        (r for r in range(MAX_DOUBLINGS) if statically_known_true(size <= 1 << r)), MAX_DOUBLINGS
    )
