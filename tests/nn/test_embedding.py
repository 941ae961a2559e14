"""Embeddings of values, positions and times against their formulas."""

import copy
import datetime as dt
import random

import numpy as np
import pytest
import torch
from op_helpers import draw
from torch.testing import assert_close

from eattn.nn.embedding import (
    FIELDS,
    CalendarEmbedding,
    LearnedPositions,
    TokenEmbedding,
    calendar_fields,
)

RIGHT = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], dtype=torch.bool)
KINDS = pytest.mark.parametrize("kind", ["linear", "conv"])


def test_linear_embedding_maps_each_token():
    embed, x = TokenEmbedding(3, 4).double(), draw(2, 5, 3, seed=0)
    assert_close(embed(x), x @ embed.project.weight.T + embed.project.bias)


def test_conv_embedding_has_width_3_and_zero_padding():
    embed, x = TokenEmbedding(3, 4, kind="conv").double(), draw(2, 5, 3, seed=0)
    before, at, after = embed.project.weight.unbind(2)
    zero = torch.zeros(2, 1, 3, dtype=torch.float64)
    left, right = torch.cat([zero, x[:, :-1]], 1), torch.cat([x[:, 1:], zero], 1)
    expected = left @ before.T + x @ at.T + right @ after.T + embed.project.bias
    assert_close(embed(x), expected)


@KINDS
def test_padding_changes_no_embedding_and_gets_no_gradient(kind):
    embed, x = TokenEmbedding(3, 4, kind=kind).double(), draw(2, 5, 3, seed=0)
    padded = x.masked_fill(~RIGHT.unsqueeze(-1), torch.nan).requires_grad_()
    y = embed(padded, RIGHT)
    for row, n in enumerate((4, 2)):
        assert_close(y[row, :n], embed(x[row : row + 1, :n])[0])
    y[RIGHT].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in embed.parameters())
    assert not padded.grad[~RIGHT].any() and padded.grad[RIGHT].all()


def test_unknown_kind_raises():
    with pytest.raises(ValueError, match="kind must be one of linear, conv, got 'fourier'"):
        TokenEmbedding(3, 4, kind="fourier")
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        TokenEmbedding(0, 4)


def test_positions_are_added_from_start():
    positions, x = LearnedPositions(4, 10).double(), draw(2, 5, 4, seed=0)
    assert_close(positions(x), x + positions.table.weight[:5])
    assert_close(positions(x, start=5), x + positions.table.weight[5:])
    y = positions(x, torch.tensor([0, 5]))
    assert_close(y[0], x[0] + positions.table.weight[:5])
    assert_close(y[1], x[1] + positions.table.weight[5:])


@pytest.mark.parametrize("flip", [False, True], ids=["right", "left"])
def test_positions_count_only_valid_tokens(flip):
    positions, x = LearnedPositions(4, 10).double(), draw(2, 5, 4, seed=0)
    mask = RIGHT.flip(1) if flip else RIGHT
    y = positions(x, torch.tensor([0, 3]), mask)
    assert_close(y[0, mask[0]], x[0, mask[0]] + positions.table.weight[:4])
    assert_close(y[1, mask[1]], x[1, mask[1]] + positions.table.weight[3:5])


def test_padding_takes_up_no_positions():
    positions, x = LearnedPositions(4, 4), torch.randn(2, 5, 4)
    assert positions(x, key_mask=RIGHT).isfinite().all()
    with pytest.raises(ValueError, match="L = 5 at start = 1 needs 5 positions, but max_len = 4"):
        positions(x, 1, RIGHT)


def test_invalid_positions_raise():
    positions = LearnedPositions(4, 10)
    for start in (6, torch.tensor([0, 6])):
        with pytest.raises(ValueError, match="L = 5 at start = 6 needs 11 positions, but max_len"):
            positions(torch.randn(2, 5, 4), start)
    for start in (-1, torch.tensor([0, -1])):
        with pytest.raises(ValueError, match="start must be at least 0, got -1"):
            positions(torch.randn(2, 5, 4), start)
    with pytest.raises(ValueError, match=r"x must be \[B, L, D\] with D = dim = 4"):
        positions(torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match=r"start must be an int or \[B\] = \[2\]"):
        positions(torch.randn(2, 5, 4), torch.tensor([1, 2, 3]))
    with pytest.raises(TypeError, match="max_len must be an int, got float"):
        LearnedPositions(4, 10.0)


def some_calendar(*shape: int, fields=tuple(FIELDS)) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    columns = [torch.randint(a, b + 1, shape, generator=rng) for a, b in map(FIELDS.get, fields)]
    return torch.stack(columns, -1)


@pytest.mark.parametrize("fields", [tuple(FIELDS), ("hour", "month"), ("minute",)], ids=str)
def test_calendar_embedding_is_sum_over_fields(fields):
    embed, calendar = CalendarEmbedding(4, fields).double(), some_calendar(2, 5, fields=fields)
    y = embed(calendar)
    for b in range(2):
        for i in range(5):
            values = zip(fields, calendar[b, i].tolist(), strict=True)
            rows = [embed.tables[name].weight[value - FIELDS[name][0]] for name, value in values]
            assert_close(y[b, i], torch.stack(rows).sum(0))


