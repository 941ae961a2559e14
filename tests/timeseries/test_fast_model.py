"""The NumPy step equals the model in PyTorch."""

import numpy as np
import pytest
import torch
from forecaster_helpers import LEVELS, randomize
from numpy.testing import assert_allclose

from eattn.models import QuantileForecaster
from eattn.timeseries.fast_model import fast_model
from eattn.timeseries.features import STEP_FEATURES
from eattn.timeseries.predictor import from_arrays, to_arrays

T, RULES, FEATURES = 7, 5, STEP_FEATURES + 3
DEFAULT = dict(dim=8, depth=2, heads=2, norm="pre", short_conv=4, mixer="ea-6+decay")


def make(dtype=torch.float64, levels=LEVELS, **options) -> QuantileForecaster:
    torch.manual_seed(0)
    options = DEFAULT | options
    model = QuantileForecaster(T, RULES, FEATURES, STEP_FEATURES, levels, **options)
    for parameter in model.parameters():  # biases and norms start at 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return randomize(model).to(dtype)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(mixer="ea-2+decay"),
        dict(mixer="ea-12+decay"),
        dict(dim=5, depth=1),
        dict(depth=3, short_conv=2, ffn=11, eps=1e-3),
        dict(short_conv=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_equal_the_model(options, batch):
    model = make(**options)
    fast, tokens = fast_model(model), draw(batch, 40, T)
    with torch.no_grad():
        expected, _ = model.read(torch.from_numpy(tokens))
        _, state = model.read(torch.from_numpy(tokens[:, :1]))
        arrays = to_arrays(state)
        for i in range(1, 40):
            y, arrays = fast.step(tokens[:, i], arrays)
            assert_allclose(y, expected[:, i], rtol=1e-12, atol=1e-12)
        like = model.embed.weight
        after, _ = model.step(like.new_zeros(batch, T), from_arrays(state, arrays, like))
        last, _ = fast.step(np.zeros((batch, T)), arrays)  # PyTorch continues from the arrays
    assert_allclose(last, after, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("levels", [LEVELS, (0.025, 0.5), (0.5,)], ids=len)
@pytest.mark.parametrize("shape", [(1, 1), (3, 12), (2, 4, 5)], ids=str)
def test_quantiles_equal_the_model(levels, shape):
    model = make(levels=levels)
    state, features = draw(*shape[:-1], 8), draw(*shape, FEATURES)
    rules = 100 * draw(*shape, RULES)  # some differences are clipped
    with torch.no_grad():
        expected = model.quantiles(*map(torch.from_numpy, (state, rules, features)))
    found = fast_model(model).quantiles(state, rules, features)
    assert found.shape == (*shape, len(levels))
    assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        *(dict(mixer=name) for name in ("ea", "ea-6", "ea-6+gate", "ea-q9", "ea-q9+decay")),
        *(dict(mixer=f"ea-6+decay+{name}") for name in ("norm", "bandwidth", "center")),
        *(dict(mixer=name) for name in ("sa", "gru", "la", "linear-rnn", "deltanet")),
        dict(norm="post"),
        dict(short_conv=None),
    ],
    ids=str,
)
def test_other_encoders_are_not_supported(options):
    assert fast_model(make(**options)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_states_keep_their_dtype(dtype):
    model = make(dtype)
    tokens = torch.from_numpy(draw(1, 20, T)).to(dtype)
    with torch.no_grad():
        expected, _ = model.read(tokens)
        _, state = model.read(tokens[:, :10])
    arrays = to_arrays(state)
    types = {name: x.dtype for name, x in arrays.items()}
    for i in range(10, 20):
        y, arrays = fast_model(model).step(tokens[:, i].double().numpy(), arrays)
    assert {name: x.dtype for name, x in arrays.items()} == types
    assert_allclose(y, expected[:, -1], atol=1e-4 if dtype == torch.float32 else 1e-12)


def test_long_streams_stay_finite():
    fast = fast_model(make())
    with torch.no_grad():
        arrays = to_arrays(make().read(torch.zeros(1, 1, T, dtype=torch.float64))[1])
    size = sum(x.nbytes for x in arrays.values())
    for token in 5 * draw(2000, T):
        y, arrays = fast.step(token[None], arrays)
    assert np.isfinite(y).all() and sum(x.nbytes for x in arrays.values()) == size
