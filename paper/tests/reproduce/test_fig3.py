"""What Figure 3 says is so: the facts in its rows, by other ways than they were computed."""

import functools
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from eattn import cli
from eattn.ops import reference
from paper.bench.measure import Row
from paper.reproduce import fig3

EVEN, ODD = (2, 6, 12), (1, 5, 11)


@functools.cache
def rows() -> list[Row]:
    return list(fig3.measure(EVEN))


def polynomials() -> dict[int, Row]:
    return {row["order"]: row for row in rows() if row["what"] == "polynomial"}


def polynomial(order: int) -> np.polynomial.Polynomial:
    return np.polynomial.Polynomial([1 / math.factorial(n) for n in range(order + 1)])


def test_every_even_order_stands_beside_the_odd_one_below_it():
    assert list(polynomials()) == [1, 2, 5, 6, 11, 12]


@pytest.mark.parametrize("order", EVEN)
def test_even_orders_are_positive_and_least_where_the_rows_say(order):
    row = polynomials()[order]
    p = polynomial(order)
    assert row["zero"] is None
    assert row["minimum"] > 0
    assert p(row["minimum_at"]) == pytest.approx(row["minimum"], abs=1e-6)
    assert p.deriv()(row["minimum_at"]) == pytest.approx(0, abs=1e-5)
    assert p(np.linspace(-50, 50, 100_001)).min() >= row["minimum"] - 1e-6
    assert row["negative_share"] == 0


@pytest.mark.parametrize("order", ODD)
def test_odd_orders_cross_zero_where_the_rows_say(order):
    row = polynomials()[order]
    p = polynomial(order)
    (root,) = [root.real for root in p.roots() if abs(root.imag) < 1e-9]
    assert row["zero"] == pytest.approx(root, abs=1e-6)
    assert p(row["zero"] - 1e-3) < 0 < p(row["zero"] + 1e-3)
    assert row["minimum"] is None


@pytest.mark.parametrize("order", ODD)
def test_the_share_of_negative_weights_is_the_probability_that_2qk_is_below_the_zero(order):
    row = polynomials()[order]
    q = torch.linspace(1e-6, 10, 200_001, dtype=torch.float64)
    density = 2 * torch.exp(-(q**2) / 2) / (2 * torch.pi) ** 0.5
    below = torch.special.ndtr(row["zero"] / (2 * q))
    assert row["negative_share"] == pytest.approx(float((density * below).sum() * 5e-5), abs=1.5e-3)


@pytest.mark.parametrize("order", EVEN)
def test_the_curve_is_the_polynomial_the_operator_uses(order):
    """reference.taylor has the coefficients of e^(2qk): with k = 1/2, those of e^q."""
    row = polynomials()[order]
    x = torch.tensor(row["x"], dtype=torch.float64)
    terms = reference.taylor(order, x) * reference.powers(x, order)
    y = (terms * reference.powers(torch.full_like(x, 0.5), order)).sum(-1)
    np.testing.assert_allclose(row["y"], y, rtol=1e-5)
    np.testing.assert_allclose(row["error"], abs(y / x.exp() - 1), rtol=1e-3, atol=1e-14)


def test_errors_at_points_have_a_sign_and_shrink_with_the_order():
    assert polynomials()[2]["error_at"]["-4"] == pytest.approx(
        (1 - 4 + 8) / np.exp(-4) - 1, rel=1e-3
    )
    assert polynomials()[1]["error_at"]["-4"] < -1  # P is negative there
    for x in fig3.POINTS:
        errors = [abs(polynomials()[order]["error_at"][str(x)]) for order in EVEN]
        assert errors == sorted(errors, reverse=True)


def test_most_2qk_lie_within_the_bound():
    bounds = {row["sigma"]: row["bound"] for row in rows() if row["what"] == "range of 2qk"}
    q, k = torch.randn(2, 200_000, generator=torch.Generator().manual_seed(1)).unbind()
    for sigma, bound in bounds.items():
        inside = ((2 * sigma * q * sigma * k).abs() < bound).double().mean()
        assert float(inside) == pytest.approx(0.9, abs=0.005)


def test_files_are_small_carry_provenance_and_are_replaced(tmp_path, capsys):
    for orders in ("2,6,12", "6"):
        assert cli.main(["reproduce", "fig3", "--orders", orders, "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fig3.jsonl",
        "fig3.png",
        "fig3.svg",
    ]
    assert (tmp_path / "fig3.jsonl").stat().st_size < 200_000
    found = [json.loads(line) for line in (tmp_path / "fig3.jsonl").read_text().splitlines()]
    assert [row["order"] for row in found if row["what"] == "polynomial"] == [5, 6]
    assert all({"commit", "hardware", "torch", "date"} <= set(row) for row in found)
    assert {row["reproduce"] for row in found} == {"fig3"}
    out = capsys.readouterr().out
    assert "-2.181" in out
    assert f"{tmp_path / 'fig3.png'}" in out


def test_a_run_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "fig3.jsonl").write_text("old")

    def broken(order: int) -> float:
        raise RuntimeError("broken")

    monkeypatch.setattr(fig3, "zero", broken)
    with pytest.raises(RuntimeError, match="broken"):
        fig3.run(Console(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fig3.jsonl"]
    assert (tmp_path / "fig3.jsonl").read_text() == "old"


@pytest.mark.parametrize(
    ("orders", "reason"),
    [
        ("2,5", "even numbers from 2 to 16, got [2, 5]"),
        ("0", "got [0]"),
        ("18", "got [18]"),
        ("2,4,6,8,10,12", "orders must be 1 to 5 even numbers"),
        ("two", "orders must be numbers with commas, like 2,6, got 'two'"),
        ("", "got ''"),
    ],
)
def test_orders_that_cannot_be_drawn_are_refused(orders, reason, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["reproduce", "fig3", "--orders", orders, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert not out.exists()