def test_calendar_values_out_of_range_raise():
    for column, (name, (low, high)) in enumerate(FIELDS.items()):
        for wrong in (low - 1, high + 1):
            calendar = some_calendar(2, 5)
            calendar[1, 3, column] = wrong
            with pytest.raises(ValueError, match=f"{name} must be between {low} and {high}, got"):
                CalendarEmbedding(4)(calendar)
    ends = torch.tensor(list(FIELDS.values())).T  # [2, F]
    assert CalendarEmbedding(4)(ends).shape == (2, 4)
    assert CalendarEmbedding(4)(ends[1]).shape == (4,)
    assert CalendarEmbedding(4)(ends[1].int()).shape == (4,)


def test_masked_calendar_values_are_ignored():
    embed, calendar = CalendarEmbedding(4), some_calendar(2, 5)
    y = embed(calendar)
    assert_close(embed(calendar.masked_fill(~RIGHT.unsqueeze(-1), -99), RIGHT)[RIGHT], y[RIGHT])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CalendarEmbedding(4, ("year",)), ValueError, "month, day, weekday, hour, minute"),
        (lambda: CalendarEmbedding(4, ("hour", "hour")), ValueError, "without repetition"),
        (lambda: CalendarEmbedding(4, ()), ValueError, "at least one name"),
        (lambda: CalendarEmbedding(4, "hour"), TypeError, "got the string 'hour'"),
        (lambda: CalendarEmbedding(4)(some_calendar(2).float()), TypeError, "got torch.float32"),
        (lambda: CalendarEmbedding(4)([[1]]), TypeError, "got list"),
        (
            lambda: CalendarEmbedding(4)(some_calendar(2)[:, :4]),
            ValueError,
            r"\[..., 5\] for month",
        ),
        (lambda: calendar_fields([1.5]), TypeError, "got float64"),
        (lambda: calendar_fields(np.arange(3)), TypeError, r"astype\('datetime64\[ns\]'\)"),
        (lambda: calendar_fields(["soon"]), TypeError, "soon"),
        (lambda: calendar_fields([dt.datetime.now(dt.UTC)]), TypeError, "timezone"),
        (lambda: calendar_fields(["2020-01-01"], ("era",)), ValueError, "fields must be among"),
    ],
)
def test_invalid_calendar_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_error_for_missing_time_gives_its_index():
    times = np.array([["2020-01-01", "2020-01-02"], ["NaT", "2020-01-03"]], dtype="datetime64[s]")
    with pytest.raises(ValueError, match=r"NaT at index \(1, 0\)"):
        calendar_fields(times)


def moments() -> list[dt.datetime]:
    """Return random minutes from 1850 to 2150, leap days, and the ends of years and epochs."""
    rng = random.Random(0)
    first = dt.datetime(1850, 1, 1)
    drawn = [first + dt.timedelta(minutes=rng.randrange(300 * 365 * 1440)) for _ in range(2000)]
    leap = [dt.datetime(y, 2, 29, 23, 59) for y in (1852, 1904, 1968, 2000, 2024, 2096)]
    edges = [dt.datetime(y, 12, 31, 23, 59) for y in (1899, 1969, 1999)]
    return [*drawn, *leap, *edges, dt.datetime(1970, 1, 1), dt.datetime(1900, 3, 1)]


def as_python(at: dt.datetime) -> list[int]:
    return [at.month, at.day, at.weekday(), at.hour, at.minute]


@pytest.mark.parametrize("unit", ["m", "s", "ms", "us", "ns"])
def test_fields_match_python_datetime(unit):
    times = np.array(moments(), dtype="datetime64[us]").astype(f"datetime64[{unit}]")
    assert calendar_fields(times).tolist() == [as_python(at) for at in moments()]


@pytest.mark.parametrize(("unit", "kept"), [("h", 4), ("D", 3), ("M", 1)])
def test_coarse_units_mean_start_of_period(unit, kept):
    times = np.array(moments(), dtype="datetime64[us]").astype(f"datetime64[{unit}]")
    fields = calendar_fields(times)
    expected = torch.tensor([as_python(at) for at in moments()])
    assert_close(fields[:, :kept], expected[:, :kept])
    if unit != "M":
        assert not fields[:, kept:].any()
    else:
        assert (fields[:, 1] == 1).all()


def test_datetimes_strings_and_arrays_give_same_fields():
    at = [dt.datetime(2024, 2, 29, 23, 59), dt.datetime(1969, 7, 20, 20, 17)]
    expected = torch.tensor([as_python(x) for x in at])
    assert_close(calendar_fields(at), expected)
    assert_close(calendar_fields(["2024-02-29T23:59", "1969-07-20T20:17"]), expected)
    assert_close(calendar_fields(np.array(at, dtype="datetime64[s]")[:, None]), expected[:, None])
    assert_close(calendar_fields(np.datetime64(at[0])), expected[0])
    assert_close(calendar_fields(at, ("hour", "day")), expected[:, [3, 1]])


def test_empty_times_give_empty_fields():
    fields = calendar_fields(np.array([], dtype="datetime64[s]"))
    assert fields.shape == (0, 5) and CalendarEmbedding(4)(fields).shape == (0, 4)


def test_embeddings_survive_state_dict_and_deepcopy():
    for make, inputs in (
        (lambda: TokenEmbedding(3, 4, kind="conv"), torch.randn(2, 5, 3)),
        (lambda: LearnedPositions(4, 10), torch.randn(2, 5, 4)),
        (lambda: CalendarEmbedding(4), some_calendar(2, 5)),
    ):
        one, other = make(), make()
        other.load_state_dict(one.state_dict())
        assert torch.equal(one(inputs), other(inputs))
        assert torch.equal(one(inputs), copy.deepcopy(one)(inputs))
