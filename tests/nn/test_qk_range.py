"""QKRange: exact EA does not depend on the center, and a series gets more accurate."""

import copy

import pytest
import torch
from mixer_helpers import tokens
from torch.utils.checkpoint import checkpoint

from eattn import Quadrature, Taylor, ea_series
from eattn.nn import ElementwiseAttention, make_mixer
from eattn.nn.qk_range import SPREAD

MASK = torch.ones(3, 20, dtype=torch.bool)
MASK[1, 12:] = False
MASK[2] = False
OFFSETS = torch.tensor([0, 7, 7, 20], dtype=torch.int32)


def layer(**options) -> ElementwiseAttention:
    torch.manual_seed(0)
    made = ElementwiseAttention(6, **options).double()
    with torch.no_grad():
        made.in_proj.bias[:12] = torch.linspace(-2, 2, 6).repeat(2)  # move q and k away from 0
    return made


def train_on(made: ElementwiseAttention, x: torch.Tensor, key_mask=None) -> torch.Tensor:
    y = made(x, key_mask=key_mask)
    y.square().sum().backward()
    return y


def same_weights(made: ElementwiseAttention, **options) -> ElementwiseAttention:
    other = layer(**options)
    other.load_state_dict(made.state_dict(), strict=False)
    return other


@pytest.mark.parametrize("given", [{}, {"key_mask": MASK}, {"context": tokens(3, 9, 6, seed=4)}])
def test_centering_does_not_change_exact_attention(given):
    x = tokens(3, 20, 6)
    plain = layer(order=None)
    centered = same_weights(plain, order=None, center="mean")
    torch.testing.assert_close(centered(x, **given), plain(x, **given))


def test_each_packed_sequence_is_centered_separately():
    made, x = layer(center="mean"), tokens(1, 20, 6)
    alone = [made(x[:, a:b]) for a, b in ((0, 7), (7, 20))]
    torch.testing.assert_close(made(x, cu_seqlens=OFFSETS), torch.cat(alone, 1))
    mask = torch.rand(1, 20, generator=torch.Generator().manual_seed(1)) > 0.4
    alone = [made(x[:, a:b], key_mask=mask[:, a:b]) for a, b in ((0, 7), (7, 20))]
    torch.testing.assert_close(made(x, key_mask=mask, cu_seqlens=OFFSETS), torch.cat(alone, 1))


@pytest.mark.parametrize("causal", [False, True])
def test_centering_brings_series_closer_to_exact_attention(causal):
    x = tokens(3, 50, 6)
    exact, plain = layer(order=None, causal=causal), layer(order=6, causal=causal)
    centered = layer(order=6, causal=causal, center="learned" if causal else "mean")
    centered.train()
    train_on(centered, x)  # sets the learned center
    centered.eval()
    errors = [float((made(x) - exact(x)).detach().norm()) for made in (plain, centered)]
    assert errors[1] < errors[0] / 3


def test_learned_center_is_a_running_mean_of_keys():
    made, x = layer(causal=True, center="learned").train(), tokens(3, 20, 6)
    _, k, _ = made._project(x, None)
    before = train_on(made, x, MASK)
    torch.testing.assert_close(made.placement.running, k[MASK].mean(0).to(torch.float64))
    first = made.placement.running.clone()
    assert not torch.allclose(made(x, key_mask=MASK), before)  # the first call used 0
    train_on(made, x + 1)
    moved = (made.placement.running - first).norm()
    assert 0 < moved < 0.2 * (made._project(x + 1, None)[1].mean((0, 1)) - first).norm()
    made.eval()
    settled = made.placement.running.clone()
    train_on(made, x)
    assert torch.equal(made.placement.running, settled)


