"""Position of a program, and loads and stores of tiles and sums."""

import triton
import triton.language as tl

from eattn.ops.triton.features import node_numbers


@triton.jit
def block_of(D, BLOCK: tl.constexpr):
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return d, d < D


@triton.jit
def sequence_of(row, cu_ptr, L, CHUNK: tl.constexpr):
    """Return a sequence's batch row, first token, number of tokens and first slot.

    Offsets on a GPU are not checked, which would need a sync. They are clamped here, so that wrong
    offsets cannot cause an access outside the tensors.
    """
    row = row.to(tl.int64)
    if cu_ptr is None:
        return row, row * 0, row * 0 + L, row * tl.cdiv(L, CHUNK)
    else:
        begin = tl.minimum(tl.maximum(tl.load(cu_ptr + row), 0), L).to(tl.int64)
        end = tl.minimum(tl.load(cu_ptr + row + 1), L).to(tl.int64)
        count = tl.maximum(end - begin, 0)
        return row * 0, begin, count, begin // CHUNK + row


@triton.jit
def chunk_of(slot, cu_ptr, row_ptr, L, CHUNK: tl.constexpr):
    """Return a chunk's sequence, batch row, first token and number of tokens."""
    if cu_ptr is None:
        row = slot // tl.cdiv(L, CHUNK)
    else:
        row = tl.load(row_ptr + slot)
    batch, begin, count, first = sequence_of(row, cu_ptr, L, CHUNK)
    before = (slot - first) * CHUNK
    count = tl.minimum(count - before, CHUNK)
    return row, batch, begin + before, tl.maximum(count, 0).to(tl.int32)


@triton.jit
def channels_at(ptr, batch, batch_stride, d, d_stride):
    """Return pointers to the channels of a batch row."""
    return ptr + (batch * batch_stride + d.to(tl.int64) * d_stride)


# ---- tiles and sums ------------------------------------------------------------------------------


@triton.jit
def tokens_inside(t, count, lanes, TILE: tl.constexpr):
    """Return the mask of active lanes for each token of a tile; False past the end."""
    inside = ()
    for i in tl.static_range(TILE):
        inside = inside + (lanes & (t + i < count),)
    return inside


@triton.jit
def keys_seen(inside, mask_ptr, token, left, TILE: tl.constexpr, STEP: tl.constexpr = 1):
    """Restrict `inside` to valid keys; `left` is the number of remaining tokens."""
    if mask_ptr is None:
        return inside
    else:
        valid = ()
        for i in tl.static_range(TILE):
            seen = tl.load(mask_ptr + token + i * STEP, mask=i < left, other=0)
            valid = valid + (inside[i] & (seen != 0),)
        return valid


@triton.jit
def load_rows(at, stride, token, ok, TILE: tl.constexpr, E: tl.constexpr, STEP: tl.constexpr = 1):
    """Load the rows of a tile, starting at `token`; lanes that are not ok are 0 and not read."""
    rows = ()
    for i in tl.static_range(TILE):
        x = tl.load(at + (token + i * STEP) * stride, mask=ok[i], other=0.0).to(E.real)
        rows = rows + (x,)
    return rows


@triton.jit
def decays_at(ptr, batch, batch_stride, d, d_stride, E: tl.constexpr):
    """Return pointers to the log decays of a batch row; unused without decay."""
    if E.decays:
        return channels_at(ptr, batch, batch_stride, d, d_stride)
    else:
        return d


@triton.jit
def load_decays(at, stride, token, ok, TILE: tl.constexpr, E: tl.constexpr, STEP: tl.constexpr = 1):
    """Load the log decays of a tile; 0 for tokens that are not ok, and without decay."""
    if E.decays:
        return load_rows(at, stride, token, ok, TILE, E, STEP)
    else:
        return (tl.zeros(at.shape, E.real),) * TILE


@triton.jit
def store_row(at, stride, token, x, ok):
    tl.store(at + token * stride, x.to(at.dtype.element_ty), mask=ok)


