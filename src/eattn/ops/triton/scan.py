"""The scan: sums of terms along time. A program handles a block of channels, one per lane.

Three kernels split a sequence over time: `states` sums every chunk of CHUNK tokens separately,
`merge` computes the sums before each chunk, and `outputs` walks the tokens again from there. The
backward (gradients.py) runs the same way in reverse: `query_gradients` also sums the terms of the
queries of each chunk, `merge_back` computes the sums after each chunk, and `key_gradients` walks
the tokens in reverse. With enough channels, `fused` is the whole forward in one pass. `step`
processes one token.

Sums are relative to a shift m (ops.features). All TILE tokens of a tile are loaded before the first
is used, so that memory latencies overlap. Neither TILE nor BLOCK, the number of channels, changes a
bit. In memory, sums are [slot, 2 N + 1, D]: s, z and the shift of each chunk or sequence. On a wide
grid several lanes share a channel (features.py), and BLOCK is fixed.

With decay, the shift grows while the sums decay: m_t^2 = min(m_(t-1)^2 - g_t, k_t^2). `g_sum`,
[slot, D], is the sum of g over a chunk, by which `merge` decays the sums of earlier chunks. Without
decay, the pointers to both are None.
"""

import triton
import triton.language as tl

from eattn.ops.triton.features import (
    absorb,
    decay,
    far_lanes,
    later_shift,
    output,
    query_features,
    quotient,
    read,
    read_far,
)
from eattn.ops.triton.memory import (
    block_of,
    channels_at,
    chunk_of,
    decays_at,
    keys_seen,
    load_decays,
    load_rows,
    load_shift,
    load_slot,
    load_state,
    no_sums,
    sequence_of,
    state_at,
    store_row,
    store_shift,
    store_slot,
    store_state,
    tokens_inside,
)


