"""Augmentation: lengths, masks and flags are kept, values change a little."""

import torch
from torch.testing import assert_close

from eattn.timeseries.augment import augment


def waves(B=6, L=50):
    time = torch.arange(L) / L
    return torch.sin(6 * time).expand(B, L).unsqueeze(-1).repeat(1, 1, 2)


def test_series_change_but_stay_close():
    torch.manual_seed(0)
    x = waves()
    y = augment(x, None, 2)
    assert y.shape == x.shape
    assert 0.01 < (y - x).abs().mean() < 0.3
    assert not torch.equal(y[0], y[1])


def test_masked_samples_stay_zero_and_are_not_read():
    torch.manual_seed(0)
    x, mask = waves(), torch.arange(50) < torch.tensor([50, 30, 2, 1, 0, 7]).unsqueeze(1)
    x[~mask] = 1000.0
    y = augment(x, mask, 2)
    assert (y[~mask] == 0).all()
    assert y.abs().max() < 3


def test_missing_values_stay_zero_and_flags_binary():
    torch.manual_seed(0)
    x = waves()
    seen = (torch.rand(6, 50, 1) > 0.4).float()
    both = augment(torch.cat([x[..., :1] * seen, seen], -1), None, 1)
    value, flag = both[..., :1], both[..., 1:]
    assert set(flag.unique().tolist()) == {0.0, 1.0}
    assert (value[flag == 0] == 0).all()


def test_same_seed_gives_the_same_series():
    x = waves()
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(augment(x, None, 2))
    assert_close(*found, rtol=0, atol=0)
