"""EA-series for torch.export: plain operators, and no loop that depends on L, which is a symbol."""

import torch
from torch import Tensor

from eattn.ops.eager import as_state, initial_sums
from eattn.ops.expansion import Expansion
from eattn.ops.features import Features, decay, empty_shift, features
from eattn.ops.inputs import Inputs, Outputs

TILE = 16  # tokens summed at once: as few doublings for each term as memory for chunks allows
REACH = 22  # doublings over tiles, at most: enough for L = 2^22 * TILE = 2^26


def exporting() -> bool:
    """Whether torch.export is tracing; before torch 2.7 there is no telling."""
    known = getattr(torch.compiler, "is_exporting", None)
    return known is not None and known()


def forward(inputs: Inputs, *, expansion: Expansion, causal: bool) -> Outputs:
    """Compute `eager.forward`, without packed sequences."""
    if inputs.cu_seqlens is not None:
        raise ValueError("cu_seqlens cannot be exported: export padded sequences with key_mask")
    q, k, v, key_mask = inputs[:4]
    start, shift = initial_sums(inputs, expansion.terms)
    kernel = features(expansion, start.dtype)
    hidden = k.new_zeros(1, k.shape[1], 1, dtype=torch.bool)
    if key_mask is not None:
        hidden = ~key_mask.unsqueeze(-1)
        k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    q, k, v = (x.to(start.dtype) for x in (q, k, v))
    # One token sees itself and the state, whether causal or not; a symbol is never an int.
    alone = isinstance(k.shape[1], int) and k.shape[1] == 1 and q.shape[1] == 1
    causal_scan = _scan if kernel.shifts else _running
    scan = causal_scan if causal and not alone else _total
    (num, den), sums, last = scan(kernel, q, k, v, hidden, start, shift)
    y = (num / den).masked_fill(den == 0, 0).to(inputs.q.dtype)
    return y, *as_state(sums, last), None


def _total(
    kernel: Features, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    magnitude = kernel.magnitude(k).masked_fill(hidden, empty_shift(k.dtype))
    last = torch.minimum(magnitude.amin(1, keepdim=True), shift)
    point, w = kernel.key(k, last)
    terms = kernel.terms(point, w.masked_fill(hidden, 0))
    sums = {n: torch.stack([f * v, f]).sum(2, keepdim=True) for n, f in terms}
    total = _stack(sums) + start * decay(shift, last)
    return kernel.read(*kernel.query(q), total.__getitem__)[0], total, last


def _running(
    kernel: Features, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums that are relative to nothing only grow: one operator for each term."""
    point, w = kernel.key(k, shift)
    terms, sums = kernel.terms(point, w.masked_fill(hidden, 0)), {}

    def pair(n: int) -> Tensor:
        number, f = next(terms)
        assert number == n, "what is read must come in the order of the terms"
        x = torch.stack([f * v, f]).cumsum(2) + start[n]
        sums[n] = x[:, :, -1:]
        return x

    value = kernel.read(*kernel.query(q), pair)[0]
    magnitude = kernel.magnitude(k).masked_fill(hidden, empty_shift(k.dtype))
    return value, _stack(sums), torch.minimum(magnitude.amin(1, keepdim=True), shift)


def _scan(
    kernel: Features, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, start: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Doublings in place of loops: after r of them a position holds the sum of its last 2^r.

    First over the TILE tokens of a chunk, [B, C, T, D], then over chunks, `start` before the first.
    """
    L, C = k.shape[1], k.shape[1] // TILE + 2  # not 0 or 1, which torch.export takes for constants
    token, chunk = torch.arange(TILE, device=k.device), torch.arange(C + 1, device=k.device)
    position = chunk[1:].unsqueeze(1) * TILE + token - TILE
    q, k, v, hidden = (x[:, position.clamp(max=L - 1)] for x in (q, k, v, hidden))
    hidden = hidden | (position >= L).unsqueeze(-1)

    tokens, within = _reaches(token, TILE.bit_length() - 1)
    chunks, among = _reaches(chunk, _doublings(C + 1))
    m = kernel.magnitude(k).masked_fill(hidden, empty_shift(k.dtype))
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
    w = w.masked_fill(hidden, 0)

    # What a chunk adds, at its end: summed first, so that all terms are doubled at once.
    own = kernel.terms(point, w * decay(m, m[:, :, -1:]))
    total = torch.cat([start, _stack({n: torch.stack([f * v, f]).sum(3) for n, f in own})], 3)
    for earlier, kept in outer:
        total = total + total.index_select(3, earlier) * kept
    carried, terms = decay(before, m), kernel.terms(point, w)

    def pair(n: int) -> Tensor:
        number, f = next(terms)
        assert number == n, "what is read must come in the order of the terms"
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
    """As few as reach over `size` positions, whatever the symbols in it come to be."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return next((r for r in range(REACH) if statically_known_true(size <= 1 << r)), REACH)


def _reaches(here: Tensor, count: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """For 1, 2, 4, ... positions before `here`: which that is, the first at least; if it exists."""
    there = here - here.new_tensor([1 << r for r in range(count)]).unsqueeze(1)
    return there.clamp(min=0).unbind(), there >= 0


def _kept(m: Tensor, reaches: tuple[Tensor, ...], exists: Tensor) -> tuple[Tensor, ...]:
    """What is left at m [..., n, D] of a sum so far before it, for each reach; 0 if it is none."""
    earlier = m.index_select(-2, torch.cat(reaches))
    old = earlier.unflatten(-2, (len(reaches), -1)).movedim(-3, 0)
    exists = exists.view(len(reaches), *(1,) * (m.dim() - 2), -1, 1)
    return (decay(old, m) * exists).unbind()
