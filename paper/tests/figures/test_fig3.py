"""Figure 3: its numbers, computed in other ways than the rows."""

import math

import numpy as np
import pytest
import torch

from eattn.ops import reference
from paper.figures import fig3
from paper.harness.runlog import Row

EVEN, ODD = (2, 6, 12), (1, 5, 11)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(fig3.evaluate(EVEN))


@pytest.fixture
def found(rows) -> dict[int, Row]:
    return {row["order"]: row for row in fig3.polynomials(rows)}


def polynomial(order: int) -> np.polynomial.Polynomial:
    return np.polynomial.Polynomial([1 / math.factorial(n) for n in range(order + 1)])


@pytest.mark.parametrize("order", EVEN)
def test_even_orders_are_positive_with_the_minimum_reported(found, order):
    row, p = found[order], polynomial(order)
    assert row["zero"] is None
    assert row["minimum"] > 0
    assert p(row["minimum_at"]) == pytest.approx(row["minimum"], abs=1e-6)
    assert p.deriv()(row["minimum_at"]) == pytest.approx(0, abs=1e-5)
    assert p(np.linspace(-50, 50, 100_001)).min() >= row["minimum"] - 1e-6
    assert row["negative_share"] == 0


@pytest.mark.parametrize("order", ODD)
def test_odd_orders_are_negative_below_the_zero_reported(found, order):
    row, p = found[order], polynomial(order)
    (root,) = [root.real for root in p.roots() if abs(root.imag) < 1e-9]
    assert row["zero"] == pytest.approx(root, abs=1e-6)
    assert p(row["zero"] - 1e-3) < 0 < p(row["zero"] + 1e-3)
    assert row["minimum"] is None
    q = torch.linspace(1e-6, 10, 200_001, dtype=torch.float64)
    density = 2 * torch.exp(-(q**2) / 2) / (2 * torch.pi) ** 0.5
    below = torch.special.ndtr(row["zero"] / (2 * q))  # probability of 2qk < zero, given q
    assert row["negative_share"] == pytest.approx(float((density * below).sum() * 5e-5), abs=1.5e-3)


@pytest.mark.parametrize("order", EVEN)
def test_curves_are_the_polynomials_of_the_operator(found, order):
    """reference.taylor has the coefficients of e^(2qk): with k = 1/2, those of e^q."""
    row = found[order]
    x = torch.tensor(row["x"], dtype=torch.float64)
    terms = reference.taylor(order, x) * reference.powers(x, order)
    y = (terms * reference.powers(torch.full_like(x, 0.5), order)).sum(-1)
    np.testing.assert_allclose(row["y"], y, rtol=1e-5)
    np.testing.assert_allclose(row["error"], abs(y / x.exp() - 1), rtol=1e-3, atol=1e-14)


def test_errors_have_a_sign_and_shrink_with_the_order(found):
    assert found[2]["error_at"]["-4"] == pytest.approx((1 - 4 + 8) / np.exp(-4) - 1, rel=1e-3)
    assert found[1]["error_at"]["-4"] < -1  # P is negative there
    for x in fig3.POINTS:
        errors = [abs(found[order]["error_at"][str(x)]) for order in EVEN]
        assert errors == sorted(errors, reverse=True)


def test_ninety_percent_of_products_lie_within_the_bound(rows):
    q, k = torch.randn(2, 200_000, generator=torch.Generator().manual_seed(1)).unbind()
    for row in rows:
        if row["what"] == "range of 2qk":
            inside = ((2 * row["sigma"] ** 2 * q * k).abs() < row["bound"]).double().mean()
            assert float(inside) == pytest.approx(0.9, abs=0.005)


def test_tables_and_chart_show_all_orders(rows):
    signs, errors = fig3.tables(rows)
    assert [line[0] for line in signs.lines] == [f"order {n}" for n in (1, 2, 5, 6, 11, 12)]
    assert ["order 6", "0.149 at -2.18", "never", "0.0 %"] in signs.lines
    assert errors.lines[1][1] == "+272"
    assert {"eˣ", "order 5", "order 12"} <= fig3.draw(rows).legend.keys()
    assert "At 2qk = −2 the polynomial of order 6 is 15 % off eˣ." in [*fig3.losses(rows)]
