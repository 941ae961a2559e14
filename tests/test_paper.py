"""Equations of the paper, and the numbers in PAPER.md that justify our deviations."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import eattn
from eattn.ops import baselines, reference


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_attention_is_a_softmax_over_squared_distances():  # Eq. 1, Eq. 2
    q, k, v = normal(3, 1, 5, 1)
    for i in range(5):
        o = -((q[0, i, 0] - k[0, :, 0]) ** 2)
        y = (o.exp() * v[0, :, 0]).sum() / o.exp().sum()
        assert_close(reference.ea(q, k, v)[0, i, 0], y)
        assert_close(eattn.ea(q, k, v)[0, i, 0], y)


def test_weight_of_the_query_cancels():  # Eq. 3
    q, k, v = normal(3, 1, 7, 3)
    w = torch.exp(-k.square()).unsqueeze(1) * torch.exp(2 * q.unsqueeze(2) * k.unsqueeze(1))
    assert_close((w * v.unsqueeze(1)).sum(2) / w.sum(2), reference.ea(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_series_of_order_2_has_three_sums(causal):  # Eq. 5, Eq. 6
    q, k, v = normal(3, 2, 7, 3)
    w = torch.exp(-k.square())

    def sums(x):
        return x.cumsum(1) if causal else x.sum(1, keepdim=True)

    num = sums(w * v) + 2 * q * sums(k * w * v) + 2 * q**2 * sums(k**2 * w * v)
    den = sums(w) + 2 * q * sums(k * w) + 2 * q**2 * sums(k**2 * w)
    assert_close(reference.ea_series(q, k, v, order=2, causal=causal), num / den)
    assert_close(eattn.ea_series(q, k, v, order=2, causal=causal), num / den)


def test_constants_match_the_taylor_polynomial():  # Eq. 7, Eq. 10, Eq. 11
    assert reference.taylor(4, normal(1)).tolist() == [1, 2, 2, 4 / 3, 2 / 3]
    assert reference.powers(torch.tensor([3.0]), 3).tolist() == [[1, 3, 9, 27]]


def test_recurrence_equals_the_causal_series():
    """Eq. 8, Eq. 9, Eq. 12, Eq. 13, Eq. 14, Eq. 15 and Eq. 16 give the result of Eq. 6."""
    q, k, v = normal(3, 2, 9, 5)
    state, tokens = reference.initial_state(q[:, 0], 6), []
    for i in range(9):
        y, state = reference.ea_series_step(q[:, i], k[:, i], v[:, i], state)
        tokens.append(y)
    assert_close(torch.stack(tokens, 1), reference.ea_series(q, k, v, order=6, causal=True))
    assert_close(torch.stack(tokens, 1), eattn.ea_series(q, k, v, order=6, causal=True))


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_a_softmax_of_dot_products(causal):  # Eq. 17
    q, k, v = normal(3, 1, 5, 3)
    for i in range(5):
        j = slice(0, i + 1 if causal else 5)
        w = torch.exp(k[0, j] @ q[0, i])
        y = (w[:, None] * v[0, j]).sum(0) / w.sum()
        assert_close(reference.sa(q, k, v, causal=causal)[0, i], y)
        assert_close(baselines.sa(*unscaled(q, k, v), causal=causal)[0, 0, i], y)


def unscaled(q, k, v):
    """Add a head axis and cancel the factor 1 / sqrt(d), which Eq. 17 omits."""
    return (x.unsqueeze(1) for x in (q * q.shape[-1] ** 0.5, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_both_forms_of_linear_attention_agree(causal):  # Eq. 18
    q, k, v = normal(3, 1, 5, 3)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q[0], k[0]))  # elu(x) + 1
    for i in range(5):
        j = slice(0, i + 1 if causal else 5)
        w = phi_k[j] @ phi_q[i]
        left = (w[:, None] * v[0, j]).sum(0) / w.sum()
        s, z = phi_k[j].mT @ v[0, j], phi_k[j].sum(0)
        right = (phi_q[i] @ s) / (phi_q[i] @ z)
        assert_close(left, right)
        assert_close(reference.la(q, k, v, causal=causal)[0, i], left)
        y, _ = baselines.linear_attention(baselines.ELU, q[None], k[None], v[None], causal=causal)
        assert_close(y[0, 0, i], right)


@pytest.mark.parametrize("causal", [False, True])
def test_aft_weighs_keys_by_position(causal):  # Eq. 19
    (k, v), w = normal(2, 1, 5, 3), normal(5, 5)
    for i in range(5):
        j = slice(0, i + 1 if causal else 5)
        weight = torch.exp(k[0, j] + w[i, j, None])
        y = (weight * v[0, j]).sum(0) / weight.sum(0)
        assert_close(reference.aft(k, v, w, causal=causal)[0, i], y)
        assert_close(baselines.aft(k, v, w, causal=causal)[0, i], y)


@pytest.mark.parametrize("causal", [False, True])
def test_dot_product_expands_like_the_exponential(causal):  # Eq. 20
    q, k, v = normal(3, 1, 9, 3)
    o = (q @ k.mT)[0]
    w = (1 + o + o**2 / 2).tril() if causal else 1 + o + o**2 / 2
    y = (w @ v[0]) / w.sum(1, keepdim=True)
    assert_close(reference.taylor_dot(q, k, v, order=2, causal=causal)[0], y)
    fast, _ = baselines.linear_attention(baselines.TAYLOR, q[None], k[None], v[None], causal=causal)
    assert_close(fast[0, 0], y)


def test_long_dot_product_expansion_approaches_self_attention():  # Eq. 20, Eq. 17
    q, k, v = normal(3, 1, 9, 3)
    q = q / math.sqrt(3)
    exact = reference.sa(q, k, v)
    errors = [
        float((reference.taylor_dot(q, k, v, order=n) - exact).abs().max())
        for n in (2, 6, 10, 14, 40)
    ]
    assert all(more < less / 2 for less, more in itertools.pairwise(errors))
    assert errors[-1] < 1e-12


def test_six_terms_of_the_recurrence_can_be_negative():
    def six_terms(x):
        return sum(x**n / math.factorial(n) for n in range(6))

    assert six_terms(-4.0) == pytest.approx(-3.53, abs=0.005)
    q, k = normal(2, 4096)
    assert (six_terms(2 * torch.outer(q, k)) < 0).double().mean() == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize(("size", "finite"), [(9.0, True), (10.3, False)])
def test_literal_formula_underflows_in_float32(size, finite):
    k = torch.full((1, 4, 64), size)
    q, v = torch.zeros_like(k), torch.ones_like(k)
    assert reference.ea_series(q, k, v, order=6).isfinite().all() == finite
    torch.testing.assert_close(eattn.ea_series(q, k, v, order=6), v)


@pytest.mark.parametrize(("sigma", "error"), [(0.25, 6e-6), (0.5, 1e-2), (1.0, 0.33), (1.5, 0.6)])
def test_error_of_ea_6_relative_to_exact_attention(sigma, error):
    q, k, v = normal(3, 1, 512, 64)
    exact = eattn.ea(sigma * q, sigma * k, v)
    series = eattn.ea_series(sigma * q, sigma * k, v, order=6)
    assert float((series - exact).norm() / exact.norm()) == pytest.approx(error, rel=0.3)
