"""ShapeClassifier and KernelClassifier: masks, strides, streams, thresholds."""

import numpy as np
import pytest
import torch
from op_helpers import draw
from torch.testing import assert_close

from eattn.models import ClassifierEnsemble, KernelClassifier, ShapeClassifier
from eattn.models.random_kernels import KERNELS, choose_dilations
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
    model.set_thresholds([x], torch.Generator().manual_seed(0))
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


def test_kernels_skip_masked_samples_at_the_end():
    x = draw(2, 30, 2, seed=0).float()
    mask = torch.arange(40).expand(2, 40) < 30
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


def test_features_are_shares_of_outputs_above_thresholds():
    """The first kernel of the first part, computed by hand."""
    x = draw(3, 25, 1, seed=0).float()
    model = kernels_of(x, dilations=(2,))
    weight = np.full(17, 0.0)
    weight[::2] = [2, 2, 2, -1, -1, -1, -1, -1, -1]  # dilated by 2
    for row, values in zip(model.features(x), x.squeeze(-1).numpy(), strict=True):
        y = np.correlate(values, weight, "same")
        assert row[0] == pytest.approx((y > model.thresholds[0, 0, 0].item()).mean())


def test_each_kernel_reads_few_channels():
    model = kernels_of(draw(2, 20, 12, seed=0).float())
    count = model.reads.sum(-1)
    assert count.min() == 1
    assert 3 < count.max() <= 9
    assert model.thresholds.shape == (4, 2, KERNELS)


def test_dilations_fit_into_the_series():
    assert choose_dilations(1) == choose_dilations(16) == (1,)
    assert choose_dilations(17) == (1, 2)
    assert all(8 * d < 500 for d in choose_dilations(500))


def test_ensemble_weighs_kernels_as_much_as_all_networks():
    x = draw(4, 20, 2, seed=0).float()
    networks, kernels = [made(), made(dim=4)], kernels_of(x)
    with torch.no_grad():
        p, q = (network(x).softmax(-1) for network in networks)
        want = ((p + q) / 2 + kernels(x).softmax(-1)) / 2
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
