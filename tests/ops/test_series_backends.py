"""Every backend against the float64 reference: values, final state, and every gradient."""

from dataclasses import replace

import pytest
import torch
from op_helpers import (
    DTYPES,
    EVERY_EXPANSION,
    Case,
    assert_answers,
    causals,
    every_backend,
    expected,
    make,
    oracle,
    pairwise,
    run,
)

from eattn import Quadrature, Taylor, ea_series
from eattn.ops.backends import BY_NAME

# [B, L, D]: ones, primes, one past a vector, a tile (16) and a checkpoint (64).
SHAPES = [(1, 1, 1), (2, 7, 3), (1, 17, 17), (3, 65, 5), (1, 131, 33)]
PACKED = [(1, 1, 1), (1, 37, 3), (1, 150, 17)]
EVERY = [*map(Taylor, range(0, 17, 2)), *map(Quadrature, range(5, 34, 2))]
EVERY += [Quadrature(*of) for of in ((15, 7), (33, 16), (35,), (37, 1.5), (129, 64), (1025,))]
NAMES = "with_, shape, dtype, expansion, causal"
COMMON = (DTYPES, EVERY_EXPANSION, [False, True])


@every_backend
@pairwise(NAMES, ["", "mask", "state"], SHAPES, *COMMON)
def test_backend_matches_reference(backend, causal, expansion, dtype, shape, with_):
    case, want = expected(shape, dtype, expansion=expansion, causal=causal, with_=with_)
    assert_answers(run(case, backend), want, case)


@every_backend
@pairwise(
    "with_, shape, dtype, expansion",
    ["decay", "decay state", "gate", "gate mask state"],
    SHAPES,
    DTYPES,
    EVERY_EXPANSION,
)
def test_decay_matches_reference(backend, expansion, dtype, shape, with_):
    case, want = expected(shape, dtype, expansion=expansion, causal=True, with_=with_)
    assert_answers(run(case, backend), want, case)


@every_backend
@pairwise("with_, shape, expansion", ["decay", "gate mask state"], PACKED, EVERY_EXPANSION)
def test_packed_decay_matches_reference(backend, expansion, shape, with_):
    options = dict(expansion=expansion, causal=True, with_=f"packed {with_}")
    case, want = expected(shape, torch.float32, **options)
    assert_answers(run(case, backend), want, case)


@every_backend
@pytest.mark.parametrize("with_", ["decay state", "gate mask state"])
@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(25, 12), Quadrature(65)], ids=str)
def test_long_decay_matches_reference(backend, expansion, with_):
    # Longer than two spans of native/grid.cpp, between which the sums are recomputed.
    options = dict(expansion=expansion, causal=True, with_=with_)
    case, want = expected((1, 1100, 3), torch.float32, **options)
    assert_answers(run(case, backend), want, case)


@every_backend
@pairwise(NAMES, ["packed", "packed mask state"], PACKED, *COMMON)
def test_packed_sequences_match_reference(backend, causal, expansion, dtype, shape, with_):
    case, want = expected(shape, dtype, expansion=expansion, causal=causal, with_=with_)
    assert_answers(run(case, backend), want, case)


@every_backend
@causals
@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(65)], ids=str)
def test_packed_sequences_may_be_empty(backend, expansion, causal):
    case = make((1, 20, 3), expansion=expansion, causal=causal).to(torch.float32)
    case = replace(case, cu_seqlens=torch.tensor([0, 0, 7, 7, 20, 20], dtype=torch.int32))
    assert_answers(run(case, backend), oracle(case), case)


@every_backend
@pairwise("with_, keys, expansion", ["", "mask", "mask state"], [0, 1, 19, 70], EVERY_EXPANSION)
def test_cross_attention_matches_reference(backend, expansion, keys, with_):
    options = dict(expansion=expansion, causal=False, with_=with_, keys=keys)
    case, want = expected((2, 33, 5), torch.float32, **options)
    assert_answers(run(case, backend), want, case)


