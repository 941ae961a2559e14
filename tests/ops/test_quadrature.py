"""Accuracy of the quadrature on its grid, and finite results outside."""

import pytest
import torch
from op_helpers import assert_near, causals, draw, every_backend, pairwise

from eattn import Quadrature, ea_series
from eattn.ops import ea, reference

EPS = torch.finfo(torch.float32).eps
SMALL = Quadrature(25)
ROUNDED = Quadrature(27)  # its spacing is not a binary fraction
DENSE = Quadrature(25, 12)
LARGE = Quadrature(65)
NEAR = {SMALL: 9.0, ROUNDED: 9.0, DENSE: 8.0, LARGE: 5.0}  # distance at which weights are right
grids = pytest.mark.parametrize("expansion", NEAR, ids=str)


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
    "share, size, expansion, causal",
    [0.0, 0.5, 0.8, 1.0],
    [1e-8, 1.0, 1e2],
    list(NEAR),
    [False, True],
)
def test_near_keys_match_reference(backend, causal, expansion, share, size):
    distance = share * NEAR[expansion]
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
@pytest.mark.parametrize("expansion", [SMALL, LARGE, Quadrature(1025)], ids=str)
@pytest.mark.parametrize(
    "distance, room, error",
    [(0.0, 1.0, 2e-4), (0.8, 0.0, 2e-4), (1.0, 0.0, 2e-4), (0.0, 0.0, 2e-2)],
)
def test_quadrature_matches_exact_attention(causal, expansion, distance, room, error):
    q, k, v = apart(distance * NEAR.get(expansion, 5.0), expansion.radius - room)
    y = ea_series(q.float(), k.float(), v.float(), expansion=expansion, causal=causal)
    assert_near(y, ea(q, k, v, causal=causal), error, "y")


@pytest.mark.parametrize(
    "spread, causal, error",
    [(1.0, False, 2e-4), (1.0, True, 2e-4), (1.5, True, 2e-4), (1.5, False, 5e-4)],
)  # without causality more pairs have their midpoint outside the grid, where weights are off
def test_normal_inputs_match_exact_attention(spread, causal, error):
    q, k, v = (draw(1, 512, 16, seed=i) for i in range(3))
    q, k = spread * q, spread * k
    y = ea_series(q.float(), k.float(), v.float(), expansion=SMALL, causal=causal)
    exact = ea(q, k, v, causal=causal)
    assert (y - exact).norm() < error * exact.norm()


@causals
@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0])
def test_wide_grid_matches_exact_attention_near_keys(causal, spread):
    q, k, v = (draw(1, 256, 16, seed=i) for i in range(3))
    q, k = spread * q, spread * k
    y = ea_series(q.float(), k.float(), v.float(), expansion=Quadrature(129), causal=causal)
    exact = ea(q, k, v, causal=causal)
    gaps = (q.unsqueeze(2) - k.unsqueeze(1)).abs()
    if causal:
        gaps = gaps.masked_fill(~torch.ones(256, 256).tril().bool().view(1, 256, 256, 1), torch.inf)
    near = gaps.amin(2) <= 5
    assert (y - exact)[near].norm() < 2e-4 * exact[near].norm()


@every_backend
@causals
@grids
def test_far_query_reads_the_nearest_keys(backend, causal, expansion):
    """A query far from all keys gets their value; dv is right, and dq is 0."""
    edge = expansion.radius
    q = torch.tensor([-edge, -edge, 0.0]).view(1, 3, 1)
    k = torch.tensor([edge, edge - 2, edge - 1]).view(1, 3, 1)
    v = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
    near = (q.unsqueeze(2) - k.unsqueeze(1)).abs().amin() <= NEAR[expansion]
    y, dq, dk, dv = value_and_gradients(
        lambda *x: ea_series(*x, expansion=expansion, causal=causal, backend=backend),
        (q, k, v),
        torch.ones(1, 3, 1),
    )
    assert y.flatten()[0] == pytest.approx(1.0 if causal else 2.0, abs=1e-4)
    assert y.flatten()[1] == pytest.approx(2.0, abs=1e-4)
    assert all(x.isfinite().all() for x in (dq, dk, dv))
    if expansion.wide and not near:
        assert not dq.any()
        assert float(dv.sum()) == pytest.approx(3.0, rel=1e-4)  # the weights of a query sum to 1


@every_backend
@causals
def test_far_query_on_the_grid_is_right(backend, causal):
    q, k = torch.full((1, 2, 1), -5.0), torch.tensor([5.0, 5.5]).view(1, 2, 1)
    v = torch.tensor([1.0, -1.0]).view(1, 2, 1)
    y = ea_series(q, k, v, expansion=SMALL, causal=causal, backend=backend)
    assert_near(y, ea(q.double(), k.double(), v.double(), causal=causal), 1e-4, "y")


@every_backend
@causals
def test_far_keys_on_both_sides_share_the_weight(backend, causal):
    q, k = torch.zeros(1, 2, 1), torch.tensor([-15.0, 15.0]).view(1, 2, 1)
    v = torch.tensor([1.0, 3.0]).view(1, 2, 1)
    y = ea_series(q, k, v, expansion=LARGE, causal=causal, backend=backend)
    assert y[0, 1, 0] == pytest.approx(2.0)


@every_backend
@causals
@grids
def test_far_keys_give_bounded_values_and_finite_gradients(backend, causal, expansion):
    for distance in torch.linspace(NEAR[expansion], 2 * expansion.reach, 8).tolist():
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
    q, k = torch.full((1, 50_000, 1), SMALL.reach), torch.full((1, 50_000, 1), -SMALL.reach)
    gradients = value_and_gradients(
        lambda *x: ea_series(*x, expansion=SMALL, causal=causal, backend=backend),
        (q, k, draw(1, 50_000, 1, seed=1).float()),
        torch.ones_like(q),
    )
    assert all(g.isfinite().all() for g in gradients)


@every_backend
@causals
@pytest.mark.parametrize("expansion", [SMALL, DENSE, LARGE], ids=str)
@pytest.mark.parametrize("excess", [0.1, 3e38])
def test_queries_and_keys_beyond_the_reach_are_clamped(backend, causal, expansion, excess):
    q, k, v = (draw(2, 30, 8, seed=i).float() for i in range(3))
    reach, far = expansion.reach, expansion.reach + excess
    q[:, 5:9], k[:, 3:12] = far, -far
    k[:, 12:15] = far
    options = dict(expansion=expansion, causal=causal, backend=backend)
    y = ea_series(q, k, v, **options)
    assert torch.equal(y, ea_series(q.clamp(-reach, reach), k.clamp(-reach, reach), v, **options))
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
    ea_series(q, k, v, expansion=SMALL, backend=backend).sum().backward()
    assert k.grad[0, 1, 0] < 0  # a key closer to q would have more weight
