"""Accuracy of the quadrature on its grid, and finite results outside."""

import pytest
import torch
from op_helpers import assert_near, causals, draw, every_backend, pairwise

from eattn import Quadrature, ea_series
from eattn.ops import ea, reference

EPS = torch.finfo(torch.float32).eps
WIDE = Quadrature(25)
WIDEST = Quadrature(27)
wide = pytest.mark.parametrize("expansion", [WIDE, WIDEST], ids=str)


def value_and_gradients(call, inputs, gy):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = call(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, gy.to(y.dtype))


def apart(distance: float, radius: float):
    """Make q at the same distance from its nearest key in every channel, across the grid."""
    room = 2 * radius - distance
    q = torch.linspace(radius - room, radius, 16, dtype=torch.float64)
    spread = draw(2, 20, 16, seed=1).abs().mul(0.1).clamp(max=0.4)
    k = (q - distance - spread).clamp(min=-radius)
    k[:, 0] = q - distance
    return q.expand_as(k), k, draw(2, 20, 16, seed=2)


@every_backend
@pairwise(
    "distance, size, expansion, causal",
    [0.0, 4.0, 8.0, 9.0],
    [1e-8, 1.0, 1e2],
    [WIDE, WIDEST],
    [False, True],
)
def test_keys_within_distance_9_match_reference(backend, causal, expansion, distance, size):
    inputs = [x.float() for x in apart(distance, expansion.radius)]
    gy = size * draw(2, 20, 16, seed=3).float()
    options = dict(expansion=expansion, causal=causal)
    got = value_and_gradients(lambda *x: ea_series(*x, **options, backend=backend), inputs, gy)
    want = value_and_gradients(
        lambda *x: reference.ea_expanded(*x, **options), [x.double() for x in inputs], gy
    )
    # At a distance d, d/dq log w is 2d, so errors grow with d.
    bound = 8 * reference.condition(expansion) * EPS * (1 + distance)
    for name, a, b in zip(("y", "dq", "dk", "dv"), got, want, strict=True):
        scale = 1 if name == "y" else size
        assert_near(a, b, bound * (scale + float(b.abs().max())), name)


@causals
@pytest.mark.parametrize(
    "distance, room, error",
    [(0.0, 1.0, 2e-4), (4.0, 0.0, 2e-4), (9.0, 0.0, 2e-4), (0.0, 0.0, 2e-2)],
)
def test_quadrature_matches_exact_attention(causal, distance, room, error):
    q, k, v = apart(distance, WIDE.radius - room)
    y = ea_series(q.float(), k.float(), v.float(), expansion=WIDE, causal=causal)
    assert_near(y, ea(q, k, v, causal=causal), error, "y")


@pytest.mark.parametrize(
    "spread, causal, error",
    [(1.0, False, 2e-4), (1.0, True, 2e-4), (1.5, True, 2e-4), (1.5, False, 5e-4)],
)  # without causality more pairs have their midpoint outside the grid, where weights are off
def test_normal_inputs_match_exact_attention(spread, causal, error):
    q, k, v = (draw(1, 512, 16, seed=i) for i in range(3))
    q, k = spread * q, spread * k
    y = ea_series(q.float(), k.float(), v.float(), expansion=WIDE, causal=causal)
    exact = ea(q, k, v, causal=causal)
    assert (y - exact).norm() < error * exact.norm()


@every_backend
@causals
@wide
def test_far_keys_give_bounded_values_and_finite_gradients(backend, causal, expansion):
    for distance in torch.linspace(9, 2 * expansion.reach, 8).tolist():
        q, k, v = (x.float() for x in apart(distance, expansion.reach))
        for size in (1e-8, 1.0, 1e4):
            y, *gradients = value_and_gradients(
                lambda *x: ea_series(*x, expansion=expansion, causal=causal, backend=backend),
                (q, k, v),
                torch.full_like(q, size),
            )
            seen = v.cummax(1).values, v.cummin(1).values
            most, least = seen if causal else (v.amax(1, keepdim=True), v.amin(1, keepdim=True))
            assert (y <= most + 1e-4).all()
            assert (y >= least - 1e-4).all()
            assert all(g.isfinite().all() for g in gradients)


@every_backend
@causals
def test_many_queries_far_from_keys_have_finite_gradients(backend, causal):
    q, k = torch.full((1, 50_000, 1), WIDE.reach), torch.full((1, 50_000, 1), -WIDE.reach)
    gradients = value_and_gradients(
        lambda *x: ea_series(*x, expansion=WIDE, causal=causal, backend=backend),
        (q, k, draw(1, 50_000, 1, seed=1).float()),
        torch.ones_like(q),
    )
    assert all(g.isfinite().all() for g in gradients)


@every_backend
@causals
@pytest.mark.parametrize("far", [7.6, 3e38])
def test_queries_and_keys_beyond_the_reach_are_clamped(backend, causal, far):
    q, k, v = (draw(2, 30, 8, seed=i).float() for i in range(3))
    q[:, 5:9], k[:, 3:12] = far, -far
    k[:, 12:15] = far
    options = dict(expansion=WIDE, causal=causal, backend=backend)
    y = ea_series(q, k, v, **options)
    assert torch.equal(y, ea_series(q.clamp(-7.5, 7.5), k.clamp(-7.5, 7.5), v, **options))
    gradients = value_and_gradients(
        lambda *x: ea_series(*x, **options), (q, k, v), draw(2, 30, 8, seed=4)
    )
    assert all(g.isfinite().all() for g in gradients)


@every_backend
def test_gradient_pulls_keys_back_onto_the_grid(backend):
    q, k = torch.zeros(1, 1, 1), torch.tensor([4.5, 9.0]).view(1, 2, 1)
    q += 5.5
    v = torch.tensor([0.0, 1.0]).view(1, 2, 1)
    k.requires_grad_()
    ea_series(q, k, v, expansion=WIDE, backend=backend).sum().backward()
    assert k.grad[0, 1, 0] < 0  # a key closer to q would have more weight
