"""Every mixer: values and gradients against its formula, masks, causality and packing."""

from itertools import pairwise

import pytest
import torch
from mixer_helpers import (
    CAUSAL_ONLY,
    HEADED,
    MASKS,
    NAMES,
    both_forms,
    differentiate,
    every_mask,
    fresh,
    literal,
    make,
    names,
    same,
    tokens,
)
from op_helpers import poisoned_memory

from eattn import Taylor
from eattn.nn import MIXERS, ElementwiseAttention, make_mixer

# [B, L, dim], heads: one token, and one past chunks of 64, of 128 (la) and of 256 (taylor)
SHAPES = [
    ((1, 1, 6), 1),
    ((2, 65, 12), 3),
    ((2, 129, 10), 5),
    ((1, 257, 8), 2),
]


@both_forms
@pytest.mark.parametrize(("shape", "heads"), SHAPES, ids=str)
def test_mixer_matches_formula(name, causal, shape, heads):
    B, L, dim = shape
    dim -= name not in HEADED  # odd if there are no heads
    mixer, x = make(name, dim, heads=heads, causal=causal), tokens(B, L, dim).requires_grad_()
    y = mixer(x)
    assert y.shape == x.shape
    same(differentiate(mixer, x, y), differentiate(mixer, x, literal(mixer, x)))


@both_forms
@pytest.mark.parametrize("L", [7, 130])
def test_masked_mixer_matches_formula_over_valid_tokens(name, causal, L):
    mixer, valid = make(name, causal=causal), every_mask(L) if L == 7 else MASKS["holes"](L)
    x = tokens(len(valid), L).requires_grad_()
    want = differentiate(mixer, x, literal(mixer, x, valid), valid)
    same(differentiate(mixer, x, mixer(x, key_mask=valid), valid), want)
    same(mixer(x, key_mask=torch.ones_like(valid)), mixer(x))


@both_forms
def test_row_without_tokens_gives_bias(name, causal):
    mixer, x = make(name, causal=causal), tokens(3, 7).requires_grad_()
    y = mixer(x, key_mask=MASKS["a row without tokens"](7))
    bias = getattr(mixer, "mixer", mixer).out_proj.bias
    same(y[1], bias.expand_as(y[1]))
    assert y.isfinite().all()
    others = [p for p in mixer.parameters() if p is not bias]
    grads = torch.autograd.grad(y[1].sum(), [x, *others], allow_unused=True, materialize_grads=True)
    assert not any(grad.any() for grad in grads)


@both_forms
def test_masked_tokens_are_never_read(name, causal):
    mixer, x, valid = make(name, causal=causal), tokens(12, 9), every_mask(9)
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype).repeat(4)
    results = []
    for inputs in (x.clone(), torch.where(valid.unsqueeze(-1), x, bad)):
        y = mixer(inputs.requires_grad_(), key_mask=valid)
        assert y.isfinite().all()  # also at masked tokens, which a later layer may multiply by 0
        results.append(differentiate(mixer, inputs, y))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not results[1][1][~valid].any()


@names
@pytest.mark.parametrize("L", [9, 300])
def test_later_tokens_do_not_change_earlier_outputs(name, L):
    mixer, x = make(name, causal=True), tokens(2, L)
    before = mixer(x)[:, : L - 4]
    for new in (0.0, 3.0, -1e3, 1e6):
        changed = x.clone()
        changed[:, L - 4 :] = new
        after = mixer(changed)[:, : L - 4]
        if name == "aft":  # weights are relative to the largest key, which may come later
            torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
        else:
            assert torch.equal(after, before)


@names
def test_only_visible_tokens_get_gradients(name):
    """Non-causal recurrences are bidirectional."""
    x = tokens(1, 70).requires_grad_()
    (grad,) = torch.autograd.grad(make(name, causal=True)(x)[:, 30].sum(), x)
    assert not grad[:, 31:].any() and (grad[:, :31] != 0).any(-1).all()
    for i in () if name in CAUSAL_ONLY else (0, 69):
        (grad,) = torch.autograd.grad(make(name, causal=False)(x)[:, i].sum(), x)
        assert (grad != 0).any(-1).all()