@triton.jit
def load_terms(ptr, d, stride, lanes, E: tl.constexpr):
    if E.wide:
        n = node_numbers(E)
        mask = lanes[:, None] & (n < E.terms)
        return tl.load(ptr + n * stride + d[:, None], mask=mask, other=0.0).to(E.real)
    else:
        N: tl.constexpr = E.terms
        terms = ()
        for n in tl.static_range(N):
            x = tl.load(ptr + n * stride + d, mask=lanes, other=0.0).to(E.real)
            terms = terms + (x,)
        return terms


@triton.jit
def store_terms(ptr, d, stride, terms, lanes, E: tl.constexpr):
    if E.wide:
        n = node_numbers(E)
        mask = lanes[:, None] & (n < E.terms)
        tl.store(ptr + n * stride + d[:, None], terms, mask=mask)
    else:
        N: tl.constexpr = E.terms
        for n in tl.static_range(N):
            tl.store(ptr + n * stride + d, terms[n], mask=lanes)


@triton.jit
def state_at(row, d, D, E: tl.constexpr):
    """Return offsets of a state's row and of its channels, and the stride of its terms.

    `state.empty_sums` describes the memory order.
    """
    N: tl.constexpr = E.terms
    if E.wide:
        return row.to(tl.int64) * D * N, d * N, D * 0 + 1
    else:
        return row.to(tl.int64) * D * N, d, D


@triton.jit
def load_shift(ptr, d, lanes, E: tl.constexpr):
    m = tl.load(ptr + d, mask=lanes, other=0.0).to(E.real)
    return tl.where(m < E.empty_shift, m, E.empty_shift)


@triton.jit
def store_shift(ptr, m, d, lanes, E: tl.constexpr):
    tl.store(ptr + d, tl.where(m < E.empty_shift, m, float("inf")), mask=lanes)


@triton.jit
def no_sums(BLOCK: tl.constexpr, E: tl.constexpr):
    """Return the state before the first token (Eq. 8, Eq. 9)."""
    zero = tl.zeros((BLOCK,), E.real)
    if E.wide:
        NODES: tl.constexpr = E.nodes
        none = tl.zeros((BLOCK, NODES), E.real)
        return none, none, zero + E.empty_shift
    else:
        N: tl.constexpr = E.terms
        return (zero,) * N, (zero,) * N, zero + E.empty_shift


@triton.jit
def load_state(s_ptr, z_ptr, m_ptr, row, d, D, lanes, BLOCK: tl.constexpr, E: tl.constexpr):
    """Load a row of a state, or return an empty state without one."""
    if s_ptr is None:
        return no_sums(BLOCK, E)
    else:
        at, own, stride = state_at(row, d, D, E)
        s = load_terms(s_ptr + at, own, stride, lanes, E)
        z = load_terms(z_ptr + at, own, stride, lanes, E)
        return s, z, load_shift(m_ptr + row.to(tl.int64) * D, d, lanes, E)


@triton.jit
def store_state(s_ptr, z_ptr, m_ptr, row, s, z, m, d, D, lanes, E: tl.constexpr):
    at, own, stride = state_at(row, d, D, E)
    store_terms(s_ptr + at, own, stride, s, lanes, E)
    store_terms(z_ptr + at, own, stride, z, lanes, E)
    store_shift(m_ptr + row.to(tl.int64) * D, m, d, lanes, E)


@triton.jit
def load_slot(ptr, slot, d, D, lanes, E: tl.constexpr):
    N: tl.constexpr = E.terms
    ptr += slot.to(tl.int64) * (2 * N + 1) * D
    s = load_terms(ptr, d, D, lanes, E)
    z = load_terms(ptr + N * D, d, D, lanes, E)
    return s, z, load_shift(ptr + 2 * N * D, d, lanes, E)


@triton.jit
def store_slot(ptr, slot, s, z, m, d, D, lanes, E: tl.constexpr):
    N: tl.constexpr = E.terms
    ptr += slot.to(tl.int64) * (2 * N + 1) * D
    store_terms(ptr, d, D, s, lanes, E)
    store_terms(ptr + N * D, d, D, z, lanes, E)
    store_shift(ptr + 2 * N * D, m, d, lanes, E)
