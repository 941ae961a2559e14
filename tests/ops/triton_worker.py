"""Tests that `test_triton.py` runs in a process with interpreted Triton kernels."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from op_helpers import assert_answers, assert_near, draw, make, oracle, run, unshifted
from torch.utils._pytree import tree_leaves

from eattn import Quadrature, State, Taylor, ea_series
from eattn.ops import reference
from eattn.ops.triton import configs
from eattn.ops.triton.memory import chunk_of

WIDE = [Quadrature(25, 12), Quadrature(65)]


@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9), *WIDE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("decay", ["", "decay", "gate"])
def test_steps_match_reference(decay, dtype, expansion):
    """The kernel for one token, starting from an empty state."""
    case = make((2, 5, 3), expansion=expansion, causal=True, with_=decay).to(dtype)
    state = State.zeros(2, 3, expansion=expansion, decay=decay != "", dtype=dtype)
    ys = []
    for t in range(5):
        q, k, v = (x[:, t : t + 1] for x in (case.q, case.k, case.v))
        g = case.log_decay[:, t : t + 1] if decay == "gate" else case.log_decay
        options = dict(expansion=expansion, causal=True, log_decay=g, state=state)
        y, state = ea_series(q, k, v, **options, backend="triton", return_state=True)
        ys.append(y)
    want = oracle(case)
    bound = 8 * reference.condition(expansion) * torch.finfo(dtype).eps * float(case.v.abs().max())
    assert_near(torch.cat(ys, 1), want.y, bound, "y")
    after = unshifted(state) if decay else state
    for got, expected in zip(tree_leaves(after), tree_leaves(want.state), strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("expansion", WIDE, ids=str)
@pytest.mark.parametrize("with_", ["mask", "mask causal", "mask causal gate"])
def test_far_queries_match_reference(with_, expansion):
    """The reference also runs in float32, because the dtype decides which queries are far."""
    causal, decays = "causal" in with_, "gate" in with_
    case = make((1, 9, 3), expansion=expansion, causal=causal, with_=with_, scale=8.0, seed=3)
    case = replace(case, through_state=False).to(torch.float32)
    got, leaves = run(case, "triton"), [x.requires_grad_() for x in (case.q, case.k, case.v)]
    options = dict(expansion=expansion, key_mask=case.key_mask)
    if decays:
        leaves.append(case.log_decay.requires_grad_())
        y, _ = reference.ea_decayed(*leaves, **options)
    else:
        y = reference.ea_expanded(*leaves, causal=causal, **options)
    gy, *_ = case.gradients(y, got.state)
    want = torch.autograd.grad(y, leaves, gy.to(y.dtype))
    assert (want[0] == 0).any()  # some queries are far
    assert_near(got.y, y.detach(), 1e-5, "y")
    for (name, grad), expected in zip(got.grads.items(), want, strict=True):
        assert_near(grad, expected, 1e-4 * (1 + float(expected.abs().max())), name)


@pytest.mark.parametrize(
    ("causal", "with_"), [(False, "mask"), (True, "mask"), (True, "mask decay")]
)
def test_more_channels_than_a_block_match_reference(causal, with_):
    case = make((1, 8, 33), expansion=Taylor(2), causal=causal, with_=with_).to(torch.float32)
    assert_answers(run(case, "triton"), oracle(case), case)


@pytest.mark.parametrize(("causal", "with_"), [(False, ""), (True, ""), (True, "gate")])
def test_keys_with_underflowing_weights_keep_their_shift(causal, with_):
    """|k| falls from 30 to 0 and rises again; the smallest key is in a middle chunk."""
    case = make((1, 13, 3), expansion=Taylor(2), causal=causal, with_=with_)
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


@pytest.mark.parametrize("with_", ["", "packed", "packed decay"])
def test_fake_outputs_have_correct_shapes_and_dtypes(with_):
    """torch.compile relies on the fake outputs."""
    case = make((1, 7, 3), expansion=Taylor(2), causal=True, with_=with_).to(torch.float32)
    inputs = (x.requires_grad_() for x in (case.q, case.k, case.v))
    rest = case.cu_seqlens, None, None, None, case.log_decay, 3, 0.0, True, "triton", True
    arguments = (*inputs, None, *rest)
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
