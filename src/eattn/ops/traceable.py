"""EA-series for torch.export: plain operators, and no loop over L, which is a symbol."""

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
    # A single token needs no scan, causal or not. A symbolic length is never an int.
    alone = isinstance(k.shape[1], int) and k.shape[1] == 1 and q.shape[1] == 1
    causal = causal and not alone
    if isinstance(expansion, Quadrature):
        (num, den), sums, last = _grid(expansion, q, k, v, masked, start, shift, causal)
    else:
        kernel, scan = features(expansion, start.dtype), _scan if causal else _total
        (num, den), sums, last = scan(kernel, q, k, v, masked, start, shift)
    y = (num / den).masked_fill(den == 0, 0).to(inputs.q.dtype)
    return y, *as_state(sums, last, wide=expansion.wide), None


def _grid(
    expansion: Quadrature,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor,
    start: Tensor,
    shift: Tensor,
    causal: bool,
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Compute all features of a grid as one tensor [B, L, D, N]: the graph does not grow with N."""
    q, k = (x.clamp(-expansion.reach, expansion.reach) for x in (q, k))
    z = reference.features(k, expansion).masked_fill(masked.unsqueeze(-1), 0)
    s = z * v.unsqueeze(-1)
    own = (x.cumsum(1) if causal else x.sum(1, keepdim=True) for x in (s, z))
    s, z = (x + x0 for x, x0 in zip(own, start.permute(1, 2, 3, 4, 0), strict=True))
    f = reference.features(q, expansion) * (1 if expansion.wide else GAUSSIAN_ROOT**2)
    far = (f * z).sum(-1, keepdim=True) <= smallest_den(z.dtype)
    f = torch.where(far, reference.far_features(q, z, expansion), f)
    last = torch.stack([s[:, -1:], z[:, -1:]]).permute(4, 0, 1, 2, 3)
    has_keys = ~masked.all(1, keepdim=True)
    return ((f * s).sum(-1), (f * z).sum(-1)), last, shift.masked_fill(has_keys, 0)


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
    kernel: Features, q: Tensor, k: Tensor, v: Tensor, masked: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute causal sums by doubling: after r steps a position holds the sum of its last 2^r.

    Doubles over the TILE tokens of a chunk, [B, C, T, D], and over chunks, which follow `start`.
    """
    L, C = k.shape[1], k.shape[1] // TILE + 2  # not 0 or 1, which torch.export makes constants
    token, chunk = torch.arange(TILE, device=k.device), torch.arange(C + 1, device=k.device)
    position = chunk[1:].unsqueeze(1) * TILE + token - TILE
    q, k, v, masked = (x[:, position.clamp(max=L - 1)] for x in (q, k, v, masked))
    masked = masked | (position >= L).unsqueeze(-1)

    tokens, within = _earlier(token, TILE.bit_length() - 1)
    chunks, among = _earlier(chunk, _doublings(C + 1))
    m = kernel.magnitude(k).masked_fill(masked, empty_shift(k.dtype))
    for earlier in tokens:
        m = torch.minimum(m, m.index_select(2, earlier))
    ends = torch.cat([shift, m[:, :, -1]], 1)
    for earlier in chunks:
        ends = torch.minimum(ends, ends.index_select(1, earlier))
    before = ends[:, :-1].unsqueeze(2)
    m = torch.minimum(m, before)
    inner = list(zip(tokens, _kept(m, tokens, within), strict=True))
    outer = zip(chunks, _kept(ends, chunks, among), strict=True)
    point, w = kernel.key(k, m)
    w = w.masked_fill(masked, 0)

    # Sum each chunk, at its final shift, before doubling: all terms are doubled in one call.
    own = kernel.terms(point, w * decay(m, m[:, :, -1:]))
    total = torch.cat([start, _stack({n: torch.stack([f * v, f]).sum(3) for n, f in own})], 3)
    for earlier, kept in outer:
        total = total + total.index_select(3, earlier) * kept
    carried, terms = decay(before, m), kernel.terms(point, w)

    def pair(n: int) -> Tensor:
        number, f = next(terms)
        assert number == n, "`read` must ask for the terms in their order"
        x = torch.stack([f * v, f])
        for earlier, kept in inner:
            x = x + x.index_select(3, earlier) * kept
        return x + total[n, :, :, :-1].unsqueeze(3) * carried

    i = torch.arange(L, device=k.device)
    value = kernel.read(*kernel.query(q), pair)[0][:, :, i // TILE, i % TILE]
    return value, total[:, :, :, -1:], ends[:, -1:]


def _stack(sums: dict[int, Tensor]) -> Tensor:
    return torch.stack([sums[n] for n in range(len(sums))])


def _doublings(size: int) -> int:
    """Return the smallest number of doublings that covers `size` for all values of its symbols."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return next(
        (r for r in range(MAX_DOUBLINGS) if statically_known_true(size <= 1 << r)), MAX_DOUBLINGS
    )


def _earlier(here: Tensor, count: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the positions 1, 2, 4, ... before `here`, clamped to 0, and whether they exist."""
    there = here - here.new_tensor([1 << r for r in range(count)]).unsqueeze(1)
    return there.clamp(min=0).unbind(), there >= 0


def _kept(m: Tensor, positions: tuple[Tensor, ...], exists: Tensor) -> tuple[Tensor, ...]:
    """Return the decay from the shift at each earlier position to m [..., n, D]; 0 if missing."""
    earlier = m.index_select(-2, torch.cat(positions))
    old = earlier.unflatten(-2, (len(positions), -1)).movedim(-3, 0)
    exists = exists.view(len(positions), *(1,) * (m.dim() - 2), -1, 1)
    return (decay(old, m) * exists).unbind()
