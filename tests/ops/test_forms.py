"""All forms of the operator agree: parallel, chunked, step by step, packed, padded, merged."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from op_helpers import EVERY_EXPANSION, assert_near, draw, every_backend
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eattn import State, Taylor, accumulate, ea_series, ea_series_step, readout
from eattn.ops import Expansion, reference

EXPANSIONS = st.sampled_from(EVERY_EXPANSION)
thorough = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def calls(draw_from, decays=("", "decay", "gate")):
    """Draw q, k, v and a cotangent [B, L, D] in float64, and an expansion.

    A log decay, [D] or [B, L, D] with some -inf, may follow q, k and v.
    """
    shape = (
        draw_from(st.integers(1, 3)),
        draw_from(st.integers(1, 90)),
        draw_from(st.integers(1, 20)),
    )
    seed = draw_from(st.integers(0, 2**31))
    q, k, v, gy = (draw(*shape, seed=seed + i, scale=0.8) for i in range(4))
    decay = draw_from(st.sampled_from(decays))
    if not decay:
        return (q, k, v), gy, draw_from(EXPANSIONS)
    g = -draw(*shape, seed=seed + 4, scale=2.0, mean=-2.0).exp()
    g = g[0, 0] if decay == "decay" else g.masked_fill(g < -5, -torch.inf)
    return (q, k, v, g), gy, draw_from(EXPANSIONS)


def cut(g: Tensor | None, a: int | None, b: int | None) -> Tensor | None:
    """Return the log decay of the tokens from a to b."""
    return g if g is None or g.dim() == 1 else g[:, a:b]


def series(q, k, v, g=None, **options):
    return ea_series(q, k, v, log_decay=g, **options)


def value_and_grads(op, inputs, gy: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = op(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, gy)


def assert_same(got, want, expansion: Expansion) -> None:
    bound = 64 * reference.condition(expansion) * torch.finfo(torch.float64).eps
    names = ("y", "dq", "dk", "dv", "dg")[: len(want)]
    for name, a, b in zip(names, got, want, strict=True):
        assert_near(a, b, bound * (4 + float(b.abs().max())), name)


@every_backend
@thorough
@given(calls(), st.data())
def test_chunked_equals_parallel(backend, call, data):
    inputs, gy, expansion = call
    L = gy.shape[1]
    cuts = sorted(data.draw(st.lists(st.integers(0, L), max_size=4)))

    def chunked(q, k, v, g=None):
        ys, state = [], None
        for a, b in zip([0, *cuts], [*cuts, L], strict=True):
            part = q[:, a:b], k[:, a:b], v[:, a:b], cut(g, a, b)
            options = dict(expansion=expansion, causal=True, state=state, backend=backend)
            y, state = series(*part, **options, return_state=True)
            ys.append(y)
        return torch.cat(ys, 1)

    parallel = partial(series, expansion=expansion, causal=True, backend=backend)
    want = value_and_grads(parallel, inputs, gy)
    assert_same(value_and_grads(chunked, inputs, gy), want, expansion)


@thorough
@given(calls())
def test_steps_equal_parallel(call):
    inputs, gy, expansion = call

    def steps(q, k, v, g=None):
        state, ys = State.zeros(q.shape[0], q.shape[2], expansion=expansion, dtype=q.dtype), []
        decays = [g] * q.shape[1] if g is None or g.dim() == 1 else g.unbind(1)
        for *token, decay in zip(q.unbind(1), k.unbind(1), v.unbind(1), decays, strict=True):
            y, state = ea_series_step(*token, state, log_decay=decay)
            ys.append(y)
        return torch.stack(ys, 1)

    want = value_and_grads(partial(series, expansion=expansion, causal=True), inputs, gy)
    assert_same(value_and_grads(steps, inputs, gy), want, expansion)


@pytest.mark.parametrize("causal", [False, True])
@every_backend
@thorough
@given(st.data())
def test_packed_equals_padded_equals_separate(backend, causal, data):
    inputs, gy, expansion = data.draw(calls() if causal else calls(decays=("",)))
    *inputs, gy = (x if x.dim() == 1 else x[:1] for x in (*inputs, gy))
    L = gy.shape[1]
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, L), max_size=3))), L]
    spans = list(itertools.pairwise(cuts))
    options = dict(expansion=expansion, causal=causal, backend=backend)

    packed = partial(series, cu_seqlens=torch.tensor(cuts, dtype=torch.int32), **options)

    def alone(q, k, v, g=None):
        return torch.cat(
            [series(q[:, a:b], k[:, a:b], v[:, a:b], cut(g, a, b), **options) for a, b in spans],
            1,
        )

    def padded(*inputs):
        def rows(x):
            if x.dim() == 1:
                return x
            padding = [(0, 0, 0, L - (b - a)) for a, b in spans]
            parts = [x[0, a:b] for a, b in spans]
            pairs = zip(parts, padding, strict=True)
            return torch.stack([torch.nn.functional.pad(*pair, value=9.0) for pair in pairs])

        mask = torch.arange(L) < torch.tensor([[b - a] for a, b in spans])
        y = series(*map(rows, inputs), key_mask=mask, **options)
        return torch.cat([y[i, : b - a] for i, (a, b) in enumerate(spans)])[None]

    want = value_and_grads(alone, inputs, gy)
    assert_same(value_and_grads(packed, inputs, gy), want, expansion)
    assert_same(value_and_grads(padded, inputs, gy), want, expansion)


@thorough
@given(calls(), st.data())
def test_merged_and_initial_states_equal_one_call(call, data):
    inputs, gy, expansion = call
    L = gy.shape[1]
    at = data.draw(st.integers(0, L))

    def part(k, v, g, a, b):
        return accumulate(k[:, a:b], v[:, a:b], expansion=expansion, log_decay=cut(g, a, b))

    def whole(q, k, v, g=None):
        return readout(q, part(k, v, g, 0, L))

    def merged(q, k, v, g=None):
        return readout(q, State.merge(part(k, v, g, 0, at), part(k, v, g, at, L)))

    def initial(q, k, v, g=None):
        options = dict(expansion=expansion, state=part(k, v, g, 0, at))
        if g is None:
            return ea_series(q, k[:, at:], v[:, at:], **options)
        last = q[:, at:], k[:, at:], v[:, at:], cut(g, at, L)
        return readout(q, series(*last, **options, causal=True, return_state=True)[1])

    want = value_and_grads(whole, inputs, gy)
    assert_same(value_and_grads(merged, inputs, gy), want, expansion)
    assert_same(value_and_grads(initial, inputs, gy), want, expansion)


@every_backend
def test_accumulate_and_readout_match_reference(backend):
    q, k, v = (draw(2, 9, 5, seed=i) for i in range(3))
    state = accumulate(k, v, backend=backend)
    expected = reference.accumulate_expanded(k, v, expansion=Taylor(6))
    torch.testing.assert_close(tuple(tree_leaves(state)), expected)
    torch.testing.assert_close(readout(q, state, backend=backend), ea_series(q, k, v))


@every_backend
def test_initial_state_is_never_modified(backend):
    q, k, v = (draw(2, 20, 9, seed=i) for i in range(3))
    state = accumulate(k, v, expansion=Taylor(6))
    before = [x.clone() for x in tree_leaves(state)]
    ea_series(q, k, v, causal=True, state=state, return_state=True, backend=backend)
    ea_series(q, k, v, state=state, backend=backend)
    ea_series_step(q[:, 0], k[:, 0], v[:, 0], state)
    readout(q, state, backend=backend)
    State.merge(state, state)
    for x, y in zip(tree_leaves(state), before, strict=True):
        assert torch.equal(x, y)


@every_backend
def test_loss_on_final_state_alone_has_gradients(backend):
    """The gradient of q is zero."""
    q, k, v = (draw(2, 70, 5, seed=i) for i in range(3))
    for causal in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        options = dict(expansion=Taylor(6), causal=causal, return_state=True, backend=backend)
        ea_series(*leaves, **options)[1].s.sum().backward()
        assert leaves[0].grad is not None and not leaves[0].grad.any()
        expected = [x.clone().requires_grad_() for x in (k, v)]
        reference.accumulate_expanded(*expected, expansion=Taylor(6))[0].sum().backward()
        torch.testing.assert_close(leaves[1].grad, expected[0].grad)
        torch.testing.assert_close(leaves[2].grad, expected[1].grad)
