"""Decoding states: their size, and that no call modifies them."""

import copy

import pytest
import torch
from mixer_helpers import (
    CACHED,
    CONSTANT,
    CONVOLVED,
    DECAYED,
    MASKS,
    MODES,
    NAMES,
    SERIES,
    fresh,
    make,
    modes,
    names,
    same,
    tokens,
)
from torch import Tensor
from torch.utils import _pytree as pytree

from eattn import State
from eattn.nn import check_mixer, make_mixer
from eattn.nn.decoding_state import (
    ConvState,
    DeltaState,
    Hidden,
    KVCache,
    LinearState,
    parts,
    rebuilt,
)

cached = pytest.mark.parametrize("name", CACHED)


def sizes(name: str, lengths: list[int], **options) -> list[int]:
    mixer, x = make(name, causal=True, **options), tokens(2, max(lengths))
    with torch.no_grad():
        return [mixer(x[:, :L], return_state=True)[1].nbytes for L in lengths]


@pytest.mark.parametrize("name", CONSTANT)
def test_constant_states_keep_their_size(name):
    assert len(set(sizes(name, [1, 2, 64, 65, 200]))) == 1


@cached
@pytest.mark.parametrize("max_len", [None, 256])
def test_caches_grow_with_every_token(name, max_len):
    """Each row holds 2 L D numbers of 8 bytes, whatever the capacity."""
    lengths = [1, 2, 64, 65, 200]
    assert sizes(name, lengths, max_len=max_len) == [2 * 2 * L * 12 * 8 for L in lengths]


@pytest.mark.parametrize(
    ("name", "floats"),
    [
        *[(name, 12 * (2 * check_mixer(name).terms + 1)) for name in SERIES if name not in DECAYED],
        *[(name, 12 * (2 * 7 + 2)) for name in DECAYED],  # s, z, shift and log_decay
        ("la", 3 * 4 * 5),  # heads, features, values and one sum of weights
        ("taylor", 3 * (1 + 4 + 10) * 5),
        *[(name, 3 * 4 * 4) for name in ("deltanet", "la+gate")],
        ("gru", 12),
        ("linear-rnn", 12),
        ("ea-6~4", 3 * 12 + 12 * (2 * 7 + 1)),  # plus the last three inputs
    ],
)
def test_state_has_documented_size(name, floats):
    assert sizes(name, [3]) == [2 * floats * 8]
    mixer = fresh(name, 12, heads=3, causal=True)
    assert mixer.step(torch.zeros(2, 12))[1].nbytes == 2 * floats * 4


@pytest.mark.parametrize("name", ["ea-6", "la", "taylor", "deltanet", "la+gate", "linear-rnn"])
def test_sums_are_float32_in_bfloat16_modules(name):
    mixer = make_mixer(name, 12, heads=3, causal=True).bfloat16()
    state = mixer.step(torch.zeros(2, 12, dtype=torch.bfloat16))[1]
    tensor = state.s if hasattr(state, "s") else state.h
    assert tensor.dtype == torch.float32


@names
def test_step_keeps_structure_of_state(name):
    mixer, x = make(name, causal=True), tokens(2, 3)
    _, first = mixer.step(x[:, 0])
    _, second = mixer.step(x[:, 1], first)
    _, whole = mixer(x, return_state=True)
    assert list(parts(first)) == list(parts(second)) == list(parts(whole))


def test_each_mixer_has_its_type_of_state():
    kinds = {name: type(make(name, causal=True).step(tokens(1, 12)[:, 0])[1]) for name in NAMES}
    assert kinds == {
        **dict.fromkeys(CONVOLVED, ConvState),
        **dict.fromkeys(SERIES, State),
        **dict.fromkeys(CACHED, KVCache),
        **dict.fromkeys(("la", "taylor", "la+gate"), LinearState),
        "deltanet": DeltaState,
        **dict.fromkeys(("gru", "linear-rnn"), Hidden),
    }


@names
@pytest.mark.parametrize(
    ("mode", "masked"), [("grad", False), ("no_grad", True), ("inference", True)]
)
def test_selected_rows_decode_independently(name, mode, masked):
    mixer, x, index = make(name, causal=True), tokens(3, 9), torch.tensor([2, 0, 2, 2])
    mask = MASKS["holes"](5) if masked else None
    with MODES[mode]():
        _, state = mixer(x[:, :5], key_mask=mask, return_state=True)
        rows = None if mask is None else mask[index]
        _, whole = mixer(x[index, :5], key_mask=rows, return_state=True)
        selected = state.select(index)
        for t in range(5, 9):
            got, selected = mixer.step(x[index, t], selected)
            want, whole = mixer.step(x[index, t], whole)
            same(got.detach(), want.detach())
        assert selected.nbytes == whole.nbytes
        want = mixer(x[:, :6], key_mask=full(mask))[:, 5].detach()
        same(mixer.step(x[:, 5], state)[0].detach(), want)


