"""Statements of the paper about the operator, in float64, and the shifted form against them."""

import pytest
import torch
from op_helpers import causals
from torch import Tensor
from torch.testing import assert_close

from eattn import Taylor
from eattn.ops import reference

SHAPES = pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 3), (1, 65, 5)], ids=str)


def qkv(shape: tuple[int, int, int], scale: float = 0.5) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    packed = torch.randn(3, *shape, generator=rng, dtype=torch.float64) * scale
    return [x.requires_grad_() for x in packed.unbind()]


def gradients(y: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y.square().sum() + y.sum(), inputs)


@SHAPES
@causals
def test_series_converges_to_exact_attention(shape, causal):  # Eq. 4
    q, k, v = (x.detach() for x in qkv(shape))
    exact = reference.ea(q, k, v, causal=causal)
    errors = [
        float((reference.ea_series(q, k, v, order=n, causal=causal) - exact).abs().max())
        for n in (0, 4, 8, 16, 40)
    ]
    assert errors[-1] < 1e-12
    assert shape[1] == 1 or errors == sorted(errors, reverse=True)


@SHAPES
def test_recurrence_equals_causal_series(shape):  # Eq. 12, Eq. 13 against Eq. 6
    q, k, v = qkv(shape)
    state, tokens = reference.initial_state(q[:, 0], order=6), []
    for i in range(shape[1]):
        y, state = reference.ea_series_step(q[:, i], k[:, i], v[:, i], state)
        tokens.append(y)
    assert_close(torch.stack(tokens, 1), reference.ea_series(q, k, v, order=6, causal=True))


def test_last_causal_row_equals_last_full_row():
    q, k, v = qkv((2, 9, 3))
    for op in (reference.ea, lambda *x, **o: reference.ea_series(*x, order=6, **o)):
        assert_close(op(q, k, v, causal=True)[:, -1], op(q, k, v)[:, -1])


@pytest.mark.parametrize("order", [1, 5])
def test_odd_order_raises(order):  # Sec. 3.2
    with pytest.raises(ValueError, match=f"order must be even and >= 0, got {order}"):
        reference.ea_series(*qkv((1, 2, 3)), order=order)


@pytest.mark.parametrize("order", [0, 2, 6, 12, 16])
def test_even_order_gives_positive_weights(order):  # Sec. 3.2
    x = torch.linspace(-50, 50, 10_001, dtype=torch.float64)
    # With k = 1 for all keys the weight is P(2q), up to a factor.
    state = reference.State(*torch.ones(2, len(x), 1, order + 1, dtype=torch.float64).unbind())
    weight = reference.taylor(order, x) * reference.powers(x.unsqueeze(1) / 2, order)
    assert (weight.sum(-1) > 0).all()
    assert_close(reference.readout(x.unsqueeze(1) / 2, state), torch.ones_like(x).unsqueeze(1))


@causals
def test_gradcheck_passes_at_zero(causal):
    q, k, v = qkv((1, 4, 2))
    with torch.no_grad():
        q[:, 1], k[:, 2] = 0, 0

    def series(*inputs):
        return reference.ea_series(*inputs, order=6, causal=causal)

    assert torch.autograd.gradcheck(series, (q, k, v))


@SHAPES
@causals
@pytest.mark.parametrize("order", [0, 2, 6, 12])
def test_shifted_form_equals_literal_form(shape, causal, order):
    inputs = qkv(shape, scale=1.5)
    literal = reference.ea_series(*inputs, order=order, causal=causal)
    shifted = reference.ea_expanded(*inputs, expansion=Taylor(order), causal=causal)
    assert_close(shifted, literal)
    assert_close(gradients(shifted, inputs), gradients(literal, inputs), rtol=1e-6, atol=1e-9)


@causals
@pytest.mark.parametrize("offset", [30, 50, 1e3])
def test_shifted_form_is_finite_for_large_keys(causal, offset):
    q, k, v = qkv((1, 9, 3))
    k = (k + offset).detach().requires_grad_()
    assert reference.ea_series(q, k, v, order=6, causal=causal).isnan().all()
    y = reference.ea_expanded(q, k, v, expansion=Taylor(6), causal=causal)
    assert all(x.isfinite().all() for x in (y, *gradients(y, [q, k, v])))
    if causal:
        assert_close(y[:, 0], v[:, 0])


def test_small_key_dominates_large_keys():
    """Large keys next to one near zero have no weight: the output is the value of that key."""
    q, k, v = qkv((1, 9, 3))
    k = (k.abs() + 40).detach()
    k[:, 4] = 0.1
    y = reference.ea_expanded(q, k, v, expansion=Taylor(6), causal=True)
    assert_close(y[:, 4:], v[:, 4:5].expand(-1, 5, -1))


@causals
@pytest.mark.parametrize("form", ["exact", "shifted"])
def test_masked_keys_are_ignored_and_empty_rows_are_zero(causal, form):
    def op(*inputs, **options):
        if form == "exact":
            return reference.ea(*inputs, **options)
        return reference.ea_expanded(*inputs, expansion=Taylor(6), **options)

    q, k, v = qkv((2, 7, 3))
    key_mask = torch.tensor([[False, False, True, False, True, True, False], [False] * 7])
    with torch.no_grad():
        k[~key_mask], v[~key_mask] = torch.nan, torch.nan
    y = op(q, k, v, causal=causal, key_mask=key_mask)
    empty = torch.zeros(2, 7, dtype=torch.bool)
    empty[0, :2], empty[1] = causal, True
    assert (y[empty] == 0).all()
    dq, dk, dv = gradients(y, [q, k, v])
    assert all(x.isfinite().all() for x in (y, dq, dk, dv))
    assert not dq[empty].any() and not dk[~key_mask].any() and not dv[~key_mask].any()
    if not causal:  # the same as without the masked keys
        seen = key_mask[0]
        assert_close(y[:1], op(q[:1], k[:1, seen], v[:1, seen]))


def test_no_keys_give_zero():
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 0, 4), torch.randn(2, 0, 4)
    assert_close(reference.ea_expanded(q, k, v, expansion=Taylor(6)), torch.zeros_like(q))
    assert_close(reference.ea(q, k, v), torch.zeros_like(q))


@pytest.mark.parametrize(("order", "kappa"), [(0, 1), (2, 5.83), (6, 69), (12, 2.2e3), (16, 2.1e4)])
def test_condition_number_grows_with_order(order, kappa):
    assert reference.condition(Taylor(order)) == pytest.approx(kappa, rel=0.02)


@pytest.mark.parametrize("order", [2, 6, 12])
def test_float32_error_is_bounded_by_condition_number(order):
    q, k, v = (x.detach().float() for x in qkv((4, 64, 16), scale=2.0))
    exact = reference.ea_expanded(q.double(), k.double(), v.double(), expansion=Taylor(order))
    error = (reference.ea_series(q, k, v, order=order) - exact).abs().max()
    eps = torch.finfo(torch.float32).eps
    assert error <= 4 * reference.condition(Taylor(order)) * eps * v.abs().max()
