"""torch.func transforms of the operators: grad, vjp, jacrev, vmap, and what they refuse."""

from functools import partial

import pytest
import torch
from op_helpers import draw
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from eattn import Quadrature, State, accumulate, ea, ea_series, ea_series_step, readout
from eattn.ops.baselines import aft, linear_rnn

V, B, L, D = 3, 2, 5, 4
MASK = torch.tensor([[True, True, False, True, True], [False, True, True, True, False]])
OFFSETS = torch.tensor([0, 2, 5], dtype=torch.int32)


def decode(q, k, v):
    state = accumulate(k[:, :3], v[:, :3], order=4)
    return ea_series_step(q[:, 0], k[:, 3], v[:, 3], state)[0]


def through_state(q, k, v):
    y, state = ea_series(q, k, v, order=2, return_state=True, causal=True)
    return y + readout(q, State(2 * state.s, state.z, state.shift, state.expansion))


def packed(q, k, v, *, gated=False):
    q, k, v = (x.flatten(0, 1).unsqueeze(0) for x in (q, k, v))
    offsets = torch.cat([OFFSETS, OFFSETS[1:] + L])
    options = dict(causal=True, cu_seqlens=offsets, key_mask=MASK.view(1, -1))
    return ea_series(q, k, v, **options, log_decay=-q.square() if gated else None)


def decode_decayed(q, k, v):
    state = accumulate(k[:, :3], v[:, :3], log_decay=-q[:, :3].square())
    y, state = ea_series_step(q[:, 0], k[:, 3], v[:, 3], state, log_decay=-v[0, 0].square())
    return y + readout(q[:, 1:2], state)[:, 0] * state.log_decay.exp()


OPERATORS = {
    "full": ea_series,
    "causal": lambda q, k, v: ea_series(q, k, v, causal=True, order=8),
    "mask": lambda q, k, v: ea_series(q, k, v, causal=True, key_mask=MASK),
    "quadrature": lambda q, k, v: ea_series(q, k, v, expansion=Quadrature(9)),
    "eager": lambda q, k, v: ea_series(q, k, v, causal=True, backend="eager"),
    "packed": packed,
    "step": decode,
    "decay": lambda q, k, v: ea_series(q, k, v, causal=True, log_decay=-v[0, 0].square()),
    "gate": lambda q, k, v: ea_series(
        q, k, v, causal=True, key_mask=MASK, log_decay=-q.square(), expansion=Quadrature(9)
    ),
    "packed gate": partial(packed, gated=True),
    "step with decay": decode_decayed,
    "state": through_state,
    "exact": lambda q, k, v: ea(q, k, v, causal=True, key_mask=MASK),
    "linear_rnn": lambda q, k, v: linear_rnn(q.sigmoid(), k, v[:, 0]),
    "aft": lambda q, k, v: aft(k, v, q[0] @ k[0].mT, causal=True, key_mask=MASK),
}
operators = pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)


def inputs(*shape):
    return [draw(*shape, seed=i) for i in range(3)]


def loss(f):
    return lambda *qkv: f(*qkv).square().sum()


def loop(f, *batches):
    """Return what vmap(f) must return."""
    results = [f(*row) for row in zip(*batches, strict=True)]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results)
    return tuple(map(torch.stack, zip(*results, strict=True)))


def gradients(f, *qkv):
    leaves = [x.clone().requires_grad_() for x in qkv]
    return torch.autograd.grad(loss(f)(*leaves), leaves)


close = torch.testing.assert_close


@operators
def test_grad_and_vjp_match_autograd(f):
    qkv = inputs(B, L, D)
    close(grad(loss(f), (0, 1, 2))(*qkv), gradients(f, *qkv))
    y, pull = vjp(f, *qkv)
    close(pull(2 * y), gradients(f, *qkv))


@operators
def test_vmap_matches_loop(f):
    qkv = inputs(V, B, L, D)
    close(vmap(f)(*qkv), loop(f, *qkv))
    q, k, v = qkv
    close(
        vmap(f, (1, None, 0), 1)(q.movedim(0, 1), k[0], v), loop(f, q, [k[0]] * V, v).movedim(0, 1)
    )
    twice = [draw(2, V, B, L, D, seed=i) for i in range(3)]
    close(vmap(vmap(f))(*twice), torch.stack([loop(f, *x) for x in zip(*twice, strict=True)]))


@operators
def test_gradients_inside_and_outside_vmap_match_loop(f):
    qkv = inputs(V, B, L, D)
    want = loop(lambda *x: gradients(f, *x), *qkv)
    close(vmap(grad(loss(f), (0, 1, 2)))(*qkv), want)
    close(grad(loss(vmap(f)), (0, 1, 2))(*qkv), want)
    close(gradients(vmap(f), *qkv), want)


@operators
def test_jacrev_matches_autograd(f):
    qkv = inputs(B, L, D)
    jacobian = torch.autograd.functional.jacobian(lambda q: f(q, *qkv[1:]), qkv[0])
    close(jacrev(f)(*qkv), jacobian)


@pytest.mark.parametrize(
    "name", sorted(OPERATORS.keys() - {"aft"})
)  # aft can be differentiated twice
@pytest.mark.parametrize("transform", [hessian, lambda f: grad(lambda *x: grad(f)(*x).sum())])
def test_second_derivatives_raise(name, transform):
    with pytest.raises((NotImplementedError, RuntimeError), match=r"not support|forward-mode|jvp"):
        transform(loss(OPERATORS[name]))(*inputs(B, L, D))


def test_forward_mode_raises():
    qkv = tuple(inputs(B, L, D))
    for f in (ea_series, ea):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            jvp(f, qkv, qkv)


def test_vmap_over_offsets_and_states_matches_loop():
    q, k, v = inputs(V, 1, L, D)
    offsets = torch.tensor([[0, 2, 5], [0, 0, 5], [0, 4, 5]])
    states = [accumulate(*inputs(2, 3, D)[:2]) for _ in range(V)]

    def f(q, k, v, cu_seqlens, s, z, shift):
        state = State(s, z, shift, states[0].expansion)
        options = dict(cu_seqlens=cu_seqlens, state=state, return_state=True)
        y, after = ea_series(q, k, v, **options)
        gated, last = ea_series(q, k, v, **options, causal=True, log_decay=-v.square())
        return y, after.s, after.shift, gated, last.log_decay

    sums = [torch.stack([getattr(x, name) for x in states]) for name in ("s", "z", "shift")]
    close(vmap(f)(q, k, v, offsets, *sums), loop(f, q, k, v, offsets, *sums))
