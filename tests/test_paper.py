"""The equations as `reference` writes them, and the figures PAPER.md gives on why we deviate."""

import math

import pytest
import torch
from torch.testing import assert_close

import eattn
from eattn.ops import reference


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_attention_is_a_softmax_over_squared_distances():  # Eq. 1, Eq. 2
    q, k, v = normal(3, 1, 5, 1)
    for i in range(5):
        o = -((q[0, i, 0] - k[0, :, 0]) ** 2)
        y = (o.exp() * v[0, :, 0]).sum() / o.exp().sum()
        assert_close(reference.ea(q, k, v)[0, i, 0], y)
        assert_close(eattn.ea(q, k, v)[0, i, 0], y)


def test_the_weight_of_the_query_alone_cancels():  # Eq. 3
    q, k, v = normal(3, 1, 7, 3)
    w = torch.exp(-k.square()).unsqueeze(1) * torch.exp(2 * q.unsqueeze(2) * k.unsqueeze(1))
    assert_close((w * v.unsqueeze(1)).sum(2) / w.sum(2), reference.ea(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_the_series_is_three_sums_at_order_2(causal):  # Eq. 5, Eq. 6
    q, k, v = normal(3, 2, 7, 3)
    w = torch.exp(-k.square())

    def sums(x):
        return x.cumsum(1) if causal else x.sum(1, keepdim=True)

    num = sums(w * v) + 2 * q * sums(k * w * v) + 2 * q**2 * sums(k**2 * w * v)
    den = sums(w) + 2 * q * sums(k * w) + 2 * q**2 * sums(k**2 * w)
    assert_close(reference.ea_series(q, k, v, order=2, causal=causal), num / den)
    assert_close(eattn.ea_series(q, k, v, order=2, causal=causal), num / den)


def test_the_constants_are_those_of_the_taylor_polynomial():  # Eq. 7, Eq. 10, Eq. 11
    assert reference.taylor(4, normal(1)).tolist() == [1, 2, 2, 4 / 3, 2 / 3]
    assert reference.powers(torch.tensor([3.0]), 3).tolist() == [[1, 3, 9, 27]]


def test_the_recurrence_equals_the_causal_series():
    """From Eq. 8, Eq. 9 by Eq. 12, Eq. 13, Eq. 14, Eq. 15, Eq. 16 to what Eq. 6 gives."""
    q, k, v = normal(3, 2, 9, 5)
    state, tokens = reference.initial_state(q[:, 0], 6), []
    for i in range(9):
        y, state = reference.ea_series_step(q[:, i], k[:, i], v[:, i], state)
        tokens.append(y)
    assert_close(torch.stack(tokens, 1), reference.ea_series(q, k, v, order=6, causal=True))
    assert_close(torch.stack(tokens, 1), eattn.ea_series(q, k, v, order=6, causal=True))


def test_six_terms_as_the_recurrence_lists_them_go_negative():
    def six_terms(x):
        return sum(x**n / math.factorial(n) for n in range(6))

    assert six_terms(-4.0) == pytest.approx(-3.53, abs=0.005)
    q, k = normal(2, 4096)
    assert (six_terms(2 * torch.outer(q, k)) < 0).double().mean() == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize(("size", "literal_is_a_number"), [(9.0, True), (10.3, False)])
def test_the_literal_formula_underflows_in_float32(size, literal_is_a_number):
    k = torch.full((1, 4, 64), size)
    q, v = torch.zeros_like(k), torch.ones_like(k)
    assert reference.ea_series(q, k, v, order=6).isfinite().all() == literal_is_a_number
    torch.testing.assert_close(eattn.ea_series(q, k, v, order=6), v)


@pytest.mark.parametrize(("sigma", "error"), [(0.25, 6e-6), (0.5, 1e-2), (1.0, 0.33), (1.5, 0.6)])
def test_how_far_ea_6_is_from_exact_attention(sigma, error):
    q, k, v = normal(3, 1, 512, 64)
    exact = eattn.ea(sigma * q, sigma * k, v)
    series = eattn.ea_series(sigma * q, sigma * k, v, order=6)
    assert float((series - exact).norm() / exact.norm()) == pytest.approx(error, rel=0.3)
