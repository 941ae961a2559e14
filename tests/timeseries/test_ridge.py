"""Ridge regression in closed form against scikit-learn and a loop over left-out samples."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge

from eattn.timeseries.ridge import PENALTIES, SCALES, fit_ridge


def problem(n, p):
    rng = np.random.default_rng(n)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, p))
    x[:, :3] += np.eye(3)[y]
    x[:, -1] = 1.5  # a constant feature is ignored
    return x, y, rng.uniform(0.2, 3, n)


@pytest.mark.parametrize(("n", "p"), [(12, 50), (20, 9)])
def test_logits_match_a_loop_over_left_out_samples(n, p):
    x, y, weight = problem(n, p)
    mean = np.average(x, axis=0, weights=weight)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    z = (x - mean)[:, :-1] / std[:-1] / np.sqrt(p - 1)
    target, share = 2 * np.eye(3)[y] - 1, weight / weight.mean()

    def left_out(penalty):
        rows = []
        for i in range(n):
            kept = np.arange(n) != i
            fold = Ridge(alpha=penalty).fit(z[kept], target[kept], sample_weight=share[kept])
            rows.append(fold.predict(z[[i]])[0])
        return np.array(rows)

    def error(penalty):
        return (share[:, None] * (left_out(penalty) - target) ** 2).mean()

    penalty = min(PENALTIES, key=error)
    found, label = torch.from_numpy(left_out(penalty)), torch.from_numpy(y)

    def entropy(scale):
        losses = F.cross_entropy(scale * found, label, reduction="none", label_smoothing=1 / n)
        return (losses * torch.from_numpy(share)).mean().item()

    scale = min(SCALES, key=entropy)
    expected = scale * Ridge(alpha=penalty).fit(z, target, sample_weight=share).predict(z)
    linear, bias = fit_ridge(torch.from_numpy(x), label, torch.from_numpy(weight))
    assert_allclose((torch.from_numpy(x) @ linear.T + bias).numpy(), expected, atol=1e-8)


def test_samples_without_weight_are_ignored():
    x, y, weight = problem(40, 20)
    weight[::4] = 0
    kept = weight > 0
    both = [
        fit_ridge(*map(torch.from_numpy, each))
        for each in ((x, y, weight), (x[kept], y[kept], weight[kept]))
    ]
    for got, want in zip(*both, strict=True):
        assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
