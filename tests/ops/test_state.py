"""The decoding state: size, merging, reordering, conversion, storage."""

import copy
import io
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from op_helpers import draw, unshifted
from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from eattn import Quadrature, State, Taylor, accumulate, ea_series, ea_series_step, readout
from eattn.ops.state import shift_decay


def state_of(seed: int, *, order: int = 6, scale: float = 1.0, decay: bool = False) -> State:
    k, v = draw(3, 20, 5, seed=seed, scale=scale), draw(3, 20, 5, seed=seed + 1)
    log_decay = -draw(3, 20, 5, seed=seed + 2).abs() / 10 if decay else None
    return accumulate(k, v, order=order, log_decay=log_decay)


def assert_equal(a: State, b: State) -> None:
    assert a.expansion == b.expansion
    for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)
        assert torch.equal(x.signbit(), y.signbit())  # torch.equal treats -0 and 0 as equal


def test_new_state_is_empty_frozen_and_reports_its_size():
    state = State.zeros(2, 8, order=4)
    assert state.s.shape == state.z.shape == (2, 8, 5) and state.shift.shape == (2, 8)
    assert state.shift.isposinf().all() and not state.s.any() and not state.z.any()
    assert not readout(torch.randn(2, 4, 8), state).any()
    with pytest.raises(FrozenInstanceError):
        state.s = torch.zeros(1)
    assert state.order == 4 and state.expansion == Taylor(4)
    assert State.zeros(2, 8, expansion=Quadrature(9)).order is None
    assert state.nbytes == 2 * 8 * (5 + 5 + 1) * 4
    assert State.zeros(2, 8, order=4, dtype=torch.float64).nbytes == 2 * state.nbytes
    assert state.log_decay is None
    decaying = State.zeros(2, 8, order=4, decay=True)
    assert decaying.log_decay.shape == (2, 8) and not decaying.log_decay.any()
    assert decaying.nbytes == state.nbytes + 2 * 8 * 4


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("negative_zero", [False, True])
def test_merging_with_an_empty_state_changes_no_bit(negative_zero, decay):
    state = state_of(1, decay=decay)
    if negative_zero:
        state.s[0, 0, 0] = -0.0
    empty = State.zeros(3, 5, decay=decay, dtype=torch.float64)
    assert_equal(State.merge(state, empty), state)
    assert_equal(State.merge(empty, state), state)
    assert_equal(State.merge(empty, empty), empty)


def test_merging_is_associative_and_commutative():
    a, b, c = state_of(1), state_of(3, scale=4.0), state_of(5, scale=0.1)
    assert torch.equal(State.merge(a, b).shift, torch.minimum(a.shift, b.shift))
    left, right = State.merge(State.merge(a, b), c), State.merge(a, State.merge(b, c))
    for other in (right, State.merge(c, State.merge(b, a))):
        torch.testing.assert_close(tree_leaves(left), tree_leaves(other))


@pytest.mark.parametrize("expansion", [Taylor(6), Quadrature(9)], ids=str)
def test_merging_decays_the_earlier_state(expansion):
    k, v, g = (draw(3, 30, 5, seed=i) for i in range(3))
    g = -g.abs()
    g[0, 12, 1] = -torch.inf
    cuts = [(0, 10), (10, 12), (12, 30)]
    a, b, c = (
        accumulate(k[:, i:j], v[:, i:j], expansion=expansion, log_decay=g[:, i:j]) for i, j in cuts
    )
    want = accumulate(k, v, expansion=expansion, log_decay=g)
    torch.testing.assert_close(want.log_decay, g.sum(1))
    for got in (State.merge(State.merge(a, b), c), State.merge(a, State.merge(b, c))):
        torch.testing.assert_close(tree_leaves(unshifted(got)), tree_leaves(unshifted(want)))
    # A segment without decay keeps all of what came before.
    plain = accumulate(k[:, :10], v[:, :10], expansion=expansion)
    merged = State.merge(a, plain)
    assert torch.equal(merged.log_decay, a.log_decay)
    ratio = merged.z - shift_decay(plain.shift, merged.shift).unsqueeze(-1) * plain.z
    torch.testing.assert_close(ratio, shift_decay(a.shift, merged.shift).unsqueeze(-1) * a.z)


