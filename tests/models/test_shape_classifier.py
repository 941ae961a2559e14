"""ShapeClassifier and KernelClassifier: masks, strides, streams, thresholds."""

import numpy as np
import pytest
import torch
from op_helpers import draw
from torch.testing import assert_close

from eattn.models import ClassifierEnsemble, KernelClassifier, ShapeClassifier
from eattn.models.random_kernels import GROUPS, choose_dilations
from eattn.models.shape_classifier import MultiScaleConv

CLOSE = dict(rtol=1e-5, atol=1e-5)


def made(**options):
    torch.manual_seed(0)
    model = ShapeClassifier(2, 3, **dict(dim=8, depth=1, mixer="ea-2") | options)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(module.bias, -1, 1)  # so that masked tokens would not stay 0
    return model.eval()


def kernels_of(x, **options):
    model = KernelClassifier(x.shape[2], 3, **dict(dilations=(1, 2), thresholds=2) | options)
    model.draw([x], torch.Generator().manual_seed(0))
    model.head.weight.copy_(draw(*model.head.weight.shape, seed=3))
    return model


def poisoned(x, mask):
    """Insert NaN between the samples where the mask is False."""
    y = torch.full((*mask.shape, x.shape[2]), torch.nan)
    y[mask] = x.flatten(0, 1)
    return y


@pytest.mark.parametrize("options", [{}, dict(stride=3), dict(causal=True), dict(depth=0)], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_masked_samples_have_no_effect(options, training):
    x, mask = draw(2, 10, 2, seed=0).float(), torch.ones(2, 14, dtype=torch.bool)
    mask[0, [0, 4, 5, 13]] = mask[1, -4:] = False
    model = made(**options)
    model.train(training).dropout.p = 0.0
    want = model(x)
    model = made(**options)
    model.train(training).dropout.p = 0.0
    got = model(poisoned(x, mask), mask)
    assert_close(got, want, **CLOSE)
    got.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_kernels_skip_masked_samples():
    x, mask = draw(2, 30, 2, seed=0).float(), torch.ones(2, 40, dtype=torch.bool)
    mask[0, :10] = mask[1, -6:] = mask[1, [0, 4, 5, 20]] = False
    model = kernels_of(x)
    assert_close(model(poisoned(x, mask), mask), model(x), **CLOSE)


def test_rows_without_valid_samples_are_finite():
    x = torch.full((2, 5, 2), torch.nan)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    for model in (made(), made(stride=2), kernels_of(draw(2, 9, 2, seed=0).float())):
        assert model(x, mask).isfinite().all()


@pytest.mark.parametrize("depth", [0, 1])
def test_step_gives_the_logits_of_every_prefix(depth):
    x, model = draw(2, 50, 2, seed=0).float(), made(causal=True, depth=depth)
    with torch.no_grad():
        every = model(x, every=True)
        assert_close(every[:, 20], model(x[:, :21]), **CLOSE)
        state = None
        for t in range(50):
            logits, state = model.step(x[:, t], state)
            assert_close(logits, every[:, t], **CLOSE)


def test_convolutions_are_centred_unless_causal():
    x = torch.zeros(1, 1, 21)
    x[..., 10] = 1
    for causal, first in ((False, 6), (True, 10)):
        conv = MultiScaleConv(1, 3, (1, 5, 9), causal=causal).eval()
        found = conv(x).abs().sum(1)[0].nonzero().flatten()
        assert found.tolist() == list(range(first, first + 9))


def slow_features(model, x):
    """Return the features of one series [L], kernel by kernel and sample by sample."""
    found = []
    for source, values in enumerate((x, np.diff(x, prepend=x[0]))):
        for number, dilation in enumerate(model.dilations):
            outputs = []
            for kernel in model.kernels[number, source, :, 0].numpy():
                weight = np.zeros((len(kernel) - 1) * dilation + 1)
                weight[::dilation] = kernel
                half = len(weight) // 2
                padded = np.pad(values, half)
                outputs.append(np.correlate(padded, weight, "valid")[source:])
            y = np.array(outputs).reshape(GROUPS, -1, len(x) - source)
            largest, smallest = np.zeros(y.shape[:2]), np.zeros(y.shape[:2])
            for group in range(GROUPS):
                for t in range(y.shape[2]):
                    column = y[group, :, t]
                    largest[group, column.argmax()] += max(column.max(), 0)
                    smallest[group, column.argmin()] += column.min() < 0
            found += [np.sqrt(each.ravel() / y.shape[2]) for each in (largest, smallest)]
            if not source:
                for thresholds in model.thresholds[number].numpy():
                    found.append((np.array(outputs) > thresholds[:, None]).mean(1))
    return np.concatenate(found)


def test_features_match_a_loop_over_samples():
    x = draw(3, 25, 1, seed=0).float()
    model = kernels_of(x)
    want = [slow_features(model, each) for each in x.squeeze(-1).numpy()]
    np.testing.assert_allclose(model.features(x), want, atol=1e-5)


def test_rounding_does_not_change_features():
    """The second channel is constant, as a mark of missing values can be."""
    x = draw(4, 50, 2, seed=0).float()
    x[..., 1] = 0.3
    model = kernels_of(x)
    noisy = x + 1e-6 * draw(4, 50, 2, seed=1).float()
    assert_close(model.features(noisy), model.features(x), rtol=0, atol=1e-3)


def test_each_kernel_reads_few_channels():
    for channels, read in ((1, 1), (3, 2), (6, 3), (40, 8)):
        model = kernels_of(draw(2, 20, channels, seed=0).float())
        assert (model.kernels.abs().sum(-1) > 0).sum(-1).unique().tolist() == [read]
        assert_close(model.kernels.sum(-1), torch.zeros_like(model.kernels[..., 0]), **CLOSE)


def test_dilations_fit_into_the_series():
    assert choose_dilations(1) == choose_dilations(16) == (1,)
    assert choose_dilations(17) == (1, 2)
    assert all(8 * d < 500 for d in choose_dilations(500))


def test_ensemble_weighs_kernels_twice_as_much_as_all_networks():
    x = draw(4, 20, 2, seed=0).float()
    networks, kernels = [made(), made(dim=4)], kernels_of(x)
    with torch.no_grad():
        p, q = (network(x).softmax(-1) for network in networks)
        want = ((p + q) / 2 * kernels(x).softmax(-1) ** 2) ** (1 / 3)
        want = want / want.sum(-1, keepdim=True)
        assert_close(ClassifierEnsemble(networks, kernels)(x).softmax(-1), want)


def test_invalid_calls_raise():
    with pytest.raises(ValueError, match="stride must be 1 for a causal model, got 2"):
        made(causal=True, stride=2)
    with pytest.raises(ValueError, match="every=True needs a causal model"):
        made()(torch.zeros(1, 5, 2), every=True)
    with pytest.raises(ValueError, match="only a causal classifier has a step"):
        made().step(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"x must be \[B, L, 2\]"):
        made()(torch.zeros(1, 5, 3))
