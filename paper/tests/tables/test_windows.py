"""Windows: where datasets are cut, and that no predicted row is in two parts."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from paper.tables.windows import Cuts, cuts, windows

PARTS = ("train", "val", "test")


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("ETTh1", 17420, (8640, 11520, 14400)),
        ("ETTm2", 69680, (34560, 46080, 57600)),
        ("Traffic", 17544, (12280, 14036, 17544)),
        (None, 10, (7, 8, 10)),
    ],
)
def test_sets_are_cut_where_the_literature_cuts_them(name, length, expected):
    assert cuts(name, length) == expected


def targets(starts: np.ndarray, window: int, horizon: int) -> set[int]:
    return {row for start in starts for row in range(start + window, start + window + horizon)}


@pytest.mark.parametrize(("window", "horizon"), [(1, 1), (6, 12), (20, 3)])
def test_no_target_is_in_two_chronological_parts_and_none_is_left_out(window, horizon):
    at = Cuts(50, 70, 97)
    rows = [targets(windows(at, window, horizon, part), window, horizon) for part in PARTS]
    assert rows == [set(range(window, 50)), set(range(50, 70)), set(range(70, 97))]


def test_a_chronological_part_holds_every_window_once_and_in_order():
    at = Cuts(50, 70, 97)
    assert_array_equal(windows(at, 6, 12, "train"), np.arange(0, 50 - 6 - 12 + 1))
    assert_array_equal(windows(at, 6, 12, "val"), np.arange(50 - 6, 70 - 6 - 12 + 1))
    assert_array_equal(windows(at, 6, 12, "test"), np.arange(70 - 6, 97 - 6 - 12 + 1))


def test_a_window_longer_than_the_training_part_starts_at_the_first_row():
    assert windows(Cuts(5, 10, 20), 8, 1, "val").tolist() == [0, 1]


def test_random_parts_share_out_all_windows_as_the_cuts_do():
    at = Cuts(700, 800, 1000)
    parts = [windows(at, 6, 6, part, split="random") for part in PARTS]
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1000 - 12 + 1))
    assert [len(part) for part in parts] == [692, 99, 198]


def test_random_parts_are_a_function_of_the_seed():
    at = Cuts(700, 800, 1000)
    one, same, other = (windows(at, 6, 6, "test", split="random", seed=s) for s in (0, 0, 1))
    assert_array_equal(one, same)
    assert set(one) != set(other)


def test_random_parts_leak():
    at = Cuts(700, 800, 1000)
    train, test = (targets(windows(at, 6, 6, p, split="random"), 6, 6) for p in ("train", "test"))
    assert len(test & train) > 0.9 * len(test)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(window=0), "window must be at least 1, got 0"),
        (dict(horizon=0), "horizon must be at least 1, got 0"),
        (dict(part="valid"), "part must be one of train, val, test, got 'valid'"),
        (dict(split="shuffled"), "split must be 'chronological' or 'random', got 'shuffled'"),
        (dict(window=19), "20 rows give no window of 19 . 2 rows for train"),
        (dict(horizon=5, part="val"), "20 rows give no window of 3 . 5 rows for val"),
        (dict(window=19, split="random"), "20 rows give no window of 19 . 2 rows"),
    ],
    ids=str,
)
def test_what_will_not_do_is_named(options, reason):
    with pytest.raises(ValueError, match=reason):
        windows(Cuts(14, 16, 20), **(dict(window=3, horizon=2, part="train") | options))


def test_a_set_too_short_for_its_months_is_named():
    with pytest.raises(ValueError, match="ETTh2 must have 14400 rows to be cut by months, got 99"):
        cuts("ETTh2", 99)