def full(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else torch.cat([mask, torch.ones_like(mask[:, :1])], 1)


@names
@pytest.mark.parametrize(
    ("mode", "max_len", "start"), [("grad", None, 5), ("no_grad", None, 64), ("inference", 80, 64)]
)
def test_state_can_be_continued_twice(name, mode, max_len, start):
    """Both branches and the original state stay correct, as beam search requires."""
    mixer = make(name, causal=True, max_len=max_len)
    x, a, b = tokens(2, start), tokens(2, 3, seed=8), tokens(2, 3, seed=9)
    want_a, want_b = (mixer(torch.cat([x, z], 1))[:, start:].detach() for z in (a, b))
    with MODES[mode]():
        _, state = mixer(x[:, :-1], return_state=True)
        _, state = mixer.step(x[:, -1], state)
        after_a, after_b, got_a, got_b = state, state, [], []
        for t in range(3):  # alternate, so that one branch could overwrite the other
            y, after_a = mixer.step(a[:, t], after_a)
            got_a.append(y)
            y, after_b = mixer.step(b[:, t], after_b)
            got_b.append(y)
        same(torch.stack(got_a, 1).detach(), want_a)
        same(torch.stack(got_b, 1).detach(), want_b)
        same(mixer(a, state=state).detach(), want_a)


@names
def test_calls_do_not_modify_their_state(name):
    mixer, x = make(name, causal=True), tokens(2, 9)
    with torch.no_grad():
        _, state = mixer(x[:, :5], return_state=True)
        before = pytree.tree_map(torch.clone, state)
        mixer.step(x[:, 5], state)
        mixer(x[:, 5:], state=state)
        mixer(x[:, 5:], state=state, return_state=True)
        state.select(torch.tensor([1]))
        mixer.step(x[:, 6], copy.deepcopy(state))
        leaves = zip(pytree.tree_leaves(before), pytree.tree_leaves(state), strict=True)
        assert all(torch.equal(a, b) for a, b in leaves)
        same(mixer.step(x[:, 5], before)[0], mixer(x)[:, 5])


@names
def test_state_is_rebuilt_from_named_tensors(name):
    """The template may have another number of rows and tokens."""
    mixer, x = make(name, causal=True), tokens(2, 9)
    with torch.no_grad():
        _, like = mixer(x[:1, :1], return_state=True)
        _, state = mixer(x[:, :8], return_state=True)
        stored = parts(state)
        assert sum(tensor.nbytes for tensor in stored.values()) == state.nbytes
        same(mixer.step(x[:, 8], rebuilt(like, stored))[0], mixer(x)[:, 8])


@cached
@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("max_len", [None, 130])
def test_cache_grows_beyond_initial_capacity(name, mode, max_len):
    mixer, x = make(name, causal=True, max_len=max_len), tokens(1, 130)
    want, state, got = mixer(x).detach(), None, []
    with MODES[mode]():
        for t in range(130):
            y, state = mixer.step(x[:, t], state)
            got.append(y)
    same(torch.stack(got, 1), want)


@pytest.mark.parametrize(("max_len", "capacities"), [(None, [64, 128, 256]), (150, [150])])
def test_cache_capacity_doubles(max_len, capacities):
    """It starts at 64 tokens; with max_len it is fixed."""
    mixer, x = make("sa", causal=True, max_len=max_len), tokens(1, 150)
    state, memories = None, []
    with torch.no_grad():
        for t in range(150):
            _, state = mixer.step(x[:, t], state)
            if not memories or state.keys is not memories[-1]:
                memories.append(state.keys)
    assert [memory.shape[2] for memory in memories] == capacities


@pytest.mark.parametrize("name", ["sa", "sa-math"])
@modes
def test_full_cache_raises(name, mode):
    mixer, x = make(name, causal=True, max_len=5), tokens(2, 6)
    with MODES[mode]():
        _, state = mixer(x[:, :5], return_state=True)
        with pytest.raises(ValueError, match="max_len = 5"):
            mixer.step(x[:, 5], state)
        with pytest.raises(ValueError, match="max_len = 5"):
            mixer(x, return_state=True)
        assert mixer(x).shape == x.shape  # no limit without a cache


@modes
def test_aft_raises_beyond_max_len(mode):
    mixer, x = make("aft", causal=True, max_len=5), tokens(2, 6)
    with MODES[mode]():
        _, state = mixer(x[:, :5], return_state=True)
        for call in (
            lambda: mixer(x),
            lambda: mixer.step(x[:, 5], state),
            lambda: mixer(x[:, 4:], state=mixer(x[:, :4], return_state=True)[1]),
            lambda: mixer(x[:1], cu_seqlens=torch.tensor([0, 6])),
        ):
            with pytest.raises(ValueError, match="max_len = 5"):
                call()
        assert mixer(x[:1], cu_seqlens=torch.tensor([0, 3, 6])).shape == (1, 6, 12)


def test_aft_has_512_positions_by_default():
    mixer, x = make_mixer("aft", 2), torch.zeros(1, 513, 2)
    assert mixer(x[:, :512]).shape == (1, 512, 2)
    with pytest.raises(ValueError, match="max_len = 512"):
        mixer(x)
