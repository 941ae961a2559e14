"""Bytes the kernels move, from their own loads and stores, for calls without mask or packing.

Divided by a card's bandwidth this is the least time a call can take: the roofline of the kernels
as they are. Counts are of what programs ask for; what caches save is not counted.
"""

from dataclasses import dataclass

from eattn.ops.triton import configs


@dataclass(frozen=True)
class Shape:
    """A plain call: [B, Lq, D] queries, [B, L, D] keys, N terms."""

    B: int
    Lq: int
    L: int
    D: int
    terms: int
    causal: bool
    io: int = 4  # bytes of an element of q, k, v, y and their gradients
    real: int = 4  # of an element of sums

    @property
    def fused(self) -> bool:
        return configs.is_fused(self.B, self.Lq, self.L, self.D, self.terms)

    @property
    def chunk(self) -> int:
        return configs.chunk_length(self.B, max(self.Lq, self.L), self.D)

    @property
    def sums(self) -> int:
        """Of one chunk or sequence, per channel: s, z and the shift."""
        return (2 * self.terms + 1) * self.real


def _per_channel(shape: Shape, tokens: int, per_token: int, per_chunk: int, fixed: int = 0) -> int:
    chunks = -(-tokens // shape.chunk)
    return shape.B * shape.D * (tokens * per_token + chunks * per_chunk + fixed)


def forward(shape: Shape, *, save: bool = False, state: bool = False) -> dict[str, int]:
    """Bytes of each kernel of a forward; `state` if one is given."""
    e, W, N, r = shape.io, shape.sums, shape.terms, shape.real
    ends = W + (W if state else 0)  # the final state, and the initial one
    if shape.causal and shape.L == 1 and not save:
        return {"step": _per_channel(shape, 0, 0, 0, 4 * e + ends)}
    keeps = W if save and shape.causal else 0  # what precedes a chunk, for the backward
    if shape.fused:
        keys = _per_channel(shape, shape.L, 2 * e, keeps, ends)
        queries = _per_channel(shape, shape.Lq, 2 * e, 0)
        return {"fused": keys + queries}
    states = _per_channel(shape, shape.L, 2 * e, W)
    # A program of `merge` has one term of the sums, and reads the shift for it.
    ends = W + (3 * r * N if state else 0)
    merge = _per_channel(shape, shape.L, 0, 3 * r * N + (W if shape.causal else 0), ends)
    before = 3 * e if shape.causal else e  # a causal walk reads the keys again
    outputs = _per_channel(shape, shape.Lq, before + e, W)
    return {"states": states, "merge": merge, "outputs": outputs}


def backward(shape: Shape, *, state: bool = False, through_state: bool = False) -> dict[str, int]:
    """Bytes of each kernel of a backward; `through_state` if the final state has a gradient."""
    e, W, N, r = shape.io, shape.sums, shape.terms, shape.real
    ends = r * N * (1 + 2 * through_state + 3 * state)
    if shape.causal:
        queries = _per_channel(shape, shape.Lq, 5 * e + 3 * r, 2 * W)
        merge = _per_channel(shape, shape.Lq, 0, 3 * r * N + W, ends)
        keys = _per_channel(shape, shape.L, 5 * e + 3 * r, W)
    else:
        queries = _per_channel(shape, shape.Lq, 3 * e, 2 * W)
        merge = _per_channel(shape, shape.Lq, 0, 3 * r * N, W + ends)
        keys = _per_channel(shape, shape.L, 4 * e, W)
    return {"query_gradients": queries, "merge_back": merge, "key_gradients": keys}