@pytest.mark.parametrize("reentrant", [False, True])
def test_learned_center_moves_once_under_gradient_checkpointing(reentrant):
    plain = layer(causal=True, center="learned").train()
    checkpointed = copy.deepcopy(plain)
    for seed in (1, 2):  # the center is 0 in the first step only
        x = tokens(2, 20, 6, seed=seed).requires_grad_()
        train_on(plain, x)
        y = checkpoint(checkpointed, x, use_reentrant=reentrant)
        y.square().sum().backward()
    assert torch.equal(checkpointed.placement.running, plain.placement.running)
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_learned_center_needs_training_mode_and_enabled_gradients():
    made = layer(causal=True, center="learned").train()
    with torch.no_grad():
        made(tokens(2, 20, 6))
    assert not made.placement.running.any()
    made.requires_grad_(False)  # frozen weights in training mode still update it
    made(tokens(2, 20, 6))
    assert made.placement.running.any()


def test_learned_center_is_saved_and_decodes():
    made, x = layer(causal=True, center="learned", bandwidth=True).train(), tokens(2, 20, 6)
    train_on(made, x)
    made.eval()
    other = layer(causal=True, center="learned", bandwidth=True)
    other.load_state_dict(made.state_dict())
    other.eval()
    y, state = made(x[:, :19], return_state=True)
    last, _ = other.step(x[:, 19], state)
    torch.testing.assert_close(torch.cat([y, last.unsqueeze(1)], 1), made(x))


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_qk_norm_makes_output_independent_of_weight_scale(scale):
    made, x = layer(qk_norm=True), tokens(3, 20, 6)
    y = made(x)
    with torch.no_grad():
        made.in_proj.weight[:12] *= scale
        made.in_proj.bias[:12] *= scale
    torch.testing.assert_close(made(x), y, rtol=1e-3, atol=1e-3)  # up to the epsilon of rms_norm
    q, k, _ = made.qkv(x)
    for part in (q, k):
        torch.testing.assert_close(
            part.square().mean(-1), torch.full((3, 20), SPREAD**2).double(), rtol=1e-3, atol=0
        )


def test_bandwidth_scales_queries_and_keys():
    made, x = layer(bandwidth=True), tokens(3, 20, 6)
    with torch.no_grad():
        made.placement.bandwidth.copy_(torch.linspace(0.5, 1.5, 6))
    q, k, v = made._project(x, None)
    b = made.placement.bandwidth
    torch.testing.assert_close(made(x), made.out_proj(ea_series(q * b, k * b, v)))
    made(x).square().sum().backward()
    assert b.grad.abs().min() > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name", ["ea-6+norm", "ea-q9+bandwidth+center", "ea-q25r12+bandwidth", "ea+center+norm"]
)
def test_mixer_names_select_options(name, causal):
    made = make_mixer(name, 8, causal=causal)
    expansions = {"ea-6": Taylor(6), "ea-q9": Quadrature(9), "ea-q25r12": Quadrature(25, 12)}
    assert made.expansion == expansions.get(name.partition("+")[0])
    assert made.placement.qk_norm == ("norm" in name)
    assert (made.placement.bandwidth is not None) == ("bandwidth" in name)
    center = ("learned" if causal else "mean") if "center" in name else None
    assert made.placement.center == center
    assert f"bandwidth={'bandwidth' in name}, center={center!r}" in repr(made)
    assert made(torch.randn(2, 5, 8)).shape == (2, 5, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_mixer("sa+norm", 8), "the only options of sa are: \\+rope"),
        (
            lambda: make_mixer("ea-6+width", 8),
            "\\+width, but the only options of ea-6 are: \\+norm",
        ),
        (lambda: make_mixer("gru+gate", 8), "the only options of gru are: none"),
        (lambda: ElementwiseAttention(8, center="median"), "center must be None or one of mean"),
        (lambda: ElementwiseAttention(8, center="mean", causal=True), "needs causal=False"),
        (
            lambda: layer(center="mean")(tokens(1, 3, 6), return_state=True),
            "return_state cannot be",
        ),
    ],
)
def test_invalid_options_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
