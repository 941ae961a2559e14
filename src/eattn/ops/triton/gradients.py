"""Kernels of the backward, which mirror those of the forward (scan.py).

The gradient of g_t is the product of the sums before token t with the reverse sums from t on. As y
does not depend on the scale of the sums, the product grows from t to t + 1 by the `u` of
`key_gradient`. It is computed at the end of each chunk, so that rounding errors do not accumulate.
"""

import triton
import triton.language as tl

from eattn.ops.triton.features import (
    absorb,
    add_query,
    constant,
    decay,
    key_gradient,
    noted_features,
    query_gradient,
    read,
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
    load_terms,
    no_sums,
    sequence_of,
    state_at,
    store_row,
    store_slot,
    tokens_inside,
)
from eattn.ops.triton.scan import merge_chunks


@triton.jit
def query_gradients(
    q_ptr, q_b, q_l, q_d, k_ptr, k_b, k_l, k_d, v_ptr, v_b, v_l, v_d, gy_ptr, gy_b, gy_l, gy_d,
    g_ptr, g_b, g_l, g_d, mask_ptr, cu_ptr, row_ptr, prefix_ptr, s_ptr, z_ptr, m_ptr,
    dq_ptr, a_ptr, y_ptr, note_ptr, sums_ptr, g_sum_ptr, L, D,
    E: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Compute dq of a chunk of queries; store a, y and a note of each; sum their terms.

    The sums are relative to the shift of the first token, or with decay to that before it.
    """
    slot = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    row, batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    q_at = channels_at(q_ptr, batch, q_b, d, q_d)
    gy_at = channels_at(gy_ptr, batch, gy_b, d, gy_d)
    dq_at = channels_at(dq_ptr, batch * L, D, d, 1)
    rs, rz, _m = no_sums(BLOCK, E)
    if CAUSAL:
        s, z, m = load_slot(prefix_ptr, slot, d, D, lanes, E)
        start = m
        g_sum = tl.zeros_like(m)
        k_at = channels_at(k_ptr, batch, k_b, d, k_d)
        v_at = channels_at(v_ptr, batch, v_b, d, v_d)
        g_at = decays_at(g_ptr, batch, g_b, d, g_d, E)
        a_at = channels_at(a_ptr, batch * L, D, d, 1)
        y_at = channels_at(y_ptr, batch * L, D, d, 1)
        note_at = channels_at(note_ptr, batch * L, D, d, 1)
        for t in range(0, count, TILE):
            inside = tokens_inside(t, count, lanes, TILE)
            valid = keys_seen(inside, mask_ptr, batch * L + first + t, count - t, TILE)
            ks = load_rows(k_at, k_l, first + t, valid, TILE, E)
            vs = load_rows(v_at, v_l, first + t, valid, TILE, E)
            gs = load_decays(g_at, g_l, first + t, valid, TILE, E)
            qs = load_rows(q_at, q_l, first + t, inside, TILE, E)
            gys = load_rows(gy_at, gy_l, first + t, inside, TILE, E)
            for i in tl.static_range(TILE):
                s, z, m = absorb(s, z, m, ks[i], vs[i], gs[i], valid[i], E)
                if E.decays:
                    g_sum += gs[i]
                else:
                    start = tl.where(t + i == 0, m, start)
                dq, a, y, f, note = query_gradient(qs[i], gys[i], s, z, m, inside[i], E)
                store_row(dq_at, D, first + t + i, dq, inside[i])
                store_row(a_at, D, first + t + i, a, inside[i])
                store_row(y_at, D, first + t + i, y, inside[i])
                store_row(note_at, D, first + t + i, note, inside[i])
                a = tl.where(inside[i], a * decay(start, m, g_sum, E), 0.0)
                rs, rz = add_query(rs, rz, f, a, y, constant(1.0, a, E), E)
        if E.decays:
            store_row(g_sum_ptr + d, D, slot.to(tl.int64), g_sum, lanes)
    else:
        s, z, start = load_state(s_ptr, z_ptr, m_ptr, row, d, D, lanes, BLOCK, E)
        for t in range(0, count, TILE):
            inside = tokens_inside(t, count, lanes, TILE)
            qs = load_rows(q_at, q_l, first + t, inside, TILE, E)
            gys = load_rows(gy_at, gy_l, first + t, inside, TILE, E)
            for i in tl.static_range(TILE):
                dq, a, y, f, _note = query_gradient(qs[i], gys[i], s, z, start, inside[i], E)
                store_row(dq_at, D, first + t + i, dq, inside[i])
                rs, rz = add_query(rs, rz, f, tl.where(inside[i], a, 0.0), y, 1.0, E)
    store_slot(sums_ptr, slot, rs, rz, start, d, D, lanes, E)


@triton.jit
def merge_back(
    sums_ptr, g_sum_ptr, prefix_ptr, cu_ptr, gs_ptr, gz_ptr, m1_ptr, m0_ptr, ds_ptr, dz_ptr,
    total_ptr, L, D,
    E: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute term n of the reverse sums after every chunk, and the initial state's gradient."""
    N: tl.constexpr = E.terms
    row = tl.program_id(0)
    n = tl.program_id(2)
    d, lanes = block_of(D, BLOCK)
    _batch, _begin, count, first = sequence_of(row, cu_ptr, L, CHUNK)
    c = tl.full((BLOCK,), 1.0, E.real)
    if not E.gaussian:
        for i in tl.static_range(N):
            c = tl.where(n == i, constant(E.table[i], c, E), c)
    row_at = row.to(tl.int64) * D
    at, own, stride = state_at(row, d, D, E)
    at += n * stride
    s = tl.zeros((BLOCK,), E.real)
    z = tl.zeros((BLOCK,), E.real)
    m = load_shift(m1_ptr + row_at, d, lanes, E)
    if gs_ptr is not None:
        s = -tl.load(gz_ptr + at + own, mask=lanes, other=0.0) * E.lift / c
        z = tl.load(gs_ptr + at + own, mask=lanes, other=0.0) * E.lift / c
    s, z, m = merge_chunks(
        s, z, m, sums_ptr, g_sum_ptr, prefix_ptr, first, tl.cdiv(count, CHUNK), n, d, D, lanes,
        True, TILE, E,
    )  # fmt: skip
    if total_ptr is not None:
        total_at = total_ptr + row.to(tl.int64) * (2 * N + 1) * D + d
        tl.store(total_at + n * D, s, mask=lanes)
        tl.store(total_at + (N + n) * D, z, mask=lanes)
        tl.store(total_at + 2 * N * D, m, mask=lanes & (n == 0))
    if ds_ptr is not None:
        if not E.decays:  # else m is the initial shift
            c = c * decay(m, load_shift(m0_ptr + row_at, d, lanes, E), 0.0, E)
        c = c * (1 / E.lift)
        tl.store(ds_ptr + at + own, z * c, mask=lanes)
        tl.store(dz_ptr + at + own, -s * c, mask=lanes)


@triton.jit
def _product(s_ptr, z_ptr, d, stride, rs, rz, lanes, E: tl.constexpr):
    """Return sum_n c_n (s_n rz_n - z_n rs_n) of sums in memory and reverse sums."""
    s_rz = read(load_terms(s_ptr, d, stride, lanes, E), rz, E)
    z_rs = read(load_terms(z_ptr, d, stride, lanes, E), rs, E)
    return (s_rz - z_rs) * (1 / E.lift)


@triton.jit
def key_gradients(
    q_ptr, q_b, q_l, q_d, k_ptr, k_b, k_l, k_d, v_ptr, v_b, v_l, v_d, g_ptr, g_b, g_l, g_d,
    mask_ptr, cu_ptr, row_ptr, suffix_ptr, prefix_ptr, s1_ptr, z1_ptr, a_ptr, y_ptr, note_ptr,
    dk_ptr, dv_ptr, dg_ptr, dg_sum_ptr, L, D,
    E: tl.constexpr, CAUSAL: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a chunk of keys from the later queries, or from all queries.

    With decay, also compute the gradient of each g, or their sum.
    """
    N: tl.constexpr = E.terms
    slot = tl.program_id(0)
    d, lanes = block_of(D, BLOCK)
    row, batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    k_at = channels_at(k_ptr, batch, k_b, d, k_d)
    v_at = channels_at(v_ptr, batch, v_b, d, v_d)
    dk_at = channels_at(dk_ptr, batch * L, D, d, 1)
    dv_at = channels_at(dv_ptr, batch * L, D, d, 1)
    if CAUSAL:
        s, z, m = load_slot(suffix_ptr, slot, d, D, lanes, E)
        later = tl.zeros_like(m)  # g of the token after
        product = tl.zeros_like(m)
        dg_sum = tl.zeros_like(m)
        if E.decays:
            _batch, begin, total, _slot = sequence_of(row, cu_ptr, L, CHUNK)
            if first + count < begin + total:  # the sums after this chunk are before the next one
                at = prefix_ptr + (slot + 1).to(tl.int64) * (2 * N + 1) * D
                product = _product(at, at + N * D, d, D, s, z, lanes, E)
            else:
                state, own, stride = state_at(row, d, D, E)
                product = _product(s1_ptr + state, z1_ptr + state, own, stride, s, z, lanes, E)
        g_at = decays_at(g_ptr, batch, g_b, d, g_d, E)
        q_at = channels_at(q_ptr, batch, q_b, d, q_d)
        a_at = channels_at(a_ptr, batch * L, D, d, 1)
        y_at = channels_at(y_ptr, batch * L, D, d, 1)
        note_at = channels_at(note_ptr, batch * L, D, d, 1)
        for t in range(0, count, TILE):
            last = first + (count - 1 - t)
            inside = tokens_inside(t, count, lanes, TILE)
            valid = keys_seen(inside, mask_ptr, batch * L + last, count - t, TILE, -1)
            qs = load_rows(q_at, q_l, last, inside, TILE, E, -1)
            ks = load_rows(k_at, k_l, last, valid, TILE, E, -1)
            vs = load_rows(v_at, v_l, last, valid, TILE, E, -1)
            gs = load_decays(g_at, g_l, last, valid, TILE, E, -1)
            # a and y may share memory with dv and dk.
            aa = load_rows(a_at, D, last, inside, TILE, E, -1)
            ys = load_rows(y_at, D, last, inside, TILE, E, -1)
            notes = load_rows(note_at, D, last, inside, TILE, E, -1)
            for i in tl.static_range(TILE):
                new = tl.where(inside[i], notes[i], m)  # on a wide grid unused: there is no shift
                f = noted_features(qs[i], notes[i], E)
                s, z = add_query(s, z, f, aa[i], ys[i], decay(new, m, later, E), E)
                m = new
                dk, dv, u = key_gradient(ks[i], vs[i], valid[i], m, s, z, E)
                store_row(dk_at, D, last - i, dk, inside[i])
                store_row(dv_at, D, last - i, dv, inside[i])
                if E.decays:
                    later = gs[i]
                    product -= u
                    dg = tl.where(valid[i], product, 0.0)
                    dg_sum += dg
                    if dg_ptr is not None:
                        dg_at = channels_at(dg_ptr, batch * L, D, d, 1)
                        store_row(dg_at, D, last - i, dg, inside[i])
        if dg_sum_ptr is not None:  # the same g for all tokens
            store_row(dg_sum_ptr + d, D, slot.to(tl.int64), dg_sum, lanes)
    else:
        s, z, m = load_slot(suffix_ptr, row, d, D, lanes, E)
        for t in range(0, count, TILE):
            inside = tokens_inside(t, count, lanes, TILE)
            valid = keys_seen(inside, mask_ptr, batch * L + first + t, count - t, TILE)
            ks = load_rows(k_at, k_l, first + t, valid, TILE, E)
            vs = load_rows(v_at, v_l, first + t, valid, TILE, E)
            for i in tl.static_range(TILE):
                dk, dv, _u = key_gradient(ks[i], vs[i], valid[i], m, s, z, E)
                store_row(dk_at, D, first + t + i, dk, inside[i])
                store_row(dv_at, D, first + t + i, dv, inside[i])