def test_merging_passes_gradients_to_both_states():
    a, b = state_of(1), state_of(3, scale=2.0, decay=True)
    leaves = [x.clone().requires_grad_() for x in (a.s, a.z, b.s, b.z, b.log_decay)]
    merged = State.merge(
        State(*leaves[:2], a.shift, a.expansion),
        State(*leaves[2:4], b.shift, b.expansion, leaves[4]),
    )
    readout(draw(3, 4, 5, seed=9), merged).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() and x.grad.any() for x in leaves)


def test_select_reorders_and_repeats_rows():
    state, index = state_of(1), torch.tensor([2, 0, 0, 1])
    picked = state.select(index)
    assert picked.s.shape == (4, 5, 7)
    q = draw(4, 3, 5, seed=9)
    for row, source in enumerate(index.tolist()):
        alone = state.select(torch.tensor([source]))
        torch.testing.assert_close(readout(q, picked)[row], readout(q[row : row + 1], alone)[0])


def test_to_changes_device_and_dtype():
    state = state_of(1).to(torch.float32)
    assert state.s.dtype == state.shift.dtype == torch.float32
    assert state.to("meta").s.device.type == "meta"
    with pytest.raises(TypeError, match="float32 or float64"):
        state.to(torch.bfloat16)


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("how", ["pickle", "torch", "copy"])
def test_state_can_be_saved_and_copied(how, decay):
    state = state_of(1, decay=decay)
    if how == "pickle":
        back = pickle.loads(pickle.dumps(state))
    elif how == "copy":
        back = copy.deepcopy(state)
    else:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
    assert isinstance(back, State)
    assert_equal(back, state)


@pytest.mark.parametrize("decay", [None, -torch.ones(5)], ids=["plain", "decay"])
@pytest.mark.parametrize("expansion", [Taylor(4), Quadrature(9, 3.0)], ids=str)
def test_state_is_a_pytree_with_static_expansion(expansion, decay):
    k, v = draw(2, 3, 20, 5, seed=1).unbind()
    state = accumulate(k, v, expansion=expansion, log_decay=decay)
    leaves, spec = pytree.tree_flatten(state)
    assert_equal(pytree.tree_unflatten(leaves, spec), state)
    stored = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert_equal(pytree.tree_unflatten(leaves, stored), state)
    keys = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(state)[0]]
    total = [] if decay is None else ["['log_decay']"]
    assert keys == ["['s']", "['z']", "['shift']", *total]


def test_activation_checkpointing_supports_states():
    state = state_of(1)
    q, k, v = draw(3, 3, 4, 5, seed=2).requires_grad_().unbind()

    def op(q, state):
        return ea_series(q, k, v, causal=True, state=state, return_state=True)

    y, after = checkpoint(op, q, state, use_reentrant=False)
    want, expected = op(q, state)
    assert torch.equal(y, want)
    assert_equal(after, expected)


def test_any_memory_layout_is_accepted():
    state = state_of(1)
    other = replace(state, s=state.s.contiguous(), z=state.z.contiguous())
    assert other.s.stride() != state.s.stride()
    q = draw(3, 4, 5, seed=9)
    assert torch.equal(readout(q, other), readout(q, state))


def test_float64_state_absorbs_more_tokens_than_float32():
    """float32 sums of equal terms stop growing near 2^24 terms; float64 sums do not."""
    token = torch.zeros(1, 1)
    for dtype, absorbs in ((torch.float32, False), (torch.float64, True)):
        state = State.zeros(1, 1, order=0, dtype=dtype)
        _, state = ea_series_step(token, token, token + 1, state)
        full = replace(state, s=state.s * 2.0**24, z=state.z * 2.0**24)
        y, after = ea_series_step(token, token, token + 1, full)
        assert y.dtype == torch.float32
        assert bool(after.z > full.z) == absorbs