@triton.jit
def _sum_keys(
    s, z, m, g_sum, k_at, k_l, v_at, v_l, g_at, g_l, mask_ptr, mask_at, first, begin, end, lanes,
    TILE: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    for t in range(begin, end, TILE):
        inside = tokens_inside(t, end, lanes, TILE)
        valid = keys_seen(inside, mask_ptr, mask_at + t, end - t, TILE)
        ks = load_rows(k_at, k_l, first + t, valid, TILE, E)
        vs = load_rows(v_at, v_l, first + t, valid, TILE, E)
        gs = load_decays(g_at, g_l, first + t, valid, TILE, E)
        for i in tl.static_range(TILE):
            s, z, m = absorb(s, z, m, ks[i], vs[i], gs[i], valid[i], E)
            if E.decays:
                g_sum += gs[i]
    return s, z, m, g_sum


@triton.jit
def _read_queries(
    s, z, q_at, q_l, y_at, D, first, count, lanes, TILE: tl.constexpr, E: tl.constexpr
):
    for t in range(0, count, TILE):
        inside = tokens_inside(t, count, lanes, TILE)
        qs = load_rows(q_at, q_l, first + t, inside, TILE, E)
        for i in tl.static_range(TILE):
            y = output(qs[i], s, z, inside[i], E)
            store_row(y_at, D, first + t + i, y, inside[i])


@triton.jit
def states(
    k_ptr, k_b, k_l, k_d, v_ptr, v_b, v_l, v_d, g_ptr, g_b, g_l, g_d, mask_ptr, cu_ptr, row_ptr,
    sums_ptr, g_sum_ptr, L, D,
    E: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sum a chunk, relative to the smallest key of the chunk."""
    slot = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    _row, batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    k_at = channels_at(k_ptr, batch, k_b, d, k_d)
    v_at = channels_at(v_ptr, batch, v_b, d, v_d)
    g_at = decays_at(g_ptr, batch, g_b, d, g_d, E)
    s, z, m = no_sums(BLOCK, E)
    s, z, m, g_sum = _sum_keys(
        s, z, m, tl.zeros_like(m), k_at, k_l, v_at, v_l, g_at, g_l, mask_ptr, batch * L + first,
        first, 0, count, lanes, TILE, E,
    )  # fmt: skip
    store_slot(sums_ptr, slot, s, z, m, d, D, lanes, E)
    if E.decays:
        store_row(g_sum_ptr + d, D, slot.to(tl.int64), g_sum, lanes)


@triton.jit
def merge_chunks(
    s, z, m, sums_ptr, g_sum_ptr, prefix_ptr, first, chunks, n, d, D, lanes,
    BACK: tl.constexpr, TILE: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Store term n of the sums before (BACK: after) each chunk; return that of all chunks."""
    N: tl.constexpr = E.terms
    lost_s = tl.zeros_like(s)  # rounding errors (Kahan summation)
    lost_z = tl.zeros_like(z)
    for t in range(0, chunks, TILE):
        ok = tokens_inside(t, chunks, lanes, TILE)
        ss = ()
        zs = ()
        ms = ()
        gs = ()
        for i in tl.static_range(TILE):
            c = t + i
            if BACK:
                c = chunks - 1 - c
            at = sums_ptr + (first + c) * (2 * N + 1) * D + d
            ss = ss + (tl.load(at + n * D, mask=ok[i], other=0.0),)
            zs = zs + (tl.load(at + (N + n) * D, mask=ok[i], other=0.0),)
            ms = ms + (tl.load(at + 2 * N * D, mask=ok[i], other=E.empty_shift),)
            if E.decays:
                gs = gs + (tl.load(g_sum_ptr + (first + c) * D + d, mask=ok[i], other=0.0),)
            else:
                gs = gs + (tl.zeros_like(s),)
        for i in tl.static_range(TILE):
            if prefix_ptr is not None:
                c = t + i
                if BACK:
                    c = chunks - 1 - c
                at = prefix_ptr + (first + c) * (2 * N + 1) * D + d
                tl.store(at + n * D, s, mask=ok[i])
                tl.store(at + (N + n) * D, z, mask=ok[i])
                tl.store(at + 2 * N * D, m, mask=ok[i] & (n == 0))
            own = tl.where(ms[i] < E.empty_shift, ms[i], E.empty_shift)
            if BACK:
                new = tl.where(ok[i], own, m)
                kept = decay(new, m, gs[i], E)
            else:
                new = later_shift(m, own, gs[i], E)
                kept = decay(m, new, gs[i], E)
            joins = decay(own, new, tl.zeros_like(own), E)
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
    sums_ptr, g_sum_ptr, prefix_ptr, cu_ptr, s0_ptr, z0_ptr, m0_ptr, s1_ptr, z1_ptr, m1_ptr, L, D,
    E: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute term n of the sums before every chunk of a sequence, and of its final state."""
    row = tl.program_id(0)
    n = tl.program_id(2)
    d, lanes = block_of(D, BLOCK)
    _batch, _begin, count, first = sequence_of(row, cu_ptr, L, CHUNK)
    row_at = row.to(tl.int64) * D
    at, own, stride = state_at(row, d, D, E)
    at += n * stride
    s = tl.zeros((BLOCK,), E.real)
    z = tl.zeros((BLOCK,), E.real)
    m = s + E.empty_shift
    if s0_ptr is not None:
        s = tl.load(s0_ptr + at + own, mask=lanes, other=0.0)
        z = tl.load(z0_ptr + at + own, mask=lanes, other=0.0)
        m = load_shift(m0_ptr + row_at, d, lanes, E)
    s, z, m = merge_chunks(
        s, z, m, sums_ptr, g_sum_ptr, prefix_ptr, first, tl.cdiv(count, CHUNK), n, d, D, lanes,
        False, TILE, E,
    )  # fmt: skip
    tl.store(s1_ptr + at + own, s, mask=lanes)
    tl.store(z1_ptr + at + own, z, mask=lanes)
    store_shift(m1_ptr + row_at, m, d, lanes & (n == 0), E)


@triton.jit
def outputs(
    q_ptr, q_b, q_l, q_d, k_ptr, k_b, k_l, k_d, v_ptr, v_b, v_l, v_d, g_ptr, g_b, g_l, g_d,
    mask_ptr, cu_ptr, row_ptr, prefix_ptr, s_ptr, z_ptr, m_ptr, y_ptr, L, D,
    E: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Compute y of a chunk of queries, from the earlier keys (Eq. 6) or from all keys (Eq. 5)."""
    slot = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    row, batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    q_at = channels_at(q_ptr, batch, q_b, d, q_d)
    y_at = channels_at(y_ptr, batch * L, D, d, 1)
    if CAUSAL:
        s, z, m = load_slot(prefix_ptr, slot, d, D, lanes, E)
        k_at = channels_at(k_ptr, batch, k_b, d, k_d)
        v_at = channels_at(v_ptr, batch, v_b, d, v_d)
        g_at = decays_at(g_ptr, batch, g_b, d, g_d, E)
        for t in range(0, count, TILE):
            inside = tokens_inside(t, count, lanes, TILE)
            valid = keys_seen(inside, mask_ptr, batch * L + first + t, count - t, TILE)
            ks = load_rows(k_at, k_l, first + t, valid, TILE, E)
            vs = load_rows(v_at, v_l, first + t, valid, TILE, E)
            gs = load_decays(g_at, g_l, first + t, valid, TILE, E)
            qs = load_rows(q_at, q_l, first + t, inside, TILE, E)
            for i in tl.static_range(TILE):
                s, z, m = absorb(s, z, m, ks[i], vs[i], gs[i], valid[i], E)
                y = output(qs[i], s, z, inside[i], E)
                store_row(y_at, D, first + t + i, y, inside[i])
    else:
        s, z, m = load_state(s_ptr, z_ptr, m_ptr, row, d, D, lanes, BLOCK, E)
        _read_queries(s, z, q_at, q_l, y_at, D, first, count, lanes, TILE, E)


@triton.jit
def _fold(sums, more, kept, E: tl.constexpr):
    N: tl.constexpr = E.terms
    folded = ()
    for n in tl.static_range(N):
        folded = folded + (sums[n] * kept + more[n],)
    return folded


@triton.jit
def fused(
    q_ptr, q_b, q_l, q_d, k_ptr, k_b, k_l, k_d, v_ptr, v_b, v_l, v_d, g_ptr, g_b, g_l, g_d,
    mask_ptr, cu_ptr, s0_ptr, z0_ptr, m0_ptr, s1_ptr, z1_ptr, m1_ptr, prefix_ptr, y_ptr, Lq, L, D,
    E: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Process a sequence in one pass; a chunk is summed separately, which rounds less."""
    row = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    batch, first, count, slot = sequence_of(row, cu_ptr, L, CHUNK)
    q_at = channels_at(q_ptr, batch, q_b, d, q_d)
    k_at = channels_at(k_ptr, batch, k_b, d, k_d)
    v_at = channels_at(v_ptr, batch, v_b, d, v_d)
    g_at = decays_at(g_ptr, batch, g_b, d, g_d, E)
    y_at = channels_at(y_ptr, batch * Lq, D, d, 1)
    ps, pz, pm = load_state(s0_ptr, z0_ptr, m0_ptr, row, d, D, lanes, BLOCK, E)
    for begin in range(0, count, CHUNK):
        end = tl.minimum(begin + CHUNK, count)
        if prefix_ptr is not None:
            store_slot(prefix_ptr, slot + begin // CHUNK, ps, pz, pm, d, D, lanes, E)
        s, z, _m = no_sums(BLOCK, E)
        m = pm
        g_sum = tl.zeros_like(m)
        if CAUSAL:
            for t in range(begin, end, TILE):
                inside = tokens_inside(t, end, lanes, TILE)
                valid = keys_seen(inside, mask_ptr, batch * L + first + t, end - t, TILE)
                ks = load_rows(k_at, k_l, first + t, valid, TILE, E)
                vs = load_rows(v_at, v_l, first + t, valid, TILE, E)
                gs = load_decays(g_at, g_l, first + t, valid, TILE, E)
                qs = load_rows(q_at, q_l, first + t, inside, TILE, E)
                for i in tl.static_range(TILE):
                    s, z, m = absorb(s, z, m, ks[i], vs[i], gs[i], valid[i], E)
                    if E.decays:
                        g_sum += gs[i]
                    kept = decay(pm, m, g_sum, E)
                    f = query_features(qs[i], E)
                    num = read(f, ps, E) * kept + read(f, s, E)
                    den = read(f, pz, E) * kept + read(f, z, E)
                    if E.gaussian:
                        far, some = far_lanes(den, inside[i], E)
                        if some:
                            far_num, far_den, _nodes = read_far(
                                qs[i], _fold(ps, s, kept, E), _fold(pz, z, kept, E), E
                            )
                            num = tl.where(far, far_num, num)
                            den = tl.where(far, far_den, den)
                    y = quotient(num, den)
                    store_row(y_at, D, first + t + i, y, inside[i])
        else:
            s, z, m, g_sum = _sum_keys(
                s, z, m, g_sum, k_at, k_l, v_at, v_l, g_at, g_l, mask_ptr, batch * L + first,
                first, begin, end, lanes, TILE, E,
            )  # fmt: skip
        kept = decay(pm, m, g_sum, E)
        ps = _fold(ps, s, kept, E)
        pz = _fold(pz, z, kept, E)
        pm = m
    store_state(s1_ptr, z1_ptr, m1_ptr, row, ps, pz, pm, d, D, lanes, E)
    if not CAUSAL:
        if cu_ptr is None:
            count = row.to(tl.int64) * 0 + Lq
        _read_queries(ps, pz, q_at, q_l, y_at, D, first, count, lanes, TILE, E)


@triton.jit
def step(
    q_ptr, q_b, q_d, k_ptr, k_b, k_d, v_ptr, v_b, v_d, g_ptr, g_b, g_d,
    s0_ptr, z0_ptr, m0_ptr, s1_ptr, z1_ptr, m1_ptr, y_ptr, D,
    E: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Process one token of a sequence."""
    row = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    batch = row.to(tl.int64)
    q = tl.load(channels_at(q_ptr, batch, q_b, d, q_d), mask=lanes, other=0.0).to(E.real)
    k = tl.load(channels_at(k_ptr, batch, k_b, d, k_d), mask=lanes, other=0.0).to(E.real)
    v = tl.load(channels_at(v_ptr, batch, v_b, d, v_d), mask=lanes, other=0.0).to(E.real)
    s, z, m = load_state(s0_ptr, z0_ptr, m0_ptr, row, d, D, lanes, BLOCK, E)
    (g,) = load_decays(decays_at(g_ptr, batch, g_b, d, g_d, E), 0, 0, (lanes,), 1, E)
    s, z, m = absorb(s, z, m, k, v, g, lanes, E)
    store_row(y_ptr + d, D, batch, output(q, s, z, lanes, E), lanes)
    store_state(s1_ptr, z1_ptr, m1_ptr, row, s, z, m, d, D, lanes, E)
