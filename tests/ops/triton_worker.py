"""Tests that `test_triton.py` runs in a process where Triton's kernels are interpreted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from op_helpers import assert_answers, assert_near, draw, make, oracle, run
from triton.runtime import interpreter

from eattn import Quadrature, State, Taylor, ea_series
from eattn.ops import reference
from eattn.ops.triton import configs, traffic
from eattn.ops.triton.memory import chunk_of
from paper.bench import gpu

both = pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9)], ids=str)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_steps_equal_the_reference(expansion, dtype):
    """The kernel of one token, from an empty state on."""
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
    for got, expected in zip(state, after, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_channels_past_a_block_have_a_program_of_their_own(causal):
    case = make((1, 8, 33), expansion=Taylor(2), causal=causal, with_="mask").to(torch.float32)
    assert_answers(run(case, "triton"), oracle(case), case)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_keys_whose_weights_underflow_keep_their_shift(causal):
    """From 30 down to 0 and up again: the least one is in neither the first chunk nor the last."""
    case = make((1, 13, 3), expansion=Taylor(2), causal=causal)
    ramp = torch.linspace(-30, 30, 13, dtype=torch.float64).view(1, -1, 1) + case.k / 10
    case = replace(case, k=ramp, through_state=False).to(torch.float32)
    got, want = run(case, "triton"), oracle(case)
    bound = 8 * reference.condition(case.expansion) * torch.finfo(torch.float32).eps
    assert_near(got.y, want.y, bound * float(case.v.abs().max()), "y")
    for name, grad in want.grads.items():
        assert_near(got.grads[name], grad, bound * 30 * float(grad.abs().max() + 1), name)


@pytest.mark.parametrize("size", [1e-8, 1e4])
@pytest.mark.parametrize("distance", [9.0, 15.0])
def test_far_keys_leave_values_between_theirs_and_finite_gradients(distance, size):
    reach = Quadrature(25).reach
    q = torch.linspace(distance - reach, reach, 4).expand(1, 3, 4).clone().requires_grad_()
    k = (q.detach() - distance).requires_grad_()
    v = draw(1, 3, 4, seed=1).float().requires_grad_()
    y = ea_series(q, k, v, expansion=Quadrature(25), causal=True, backend="triton")
    assert (y <= v.cummax(1).values + 1e-4).all()
    assert (y >= v.cummin(1).values - 1e-4).all()
    gradients = torch.autograd.grad(y, (q, k, v), torch.full_like(y, size))
    assert all(g.isfinite().all() for g in gradients)


@triton.jit
def _chunks(cu_ptr, row_ptr, found_ptr, L, CHUNK: tl.constexpr):
    slot = tl.program_id(0)
    _row, _batch, first, count = chunk_of(slot, cu_ptr, row_ptr, L, CHUNK)
    tl.store(found_ptr + 2 * slot, first)
    tl.store(found_ptr + 2 * slot + 1, count)


@pytest.mark.parametrize("cu", [[0, 30, 70], [20, 40, 70], [0, -64, 30], [0, 90, 30, 6], [70, 0]])
def test_no_offsets_lead_out_of_the_sequence(cu):
    """Those on a card are not checked."""
    offsets, L, chunk = torch.tensor(cu, dtype=torch.int32), 70, 16
    count = configs.slots(torch.empty(1, L, 1), offsets, chunk)
    found = torch.zeros(count, 2, dtype=torch.int64)
    _chunks[(count,)](offsets, configs.row_of_slot(offsets, chunk, count), found, L, chunk)
    tokens = [range(first, first + n) for first, n in found.tolist() if n]
    assert all(0 <= some[0] <= some[-1] < L for some in tokens)
    if sorted(cu) == cu and cu[0] == 0:
        assert sorted(t for some in tokens for t in some) == list(range(L))


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_the_dispatcher_is_told_what_comes_out(packed):
    """Shapes and dtypes, which torch.compile goes by."""
    case = make((1, 7, 3), expansion=Taylor(2), causal=True, with_="packed" * packed)
    case = case.to(torch.float32)
    inputs = (x.requires_grad_() for x in (case.q, case.k, case.v))
    arguments = (*inputs, None, case.cu_seqlens, None, None, None, 3, 0.0, True, "triton", True)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.eattn.ea_series, arguments, test_utils=checks)


def test_compiled_calls_and_their_gradients_equal_plain_ones():
    def model(q, k, v):
        return ea_series(q, k * 0.5, v, order=2, causal=True, backend="triton").square().sum()

    plain, compiled = ([draw(1, 7, 3, seed=i).requires_grad_() for i in range(3)] for _ in range(2))
    model(*plain).backward()
    torch.compile(model, fullgraph=True, backend="aot_eager")(*compiled).backward()
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.fixture
def moved(monkeypatch):
    """Bytes that interpreted kernels load and store, counted where they do."""
    total = [0]
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def count(ptrs, mask):
        size = ptrs.get_element_ty().primitive_bitwidth // 8
        total[0] += int(np.sum(np.broadcast_to(mask.data, ptrs.data.shape))) * size

    def counted_load(self, ptrs, mask, *args):
        count(ptrs, mask)
        return load(self, ptrs, mask, *args)

    def counted_store(self, ptrs, value, mask, *args):
        count(ptrs, mask)
        return store(self, ptrs, value, mask, *args)

    monkeypatch.setattr(builder, "create_masked_load", counted_load)
    monkeypatch.setattr(builder, "create_masked_store", counted_store)
    return total


@pytest.mark.parametrize(
    ("fused", "causal", "with_", "dtype"),
    [
        (False, True, "", torch.float32),
        (False, True, "state", torch.bfloat16),
        (False, False, "state", torch.float32),
        (True, True, "state", torch.float32),
        (True, True, "", torch.bfloat16),
        (True, False, "", torch.float32),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_kernels(moved, monkeypatch, fused, causal, with_, dtype):
    if fused:
        monkeypatch.setattr("eattn.ops.triton.configs.WARPS", 1)
    case = make((1, 13, 3), expansion=Taylor(2), causal=causal, with_=with_).to(dtype)
    q, k, v = (x.requires_grad_() for x in (case.q, case.k, case.v))
    options = dict(expansion=case.expansion, causal=causal, state=case.state, return_state=True)
    y, state = ea_series(q, k, v, **options, backend="triton")
    shape = traffic.Shape(1, 13, 13, 3, 3, causal, io=dtype.itemsize)
    given = case.state is not None
    assert shape.fused == fused
    assert moved[0] == sum(traffic.forward(shape, save=True, state=given).values())
    moved[0] = 0
    wanted = (y, state.s) if given else (y,)
    torch.autograd.grad(wanted, (q, k, v), [torch.ones_like(x) for x in wanted])
    expected = traffic.backward(shape, state=given, through_state=given)
    assert moved[0] == sum(expected.values())


@both
def test_bytes_of_a_step(moved, expansion):
    state = State.zeros(2, 3, expansion=expansion)
    token = (draw(2, 1, 3, seed=i).float() for i in range(3))
    ea_series(*token, expansion=expansion, causal=True, state=state, backend="triton")
    shape = traffic.Shape(2, 1, 1, 3, expansion.terms, True)
    assert moved[0] == sum(traffic.forward(shape, state=True).values())


def test_the_benchmark_checks_what_it_is_about_to_time(monkeypatch):
    monkeypatch.setattr(gpu, "CHECKED", ((1, 7, 3),))
    assert gpu.check(gpu.Plan())["error"] < 1
    monkeypatch.setattr(gpu, "_error", lambda *of: 0.5)
    monkeypatch.setattr(gpu, "_step_error", lambda *of: 1.5)
    with pytest.raises(RuntimeError, match="the kernels are wrong here"):
        gpu.check(gpu.Plan())
