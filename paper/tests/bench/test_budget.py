"""The memory model and the search for what fits, on costs that are known."""

import pytest

from paper.bench.budget import ATTEMPTS, GAP, GRAIN, Memory, fit, parse_bytes, search

LINEAR = Memory(12e6, 670e3, 0.0)
QUADRATIC = Memory(12e6, 670e3, 650.0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500 MB", 500_000_000), ("1e9", 10**9), ("1.5K", 1500), ("7B", 7)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "eight", "-1GiB", "0", "8 gigs", "1.2.3GB", "iB"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(ValueError, match=f"budget must be a size such as 8GiB .* got {text!r}"):
        parse_bytes(text)


@pytest.mark.parametrize("true", [LINEAR, QUADRATIC, Memory(0.0, 5.0, 0.0), Memory(0.0, 0.0, 2.0)])
def test_the_model_is_found_from_few_points(true):
    sizes = [(1, 256), (1, 512), (1, 2048), (4, 512)]
    found = fit((batch, L, true.bytes(batch, L)) for batch, L in sizes)
    assert found.bytes(8, 1024) == pytest.approx(true.bytes(8, 1024), rel=1e-6)
    assert min(found) >= 0


def test_a_little_noise_makes_no_term_negative():
    noisy = zip((256, 512, 1024, 2048), (1.01, 0.98, 1.02, 0.99), strict=True)
    found = fit((1, L, noise * LINEAR.bytes(1, L)) for L, noise in noisy)
    assert min(found) >= 0
    assert found.bytes(1, 4096) == pytest.approx(LINEAR.bytes(1, 4096), rel=0.05)


def test_two_lengths_are_too_few():
    with pytest.raises(LookupError, match="three lengths"):
        fit([(1, 256, 1.0), (2, 256, 2.0), (1, 512, 3.0)])


@pytest.mark.parametrize("memory", [LINEAR, QUADRATIC, Memory(0.0, 0.0, 3.0)])
@pytest.mark.parametrize("batch", [1, 16])
def test_the_longest_takes_all_the_room(memory, batch):
    length = memory.longest(batch, 8e9)
    assert memory.bytes(batch, length) == pytest.approx(8e9)


def test_without_room_nothing_fits():
    assert LINEAR.longest(1, 10e6) == 0


# ---- search --------------------------------------------------------------------------------------


def searched(first: float, limit: int) -> tuple:
    """What a search finds when up to `limit` tokens fit, and what it tried."""
    tried = []

    def fits(length: int) -> bool:
        assert length not in tried, "tried twice"
        tried.append(length)
        return length <= limit

    return search(first, fits), tried


def test_a_good_guess_takes_two_tries():
    found, tried = searched(9900, 10_000)
    assert tried == [9888, 10_368]
    assert found == (9888, 10_368)


@pytest.mark.parametrize("limit", [31, 32, 33, 100, 1000, 12_345, 300_000])
@pytest.mark.parametrize("factor", [0.3, 0.9, 1.0, 1.04, 1.5, 3.0])
def test_the_search_ends_with_one_that_fits_and_one_that_does_not(limit, factor):
    found, tried = searched(factor * limit, limit)
    assert len(tried) <= ATTEMPTS
    assert all(length % GRAIN == 0 for length in tried)
    if limit < GRAIN:
        assert found == (None, GRAIN)
        return
    assert found.fits <= limit < found.fails
    assert found.fails <= max(found.fits * (1 + GAP), found.fits + GRAIN)


def test_a_search_that_finds_no_end_gives_up():
    found, tried = searched(64, 10**12)
    assert found.fits == max(tried)
    assert found.fails is None
    assert len(tried) == ATTEMPTS