@every_backend
@pairwise(
    "with_, keys, expansion",
    ["", "mask", "mask state", "decay", "gate mask state"],
    [34, 70, 100],
    EVERY_EXPANSION,
)
def test_fewer_queries_are_aligned_with_the_last_keys(backend, expansion, keys, with_):
    options = dict(expansion=expansion, causal=True, with_=with_, keys=keys)
    case, want = expected((2, 33, 5), torch.float32, **options)
    assert_answers(run(case, backend), want, case)


@every_backend
@causals
def test_one_row_of_queries_is_broadcast(backend, causal):
    case = make((3, 20, 5), expansion=Taylor(6), causal=causal, with_="mask state", keys=23)
    case = replace(case, q=case.q[:1])
    assert_answers(run(case, backend), oracle(case), case)


@every_backend
@causals
@pytest.mark.parametrize("expansion", EVERY, ids=str)
def test_every_number_of_terms_matches_reference(backend, expansion, causal):
    most = BY_NAME[backend].max_terms
    if most is not None and expansion.terms > most:
        pytest.skip(f"{backend} supports at most {most} terms")
    options = dict(expansion=expansion, causal=causal, scale=0.5)
    case, want = expected((2, 40, 5), torch.float32, **options)
    assert_answers(run(case, backend), want, case)


def strided(case: Case) -> Case:
    """Return the case with other strides: batch last, gaps between channels, reversed tokens."""

    def last(x):
        return x.movedim(0, -1).contiguous().movedim(-1, 0)

    def apart(x):
        return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]

    def flipped(x):
        return x.flip(1).transpose(1, 2).contiguous().transpose(1, 2).flip(1)

    return Case(last(case.q), apart(case.k), flipped(case.v), case.expansion, case.causal)


@every_backend
@causals
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_strides_are_accepted(backend, causal, dtype):
    case = make((3, 21, 18), expansion=Taylor(6), causal=causal).to(dtype)
    moved = strided(case)
    assert not moved.k.is_contiguous()
    assert_answers(run(moved, backend), oracle(case), case)


@every_backend
@causals
def test_expanded_inputs_and_cotangents_are_supported(backend, causal):
    row = torch.randn(1, 1, 20, requires_grad=True)
    q, k, v = (row.expand(2, 9, 20) for _ in range(3))
    ea_series(
        q, k, v, causal=causal, backend=backend
    ).sum().backward()  # the cotangent has strides of 0
    torch.testing.assert_close(row.grad, torch.full_like(row, 18.0), rtol=1e-4, atol=1e-4)


@every_backend
@causals
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (0, 0, 1)], ids=str)
def test_empty_inputs_give_empty_outputs(backend, causal, shape):
    case = make(shape, expansion=Taylor(6), causal=causal).to(torch.float32)
    answer = run(case, backend)
    assert answer.y.shape == shape
    assert answer.state.shift.isposinf().all() and not answer.state.s.any()


@every_backend
def test_mixed_dtypes_are_promoted(backend):
    q, k, v = torch.randn(3, 1, 6, 4).unbind()
    y = ea_series(q.bfloat16(), k, v.half(), backend=backend)
    assert y.dtype == torch.float32
    expected = ea_series(q.bfloat16().float(), k, v.half().float(), backend=backend)
    torch.testing.assert_close(y, expected)


@every_backend
@causals
def test_float64_state_makes_sums_float64(backend, causal):
    case = make((2, 30, 5), expansion=Taylor(6), causal=causal, with_="state")
    rounded = Case(
        case.q.float(), case.k.float(), case.v.float(), Taylor(6), causal, state=case.state
    )
    answer, expected = run(rounded, backend), oracle(rounded)
    assert answer.y.dtype == torch.float32 and answer.state.s.dtype == torch.float64
    torch.testing.assert_close(answer.state.s, expected.state.s, rtol=1e-12, atol=1e-12)
