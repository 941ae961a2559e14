"""Parallel, chunked, stepwise and padded calls of every causal mixer agree."""

import copy

import pytest
import torch
from mixer_helpers import (
    MASKS,
    MODES,
    differentiate,
    every_mask,
    make,
    modes,
    names,
    same,
    tokens,
)
from op_helpers import poisoned_memory
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from eattn.nn import Mixer


def in_chunks(mixer: Mixer, x: Tensor, sizes: list[int]) -> tuple[Tensor, object]:
    """Read x in chunks, each from the state before; a chunk of size 0 is one `step`."""
    state, parts, at = None, [], 0
    for size in sizes:
        if size:
            y, state = mixer(x[:, at : at + size], state=state, return_state=True)
        else:
            y, state = mixer.step(x[:, at], state)
            y = y.unsqueeze(1)
        parts.append(y)
        at += size or 1
    assert at == x.shape[1]
    return torch.cat(parts, 1), state


# Sizes of chunks; 0 stands for a step
CHUNKS = {
    "steps": [0] * 9,
    "chunks": [3, 5, 1],
    "steps between chunks": [0, 2, 0, 4, 0],
    "past 128": [129, 0, 7],
    "across 128 and 256": [100, 60, 0, 120],
}


@names
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_parallel_chunked_and_stepwise_agree_with_gradients(name, sizes):
    L = sum(size or 1 for size in sizes)
    mixer, x = make(name, causal=True), tokens(2, L).requires_grad_()
    want = differentiate(mixer, x, mixer(x))
    same(differentiate(mixer, x, in_chunks(mixer, x, sizes)[0]), want)


@names
@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("cut", ["steps between chunks", "past 128"])
def test_parallel_chunked_and_stepwise_agree_without_gradients(name, mode, cut):
    L = sum(size or 1 for size in CHUNKS[cut])
    mixer, x = make(name, causal=True), tokens(2, L)
    want = mixer(x).detach()
    with MODES[mode](), poisoned_memory():  # unused capacity of a cache must not be read
        same(in_chunks(mixer, x, CHUNKS[cut])[0], want)


@names
@pytest.mark.parametrize(
    ("before", "after"),
    # autograd does not accept tensors from inference mode
    [("no_grad", "grad"), ("no_grad", "inference"), ("inference", "no_grad")],
)
def test_state_continues_in_another_grad_mode(name, before, after):
    mixer, x = make(name, causal=True), tokens(2, 5)
    want = mixer(x)[:, 3:].detach()
    with MODES[before]():
        _, state = mixer(x[:, :3], return_state=True)
    with MODES[after]():
        first, state = mixer.step(x[:, 3], state)
        second, _ = mixer.step(x[:, 4], state)
    same(torch.stack([first, second], 1).detach(), want)


@names
@modes
def test_padding_in_prefill_is_ignored(name, mode):
    """Only AFT depends on the number of masked tokens, which take up positions."""
    mixer, x, mask = make(name, causal=True), tokens(12, 10), every_mask(7)
    valid = torch.cat([mask, torch.ones(12, 3, dtype=torch.bool)], 1)
    whole = mixer(x, key_mask=valid).detach()
    with MODES[mode]():
        first, state = mixer(x[:, :2], key_mask=mask[:, :2], return_state=True)
        second, state = mixer(x[:, 2:7], key_mask=mask[:, 2:], state=state, return_state=True)
        steps = []
        for t in range(7, 10):
            y, state = mixer.step(x[:, t], state)
            steps.append(y.unsqueeze(1))
        got = torch.cat([first, second, *steps], 1).detach()
    same(got[valid], whole[valid])
    if name != "aft":
        for row in range(12):
            same(got[row, valid[row]], mixer(x[row : row + 1, valid[row]])[0].detach())


@names
def test_mask_of_later_chunk_applies_only_to_that_chunk(name):
    mixer, x, mask = make(name, causal=True), tokens(3, 10), MASKS["holes"](5)
    _, state = mixer(x[:, :5], return_state=True)
    got, state = mixer(x[:, 5:], key_mask=mask, state=state, return_state=True)
    valid = torch.cat([torch.ones_like(mask), mask], 1)
    same(got[mask], mixer(x, key_mask=valid)[:, 5:][mask])
    last = tokens(3, 1, seed=5)
    longer = torch.cat([valid, valid[:, :1]], 1)
    want = mixer(torch.cat([x, last], 1), key_mask=longer)
    same(mixer.step(last[:, 0], state)[0], want[:, -1])


@names
def test_masked_tokens_never_enter_state(name):
    mixer, x, mask = make(name, causal=True), tokens(3, 7), MASKS["holes"](7)
    _, clean = mixer(x, key_mask=mask, return_state=True)
    spoiled = x.masked_fill(~mask.unsqueeze(-1), torch.nan)
    _, dirty = mixer(spoiled, key_mask=mask, return_state=True)
    following = tokens(3, 12, seed=4)[:, 0]
    assert torch.equal(mixer.step(following, clean)[0], mixer.step(following, dirty)[0])


@pytest.mark.parametrize(
    "name", ["ea-6", "ea", "sa-math", "la", "taylor", "aft", "linear-rnn", "ea-6~4"]
)
def test_ensemble_under_vmap_matches_its_members(name):
    members, x, valid = (
        [make(name, causal=True, seed=i) for i in range(3)],
        tokens(3, 6),
        MASKS["holes"](6),
    )
    params, buffers = stack_module_state(members)
    empty = copy.deepcopy(members[0]).to("meta")

    def call(params, buffers):
        return functional_call(empty, (params, buffers), (x,), {"key_mask": valid})

    def loss(*state):
        y = call(*state)
        return y.square().sum(), y

    grads, y = vmap(grad(loss, has_aux=True))(params, buffers)
    for i, member in enumerate(members):
        want = member(x, key_mask=valid)
        same(y[i], want)
        want.square().sum().backward()
        same({n: g[i] for n, g in grads.items()}, {n: p.grad for n, p in member.named_parameters()})
