"""Quantile forecaster: equals its first rule untrained, quantiles in order, causal."""

from statistics import NormalDist

import pytest
import torch
from forecaster_helpers import LEVELS, randomize
from torch.testing import assert_close

from eattn.models import QuantileForecaster

SIZES = dict(tokens=5, rules=4, features=6, plain=2)
B, L, O, H = 3, 20, 4, 7  # batch, tokens, times, steps


def make(levels=LEVELS, **options) -> QuantileForecaster:
    torch.manual_seed(0)
    options = dict(dim=8, depth=2, heads=2, mixer="ea-6+decay", short_conv=4) | options
    return QuantileForecaster(**SIZES, levels=levels, **options).double().eval()


def inputs() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(2)
    draw = dict(generator=g, dtype=torch.float64)
    tokens, rules = torch.randn(B, L, 5, **draw), 3 * torch.randn(B, O, H, 4, **draw)
    origins = torch.randint(L, (B, O), generator=g)
    return tokens, origins, rules, torch.randn(B, O, H, 6, **draw)


def test_untrained_model_equals_the_first_rule():
    tokens, origins, rules, features = inputs()
    q = make()(tokens, origins, rules, features)
    assert q.shape == (B, O, H, 9)
    assert torch.equal(q[..., 4], rules[..., 0])
    normal = torch.tensor([NormalDist().inv_cdf(level) for level in LEVELS], dtype=q.dtype)
    assert_close(q - rules[..., :1], normal.expand_as(q), rtol=0, atol=1e-6)


@pytest.mark.parametrize("levels", [(0.5,), LEVELS, (0.001, 0.1, 0.11, 0.5, 0.999)], ids=len)
@pytest.mark.parametrize("std", [0.3, 5.0])
def test_quantiles_never_cross(levels, std):
    q = randomize(make(levels), std)(*inputs())
    assert (q.diff(dim=-1) > 0).all()
    assert q[..., 0].std() > 0.1


@pytest.mark.parametrize("levels", [(0.1, 0.9), (0.5, 0.1), (0.1, 0.5, 0.5)], ids=str)
def test_levels_ascend_and_contain_the_median(levels):
    with pytest.raises(ValueError, match=r"levels must ascend and contain 0\.5, got"):
        make(levels)


def test_origins_select_the_output_of_the_encoder():
    model, (tokens, origins, rules, features) = randomize(make()), inputs()
    y, _ = model.read(tokens)
    expected = model.quantiles(y[torch.arange(B)[:, None], origins], rules, features)
    assert_close(model(tokens, origins, rules, features), expected)


@pytest.mark.parametrize("mixer", ["ea-6+decay", "sa", "gru"])
def test_steps_equal_the_whole_sequence(mixer):
    model, tokens = randomize(make(mixer=mixer)), inputs()[0]
    expected, _ = model.read(tokens)
    state, found = None, []
    for token in tokens.unbind(1):
        y, state = model.step(token, state)
        found.append(y)
    assert_close(torch.stack(found, 1), expected)
    first, state = model.read(tokens[:, :11])
    second, _ = model.read(tokens[:, 11:], state)
    assert_close(torch.cat([first, second], 1), expected)


def test_forecasts_do_not_depend_on_later_tokens():
    model, (tokens, _, rules, features) = randomize(make()), inputs()
    origins = torch.tensor([[2, 5, 9, 9]]).expand(B, O)
    later = tokens.clone()
    later[:, 10:] = 100.0
    expected = model(tokens, origins, rules, features)
    assert torch.equal(model(later, origins, rules, features), expected)
    later[:, 9] = 100.0
    found = model(later, origins, rules, features)
    assert torch.equal(found[:, :2], expected[:, :2]) and not torch.equal(found, expected)


def test_direct_path_needs_no_state():
    model, (tokens, origins, rules, features) = make(), inputs()
    torch.nn.init.normal_(model.direct.weight)
    found = model.quantiles(None, rules, features)
    assert_close(found, model(tokens, origins, rules, features))  # the head is still zero
    features[..., SIZES["plain"] :] = 9.0
    assert torch.equal(model.quantiles(None, rules, features), found)


def test_far_rule_has_a_bounded_effect():
    model, (tokens, origins, rules, features) = make(), inputs()
    torch.nn.init.normal_(model.direct.weight)
    far, farther = rules.clone(), rules.clone()
    far[..., 2], farther[..., 2] = 1e3, 1e6
    found = [model(tokens, origins, x, features) for x in (far, farther)]
    assert torch.equal(*found)
