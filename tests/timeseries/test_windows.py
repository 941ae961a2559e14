"""Windows, what is rolled out from them, and what is learnt from which."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from eattn.models import Forecaster
from eattn.timeseries.conformal import extended, offsets
from eattn.timeseries.dataset import Material
from eattn.timeseries.inputs import rows_of
from eattn.timeseries.regularize import records
from eattn.timeseries.rollout import read, roll_out
from eattn.timeseries.windows import WindowCases, Windows, errors, forecast, rollout_loss


def model_of(channels: int, **options) -> Forecaster:
    torch.manual_seed(0)
    model = Forecaster(channels, dim=8, depth=2, heads=2, residual=True, **options).double()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# ---- rolling out ---------------------------------------------------------------------------------


def test_with_one_lag_it_is_the_models_own_rollout():
    model, x = model_of(2, calendar=("hour",)), draw(3, 9, 2)
    hours = torch.arange(13).reshape(1, -1, 1).expand(3, -1, -1)
    reading = read(model, x, calendar=hours[:, :9])
    y = roll_out(model, reading, 4, calendar=hours[:, 9:])
    assert_close(y, model.rollout(x, 4, calendar=hours))


def test_a_token_holds_the_last_values_the_newest_first():
    class Spy(torch.nn.Module):
        channels = 6

        def forward(self, tokens, **options):
            self.tokens = tokens
            return None, None

    spy, x = Spy(), draw(1, 4, 2)
    reading = read(spy, x)
    expected = torch.stack([torch.cat([x[0, max(t - k, 0)] for k in range(3)]) for t in range(4)])
    assert_close(spy.tokens[0], expected)
    assert_close(reading.last, x[:, 1:])


@pytest.mark.parametrize("lags", [1, 3, 20])
def test_reading_in_parts_is_reading_at_once(lags):
    model, x = model_of(lags), draw(2, 11, 1)
    once, parts = read(model, x), None
    for piece in (x[:, :1], x[:, 1:7], x[:, 7:]):
        parts = read(model, piece, before=parts)
    assert_close(roll_out(model, parts, 5), roll_out(model, once, 5))


def test_padding_in_front_changes_nothing():
    model, x = model_of(3), draw(2, 6, 1)
    padded = torch.cat([x[:, :1].expand(-1, 4, -1), x], 1)
    mask = torch.arange(10).expand(2, -1) >= 4
    assert_close(
        roll_out(model, read(model, padded, key_mask=mask), 5), roll_out(model, read(model, x), 5)
    )


def test_channels_must_be_a_multiple_of_the_series():
    with pytest.raises(ValueError, match="a model of 3 channels cannot read a series of 2"):
        read(model_of(3), draw(1, 4, 2))


# ---- windows -------------------------------------------------------------------------------------


def test_a_window_is_its_past_and_what_follows():
    values, times = torch.arange(20.0).unsqueeze(1), torch.arange(20).unsqueeze(1)
    cases = WindowCases(values, times, [3, 0, 11], window=4, horizon=2)
    batch = cases.collate([2, 0])
    assert len(cases) == 3
    assert batch.x[:, :, 0].tolist() == [[*range(11, 17)], [*range(3, 9)]]
    assert_close(batch.calendar, batch.x.long())
    assert batch.real is None and batch.known is None
    with pytest.raises(ValueError, match=r"starts must be from 0 to 14 .* got 3 to 15"):
        WindowCases(values, None, [3, 15], window=4, horizon=2)


def test_pasts_vary_from_batch_to_batch_but_not_from_time_to_time():
    cases = WindowCases(torch.zeros(200, 1), None, range(90), window=100, horizon=2, vary=0)
    lengths = [cases.collate([i, i + 1]).x.shape[1] - 2 for i in range(89)]
    assert lengths == [cases.collate([i, i + 1]).x.shape[1] - 2 for i in range(89)]
    assert min(lengths) == 1 and max(lengths) > 80
    assert 5 < np.median(lengths) < 20  # log-uniform: the median is near the root
    assert cases.collate([7]).x.shape[1] - 2 <= 100


def test_the_loss_is_the_mean_error_of_the_models_own_forecast():
    model, x = model_of(3), draw(4, 9, 1)
    loss, weight = rollout_loss(model, Windows(x), 3)
    expected = (roll_out(model, read(model, x[:, :6]), 3) - x[:, 6:]).abs().mean()
    assert_close(loss, expected)
    assert weight == 12
    [gradient] = torch.autograd.grad(loss, model.embed.values.project.weight)
    assert gradient.abs().max() > 0


def test_unknown_values_are_no_part_of_the_loss():
    model, x = model_of(1), draw(2, 9, 1)
    known = torch.ones(2, 9, dtype=torch.bool)
    known[0, 7:] = False
    loss, weight = rollout_loss(model, Windows(x, known=known), 3)
    changed = x.clone()
    changed[0, 7:] = 1e6
    assert_close(rollout_loss(model, Windows(changed, known=known), 3)[0], loss)
    assert weight == 4
    error = forecast(model, Windows(x), 3) - x[:, 6:]
    assert_close(loss, error[known[:, 6:]].abs().mean())


def test_errors_are_those_of_each_window_in_order():
    model, x = model_of(2), draw(30, 1)
    known = torch.arange(30) != 10
    cases = WindowCases(x, None, [0, 5, 20], window=6, horizon=3, known=known)
    found = errors(model, cases, batch_size=2)
    assert found.shape == (3, 3, 1)
    assert found.isnan().squeeze(-1).nonzero().tolist() == []  # row 10 is in the past of one only
    batch = cases.collate([1])
    assert_close(found[1:2], batch.x[:, 6:] - forecast(model, batch, 3).detach())
    cases = WindowCases(x, None, [2], window=6, horizon=3, known=known)
    assert errors(model, cases).isnan().flatten().tolist() == [False, False, True]


# ---- what is learnt from -------------------------------------------------------------------------

OPTIONS = dict(window=None, context=8, horizon=2, fraction=0.25)


def material(data, **changes) -> Material:
    return Material(records(rows_of(data)), **OPTIONS | changes)


def ends(cases: WindowCases) -> list[int]:
    """The first value that each window must foretell, by its number in a single series."""
    return [int(cases.columns.x[start + cases.window, 0]) for start in cases.starts]


def plain(data: list[float], **changes) -> Material:
    """With values that are not scaled, to know them again."""
    made = material(data, **changes)
    made.x = made.x * made.scales[0].std + made.scales[0].mean
    return made


def test_the_last_part_of_a_series_is_held_out_and_not_learnt_from():
    made = plain([*map(float, range(20))])
    learnt, held = made.learnt(0), made.held_out(100)
    assert ends(learnt) == [*range(1, 14)]  # 13 and 14 are the last to foretell
    assert ends(held) == [15, 16, 17, 18]
    assert made.scales[0].mean == pytest.approx(np.mean(range(15)))


def test_windows_of_a_series_do_not_reach_into_the_one_before():
    data = pd.DataFrame({"unique_id": ["a"] * 20 + ["b"] * 9, "ds": [*range(20), *range(9)]})
    made = material(data.assign(y=np.arange(29.0)))
    cases = made.learnt(0)
    first = cases.starts[len(range(1, 14))]
    batch = WindowCases(made.x, None, [first], made.window, 2, real=made.real).collate([0])
    assert batch.real[0].tolist() == [False] * 7 + [True] * 3


def test_with_a_window_every_past_is_whole():
    made = plain([*map(float, range(20))], window=6)
    assert ends(made.learnt(0)) == [*range(6, 14)]
    assert made.learnt(0).columns.real is None


def test_windows_that_foretell_nothing_known_are_left_out():
    data = [float(i) for i in range(20)]
    data[5:9] = [np.nan] * 4
    made = plain(data)
    cases = made.learnt(0)
    assert len(cases) == len(range(1, 14)) - 3
    known = cases.columns.known
    assert known[8:].logical_not().nonzero().flatten().tolist() == [5, 6, 7, 8]
    assert made.x[8 + 5 : 8 + 9, 0].tolist() == pytest.approx([4.0] * 4)


def test_no_more_is_held_out_than_is_needed_nor_where_nothing_would_be_left():
    assert material(np.arange(10_000.0)).held == [50 * 2]
    assert material(np.arange(8.0)).held == [2]
    assert material(np.arange(4.0)).held == [0]
    assert material(np.arange(100.0), fraction=0).held == [0]
    assert len(material(np.arange(300.0)).held_out(10)) == 10


# ---- quantiles -----------------------------------------------------------------------------------


def test_offsets_cover_at_least_their_share_of_errors_in_any_order():
    """Of n + 1 errors in random order the last is below the bound as often as said, or more."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4000, 20))
    low, high = np.array([offsets(row[:19, None], [0.1, 0.9]).ravel() for row in drawn]).T
    assert (drawn[:, 19] <= high).mean() == pytest.approx(0.9, abs=0.02)
    assert (drawn[:, 19] <= low).mean() == pytest.approx(0.1, abs=0.02)


def test_offsets_are_by_step_and_rise_with_the_level():
    found = offsets(np.random.default_rng(0).normal(size=(7, 3)), np.linspace(0.01, 0.99, 50))
    assert found.shape == (50, 3)
    assert (np.diff(found, axis=0) >= 0).all()
    assert offsets(np.array([[1.0, np.nan], [3.0, 5.0]]), [0.5]).tolist() == [[3.0, 5.0]]
    assert extended(np.array([[1.0, 2.0]]), 4).tolist() == [[1.0, 2.0, 2.0, 2.0]]
