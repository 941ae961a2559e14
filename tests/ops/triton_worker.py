"""Tests that `test_triton.py` runs in a process with interpreted Triton kernels."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from op_helpers import assert_answers, assert_near, causals, draw, make, oracle, run
from torch.utils._pytree import tree_leaves

from eattn import Quadrature, State, Taylor, ea_series
from eattn.ops import reference
from eattn.ops.triton import configs
from eattn.ops.triton.memory import chunk_of

WIDE = [Quadrature(25, 12), Quadrature(65)]


@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9), *WIDE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_steps_match_reference(expansion, dtype):
    """The kernel for one token, starting from an empty state."""
    q, k, v = (draw(2, 5, 3, seed=i).to(dtype) for i in range(3))
    state = State.zeros(2, 3, expansion=expansion, dtype=dtype)
    ys = []
    for t in range(5):
        token = (x[:, t : t + 1] for x in (q, k, v))
        options = dict(expansion=expansion, causal=True, state=state, backend="triton")
        y, state = ea_series(*token, **options, return_state=True)
        ys.append(y)
    wide = [x.double() for x in (q, k, v)]
    want = reference.ea_expanded(*wide, expansion=expansion, causal=True)
    bound = 8 * reference.condition(expansion) * torch.finfo(dtype).eps * float(v.abs().max())
    assert_near(torch.cat(ys, 1), want, bound, "y")
    after = reference.accumulate_expanded(*wide[1:], expansion=expansion)
    for got, expected in zip(tree_leaves(state), after, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("expansion", WIDE, ids=str)
@causals
def test_far_queries_match_reference(causal, expansion):
    """The reference also runs in float32, because the dtype decides which queries are far."""
    case = make((1, 9, 3), expansion=expansion, causal=causal, with_="mask", scale=8.0, seed=3)
    case = replace(case, through_state=False).to(torch.float32)
    got, leaves = run(case, "triton"), [x.requires_grad_() for x in (case.q, case.k, case.v)]
    options = dict(expansion=expansion, causal=causal, key_mask=case.key_mask)
    y = reference.ea_expanded(*leaves, **options)
    gy, *_ = case.gradients(y, got.state)
    want = torch.autograd.grad(y, leaves, gy.to(y.dtype))
    assert (want[0] == 0).any()  # some queries are far
    assert_near(got.y, y.detach(), 1e-5, "y")
    for name, grad in zip("qkv", want, strict=True):
        assert_near(got.grads[name], grad, 1e-4 * (1 + float(grad.abs().max())), name)


@causals
def test_more_channels_than_a_block_match_reference(causal):
    case = make((1, 8, 33), expansion=Taylor(2), causal=causal, with_="mask").to(torch.float32)
    assert_answers(run(case, "triton"), oracle(case), case)


@causals
def test_keys_with_underflowing_weights_keep_their_shift(causal):
    """|k| falls from 30 to 0 and rises again; the smallest key is in a middle chunk."""
    case = make((1, 13, 3), expansion=Taylor(2), causal=causal)
    ramp = torch.linspace(-30, 30, 13, dtype=torch.float64).view(1, -1, 1) + case.k / 10
    case = replace(case, k=ramp, through_state=False).to(torch.float32)
    got, want = run(case, "triton"), oracle(case)
    bound = 8 * reference.condition(case.expansion) * torch.finfo(torch.float32).eps
    assert_near(got.y, want.y, bound * float(case.v.abs().max()), "y")
    for name, grad in want.grads.items():
        assert_near(got.grads[name], grad, bound * 30 * float(grad.abs().max() + 1), name)


@triton.jit
def _chunks(cu_ptr, row_ptr, found_ptr, L, CHUNK: tl.constexpr):
    slot = tl.program_id(0)
    _row, _batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    tl.store(found_ptr + 2 * slot, first)
    tl.store(found_ptr + 2 * slot + 1, count)


@pytest.mark.parametrize("cu", [[0, 30, 70], [20, 40, 70], [0, -64, 30], [0, 90, 30, 6], [70, 0]])
def test_wrong_offsets_stay_within_the_sequence(cu):
    """Offsets on a GPU are not checked, so wrong ones must be harmless."""
    offsets, L, chunk = torch.tensor(cu, dtype=torch.int32), 70, 16
    count = configs.slots(torch.empty(1, L, 1), offsets, chunk)
    found = torch.zeros(count, 2, dtype=torch.int64)
    _chunks[(count,)](offsets, configs.row_of_slot(offsets, chunk, count), found, L, chunk)
    tokens = [range(first, first + n) for first, n in found.tolist() if n]
    assert all(0 <= some[0] <= some[-1] < L for some in tokens)
    if sorted(cu) == cu and cu[0] == 0:
        assert sorted(t for some in tokens for t in some) == list(range(L))


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_fake_outputs_have_correct_shapes_and_dtypes(packed):
    """torch.compile relies on the fake outputs."""
    case = make((1, 7, 3), expansion=Taylor(2), causal=True, with_="packed" * packed)
    case = case.to(torch.float32)
    inputs = (x.requires_grad_() for x in (case.q, case.k, case.v))
    arguments = (*inputs, None, case.cu_seqlens, None, None, None, 3, 0.0, True, "triton", True)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.eattn.ea_series, arguments, test_utils=checks)


def test_compiled_call_matches_eager_call():
    def model(q, k, v):
        return ea_series(q, k * 0.5, v, order=2, causal=True, backend="triton").square().sum()

    plain, compiled = ([draw(1, 7, 3, seed=i).requires_grad_() for i in range(3)] for _ in range(2))
    model(*plain).backward()
    torch.compile(model, fullgraph=True, backend="aot_eager")(*compiled).backward()
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