@both_forms
def test_packed_sequences_match_separate_sequences(name, causal):
    mixer = make(name, causal=causal)
    for offsets, dtype in ((0, 7, 7, 8, 140), torch.int32), ((0, 0, 5), torch.int64):
        x = tokens(1, offsets[-1]).requires_grad_()
        alone = torch.cat([mixer(x[:, a:b]) for a, b in pairwise(offsets) if b > a], 1)
        packed = mixer(x, cu_seqlens=torch.tensor(offsets, dtype=dtype))
        same(differentiate(mixer, x, packed), differentiate(mixer, x, alone))
    clean, x = mixer(tokens(1, 12), cu_seqlens=torch.tensor([0, 5, 12])), tokens(1, 12)
    x[:, 2] = torch.nan  # must not leave its sequence
    assert torch.equal(mixer(x, cu_seqlens=torch.tensor([0, 5, 12]))[:, 5:], clean[:, 5:])


@both_forms
def test_empty_input_gives_empty_output(name, causal):
    mixer = make(name, causal=causal)
    for shape in (0, 5, 12), (2, 0, 12):
        x = tokens(*shape).requires_grad_()
        for y in (mixer(x), mixer(x, key_mask=torch.ones(shape[:2], dtype=torch.bool))):
            assert y.shape == shape
            (grad,) = torch.autograd.grad(y.sum(), [x], materialize_grads=True)
            assert not grad.any()


@both_forms
def test_memory_layout_does_not_matter(name, causal):
    mixer, x = make(name, causal=causal), tokens(2, 70).requires_grad_()
    want = differentiate(mixer, x, mixer(x))
    with poisoned_memory():
        same(differentiate(mixer, x, mixer(x)), want)
    odd, mask = x.permute(2, 1, 0).contiguous().permute(2, 1, 0), MASKS["holes"](70)[:2]
    same(mixer(odd), mixer(x))
    same(mixer(odd, key_mask=mask), mixer(x, key_mask=mask))


def test_known_mixers_cover_paper_and_later_baselines():
    assert set(MIXERS) == {
        "ea-q17",
        *("ea-6+decay", "ea-6+gate", "deltanet", "la+gate", "sa+rope"),
        *("ea", "ea-2", "ea-6", "sa", "sa-math", "la", "aft", "taylor", "gru", "linear-rnn"),
    }
    for order in range(0, 17, 2):
        mixer = make_mixer(f"ea-{order}", 6)
        assert isinstance(mixer, ElementwiseAttention) and mixer.expansion == Taylor(order)
    assert make_mixer("ea", 6).expansion is None


def test_repr_shows_options():
    for name in NAMES:
        mixer = fresh(name, 12, heads=3, causal=True)
        assert "dim=12" in repr(mixer) and "causal=True" in repr(mixer)
        assert ("heads=3" in repr(mixer)) == (name in HEADED)


@pytest.mark.parametrize("option", ["", "+rope"])
def test_sa_and_sa_math_are_the_same_function(option):
    for causal in (False, True):
        a, b = (make(name + option, causal=causal) for name in ("sa", "sa-math"))
        b.load_state_dict(a.state_dict())
        x = tokens(3, 70)
        holes = MASKS["holes"](70)
        same(a(x, key_mask=holes), b(x, key_mask=holes))


def test_gru_is_that_of_torch():
    for causal in (False, True):
        mixer, x = make("gru", causal=causal), tokens(2, 7)
        assert type(mixer.gru) is torch.nn.GRU and mixer.gru.bidirectional is not causal
        same(mixer(x), mixer.out_proj(mixer.gru(x)[0]))


@pytest.mark.parametrize("name", NAMES)
def test_new_mixers_roughly_preserve_variance(name):
    """The output for a single token of unit variance is neither tiny nor huge."""
    torch.manual_seed(0)
    y = fresh(name, 96, heads=6, causal=name in CAUSAL_ONLY)(torch.randn(64, 1, 96)).detach()
    assert 0.02 < y.std() < 2


def test_linear_rnn_starts_with_memories_from_2_to_512():
    mixer = make_mixer("linear-rnn", 64, causal=True)
    keep = torch.sigmoid(mixer.in_proj.bias[:64]).detach()
    assert float(keep.min()) == pytest.approx(1 / 2, abs=0.01)
    assert float(keep.max()) == pytest.approx(1 - 1 / 512, abs=1e-4)
