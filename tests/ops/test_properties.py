"""Properties of the operator that the paper and the numerics contract state, one test each."""

import itertools

import pytest
import torch
from op_helpers import EVERY_BACKEND, EVERY_EXPANSION, causals, draw, every_backend, pairwise
from torch.utils._pytree import tree_leaves

from eattn import Quadrature, Taylor, ea, ea_series
from eattn.ops import reference

TOKENS = [0, 1, 15, 16, 63, 64, 99]


@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9)], ids=str)
@every_backend
@pytest.mark.parametrize("token", TOKENS)
def test_later_token_changes_no_earlier_bit(backend, expansion, token):
    q, k, v = (draw(2, 100, 19, seed=i).float() for i in range(3))
    y = ea_series(q, k, v, expansion=expansion, causal=True, backend=backend)
    for x in (q, k, v):
        x[:, token:] = torch.randn_like(x[:, token:]) / 50  # small keys lower the shift
    changed = ea_series(q, k, v, expansion=expansion, causal=True, backend=backend)
    assert torch.equal(y[:, :token], changed[:, :token])
    assert not torch.equal(y[:, token:], changed[:, token:])


@every_backend
def test_later_token_changes_no_earlier_bit_across_chunks(backend):
    q, k, v = (draw(1, 5000, 3, seed=i).float() for i in range(3))
    y = ea_series(q, k, v, causal=True, backend=backend)
    k[:, 4500:] *= 0.001
    changed = ea_series(q, k, v, causal=True, backend=backend)
    assert torch.equal(y[:, :4500], changed[:, :4500])


@causals
@every_backend
def test_series_converges_to_exact_attention_with_order(backend, causal):  # Eq. 4
    q, k, v = (draw(1, 40, 5, seed=i, scale=0.5) for i in range(3))
    exact = ea(q, k, v, causal=causal)
    errors = [
        float((ea_series(q, k, v, order=n, causal=causal, backend=backend) - exact).abs().max())
        for n in range(0, 17, 4)
    ]
    assert all(b < a for a, b in itertools.pairwise(errors))
    assert errors[-1] < 1e-4 * errors[0]


@causals
def test_attention_is_invariant_to_a_common_offset(causal):
    """Exact EA is invariant, the series of order 16 nearly so."""
    q, k, v = (draw(1, 60, 6, seed=i, scale=0.3) for i in range(3))
    offset = draw(1, 1, 6, seed=9, scale=0.2)
    moved = q + offset, k + offset, v
    for op in (ea, reference.ea):
        torch.testing.assert_close(op(*moved, causal=causal), op(q, k, v, causal=causal))
    series, moved_series = (ea_series(*x, order=16, causal=causal) for x in ((q, k, v), moved))
    torch.testing.assert_close(moved_series, series, rtol=0, atol=1e-5)


@every_backend
@pairwise("scale, expansion, causal", [0.5, 2.0, 6.0], EVERY_EXPANSION, [False, True])
def test_output_lies_between_smallest_and_largest_value(backend, causal, expansion, scale):
    """Even orders keep all weights positive (Sec. 3.2), so y is a weighted mean of values."""
    q, k = (draw(2, 80, 7, seed=i, scale=scale).float() for i in range(2))
    v = draw(2, 80, 7, seed=3).float()
    y = ea_series(q, k, v, expansion=expansion, causal=causal, backend=backend)
    low, high = (v.cummin(1)[0], v.cummax(1)[0]) if causal else (v.amin(1, True), v.amax(1, True))
    slack = 4 * reference.condition(expansion) * torch.finfo(torch.float32).eps * v.abs().max()
    assert (y >= low - slack).all() and (y <= high + slack).all()


@every_backend
@pytest.mark.parametrize("expansion", EVERY_EXPANSION, ids=str)
def test_first_output_is_the_first_value(backend, expansion):
    q, k, v = (draw(3, 5, 11, seed=i, scale=3).float() for i in range(3))
    y = ea_series(q, k, v, expansion=expansion, causal=True, backend=backend)
    slack = 4 * reference.condition(expansion) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(y[:, 0], v[:, 0], rtol=slack, atol=slack)


# Shapes [B, L, D] whose work is split over channels, over sequences and over time.
SPLITS = [(1, 300, 400), (3, 700, 40), (1, 9001, 3), (2, 5000, 1)]


@pytest.mark.parametrize("backend", [p for p in EVERY_BACKEND if p.values[0] != "eager"])
@pairwise("shape, dtype, causal", SPLITS, [torch.float32, torch.bfloat16], [False, True])
@pytest.mark.parametrize("decays", [False, True], ids=["", "decay"])
def test_number_of_threads_does_not_change_any_bit(backend, decays, causal, shape, dtype):
    inputs = [draw(*shape, seed=i, scale=2).to(dtype).requires_grad_() for i in range(3)]
    gy = draw(*shape, seed=5).to(dtype)
    if decays and not causal:
        pytest.skip("only causal calls decay")
    decay = draw(shape[2], seed=6).exp().neg().requires_grad_() if decays else None
    threads = torch.get_num_threads()
    answers = []
    try:
        for n in (1, 2, 3, 5):
            torch.set_num_threads(n)
            options = dict(causal=causal, return_state=True, backend=backend)
            y, state = ea_series(*inputs, log_decay=decay, **options)
            outputs, gradients = (y, state.s, state.z), (gy, state.s.detach(), state.z.detach())
            grads = torch.autograd.grad(outputs, [*inputs, decay][: 3 + decays], gradients)
            answers.append((*(x.detach() for x in outputs), state.shift, *grads))
    finally:
        torch.set_num_threads(threads)
    for other in answers[1:]:
        for a, b in zip(answers[0], other, strict=True):
            assert torch.equal(a, b)


@every_backend
def test_uninitialised_memory_is_never_read(backend):
    """Deterministic mode fills fresh CPU memory with NaN; no NaN may reach the results."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for causal, decays in ((False, False), (True, False), (True, True)):
            q, k, v = (draw(2, 70, 19, seed=i).float().requires_grad_() for i in range(3))
            options = dict(causal=causal, return_state=True, backend=backend)
            y, state = ea_series(q, k, v, log_decay=-v.square() if decays else None, **options)
            grads = torch.autograd.grad(y.sum() + state.s.sum(), (q, k, v))
            assert all(x.isfinite().all() for x in (y, *tree_leaves(state), *grads))
    finally:
        torch.use_deterministic_algorithms(False)
