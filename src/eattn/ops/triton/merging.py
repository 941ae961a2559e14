"""The phase between the chunks: what precedes each of them, or follows it."""

import triton
import triton.language as tl

from eattn.ops.triton.features import (
    constant,
    decay,
)
from eattn.ops.triton.memory import (
    block_of,
    load_shift,
    sequence_of,
    store_shift,
    tokens_inside,
)


@triton.jit
def _merge_chunks(
    s, z, m, sums_ptr, prefix_ptr, first, chunks, n, d, D, lanes,
    BACK: tl.constexpr, TILE: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Term n of what precedes each chunk (going back: follows it), and of all of them."""
    N: tl.constexpr = E.terms
    lost_s = tl.zeros_like(s)  # to rounding, and made good: Kahan's sum
    lost_z = tl.zeros_like(z)
    for t in range(0, chunks, TILE):
        ok = tokens_inside(t, chunks, lanes, TILE)
        ss = ()
        zs = ()
        ms = ()
        for i in tl.static_range(TILE):
            c = t + i
            if BACK:
                c = chunks - 1 - c
            at = sums_ptr + (first + c) * (2 * N + 1) * D + d
            ss = ss + (tl.load(at + n * D, mask=ok[i], other=0.0),)
            zs = zs + (tl.load(at + (N + n) * D, mask=ok[i], other=0.0),)
            ms = ms + (tl.load(at + 2 * N * D, mask=ok[i], other=0.0),)
        for i in tl.static_range(TILE):
            if prefix_ptr is not None:
                c = t + i
                if BACK:
                    c = chunks - 1 - c
                at = prefix_ptr + (first + c) * (2 * N + 1) * D + d
                tl.store(at + n * D, s, mask=ok[i])
                tl.store(at + (N + n) * D, z, mask=ok[i])
                tl.store(at + 2 * N * D, m, mask=ok[i] & (n == 0))
            own = tl.where(ms[i] < E.far, ms[i], E.far)
            new = own
            if not BACK:
                new = tl.where(own < m, own, m)
            new = tl.where(ok[i], new, m)
            kept = decay(m, new, E)
            joins = decay(own, new, E)
            moved_s = s * kept
            moved_z = z * kept
            total_s = ss[i] * joins + lost_s * kept
            total_z = zs[i] * joins + lost_z * kept
            s = moved_s + total_s
            z = moved_z + total_z
            lost_s = total_s - (s - moved_s)
            lost_z = total_z - (z - moved_z)
            m = new
    return s, z, m


@triton.jit
def merge(
    sums_ptr, prefix_ptr, cu_ptr, s0_ptr, z0_ptr, m0_ptr, s1_ptr, z1_ptr, m1_ptr, L, D,
    E: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What precedes every chunk, and the final state: term n of one sequence."""
    N: tl.constexpr = E.terms
    row = tl.program_id(0)
    n = tl.program_id(2)
    d, lanes = block_of(D, BLOCK)
    _batch, _begin, count, first = sequence_of(row, cu_ptr, L, CHUNK)
    at = row.to(tl.int64) * D
    s = tl.zeros((BLOCK,), E.real)
    z = tl.zeros((BLOCK,), E.real)
    m = s + E.far
    if s0_ptr is not None:
        s = tl.load(s0_ptr + at * N + n * D + d, mask=lanes, other=0.0)
        z = tl.load(z0_ptr + at * N + n * D + d, mask=lanes, other=0.0)
        m = load_shift(m0_ptr + at, d, lanes, E)
    s, z, m = _merge_chunks(
        s, z, m, sums_ptr, prefix_ptr, first, tl.cdiv(count, CHUNK), n, d, D, lanes, False, TILE, E
    )
    tl.store(s1_ptr + at * N + n * D + d, s, mask=lanes)
    tl.store(z1_ptr + at * N + n * D + d, z, mask=lanes)
    store_shift(m1_ptr + at, m, d, lanes & (n == 0), E)


@triton.jit
def merge_back(
    sums_ptr, prefix_ptr, cu_ptr, gs_ptr, gz_ptr, m1_ptr, m0_ptr, ds_ptr, dz_ptr, total_ptr, L, D,
    E: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What follows every chunk, from the gradient of the final state to that of the initial one."""
    N: tl.constexpr = E.terms
    row = tl.program_id(0)
    n = tl.program_id(2)
    d, lanes = block_of(D, BLOCK)
    _batch, _begin, count, first = sequence_of(row, cu_ptr, L, CHUNK)
    c = tl.full((BLOCK,), 1.0, E.real)
    if not E.bells:
        for i in tl.static_range(N):
            c = tl.where(n == i, constant(E.table[i], c, E), c)
    at = row.to(tl.int64) * D
    s = tl.zeros((BLOCK,), E.real)
    z = tl.zeros((BLOCK,), E.real)
    m = load_shift(m1_ptr + at, d, lanes, E)
    if gs_ptr is not None:
        s = -tl.load(gz_ptr + at * N + n * D + d, mask=lanes, other=0.0) * E.lift / c
        z = tl.load(gs_ptr + at * N + n * D + d, mask=lanes, other=0.0) * E.lift / c
    s, z, m = _merge_chunks(
        s, z, m, sums_ptr, prefix_ptr, first, tl.cdiv(count, CHUNK), n, d, D, lanes, True, TILE, E
    )
    if total_ptr is not None:
        total_at = total_ptr + row.to(tl.int64) * (2 * N + 1) * D + d
        tl.store(total_at + n * D, s, mask=lanes)
        tl.store(total_at + (N + n) * D, z, mask=lanes)
        tl.store(total_at + 2 * N * D, m, mask=lanes & (n == 0))
    if ds_ptr is not None:
        c = c * decay(m, load_shift(m0_ptr + at, d, lanes, E), E) * (1 / E.lift)
        tl.store(ds_ptr + at * N + n * D + d, z * c, mask=lanes)
        tl.store(dz_ptr + at * N + n * D + d, -s * c, mask=lanes)
