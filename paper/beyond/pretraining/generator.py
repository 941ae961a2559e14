"""Synthetic series for pretraining: no real data, so nothing leaks and the licence is clear.

A series is a sum or a product of parts that are drawn at random: trend, seasons, a smooth Gaussian
process, and noise. Some series become counts, intermittent demand or saturated signals. Then come
level shifts, outliers and missing values. The season lengths are those of a random frequency or
arbitrary; some series have seasons that are not declared, or declare seasons that they do not have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter  # type: ignore[import-untyped]

Array = NDArray[np.float64]
Rng = np.random.Generator
# Season lengths of frequencies and their weights: 15 minutes, hours, half hours, days, business
# days, weeks, months, quarters, years.
FREQUENCIES: dict[tuple[int, ...], float] = {
    (96, 672): 2.0,
    (24, 168): 3.0,
    (48, 336): 1.0,
    (7,): 2.0,
    (7, 365): 0.5,
    (5,): 1.0,
    (52,): 1.5,
    (12,): 3.0,
    (4,): 1.5,
    (): 3.0,
}
ARBITRARY = 0.15  # share of series with one season of arbitrary length
UNDECLARED, ABSENT = 0.05, 0.1  # shares of series with wrong declarations
LONGEST = 400  # of an arbitrary season


def draw_seasons(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the season lengths of a series, and those that are declared to the model."""
    if rng.random() < ARBITRARY:
        seasons: tuple[int, ...] = (int(np.exp(rng.uniform(np.log(2), np.log(LONGEST)))),)
    else:
        seasons = _pick(rng, FREQUENCIES)
    present = () if rng.random() < ABSENT else seasons
    declared = () if rng.random() < UNDECLARED else seasons
    return present, declared


def generate(rng: Rng, length: int, seasons: Sequence[int]) -> Array:
    """Return a random series of at least ten values with these season lengths; NaN is missing."""
    values = _disturb(rng, _transform(rng, _compose(rng, length, seasons)))
    return _with_gaps(rng, values * 10.0 ** rng.uniform(-3, 5))


def _compose(rng: Rng, length: int, seasons: Sequence[int]) -> Array:
    """Return trend, seasons, smooth process and noise, with random relative sizes."""
    parts = [_pick(rng, TRENDS)(rng, length) * rng.choice([0, 0.3, 1, 3], p=[0.3, 0.3, 0.25, 0.15])]
    for m in seasons:
        size = rng.choice([0.2, 1.0, 3.0], p=[0.3, 0.45, 0.25])
        parts.append(size * season(rng, length, m))
    if rng.random() < 0.4:
        parts.append(rng.uniform(0.2, 1.5) * smooth(rng, length))
    noise = _pick(rng, NOISES)(rng, length) * np.exp(rng.uniform(np.log(0.02), np.log(1.5)))
    if rng.random() < 0.25:
        noise = noise * _changing_size(rng, length)
    together = np.sum(parts, axis=0)
    if seasons and rng.random() < 0.15:  # seasons and noise grow with the level
        level = np.exp(0.5 * _standard(parts[0]))
        return level * (together - parts[0] + noise + 3)
    return together + noise


# ---- parts ----


def _no_trend(rng: Rng, length: int) -> Array:
    return np.zeros(length)


def _line(rng: Rng, length: int) -> Array:
    return np.linspace(0, rng.choice([-1, 1]), length) * rng.uniform(0.5, 3)


def _broken_line(rng: Rng, length: int) -> Array:
    count = int(rng.integers(2, 6))
    at = np.sort(rng.uniform(0, length, count))
    return np.interp(np.arange(length), np.r_[0, at, length], rng.normal(size=count + 2))


def _growth(rng: Rng, length: int) -> Array:
    return np.exp(np.linspace(0, rng.uniform(0.3, 2.5), length)) * rng.choice([-1, 1], p=[0.2, 0.8])


def _logistic(rng: Rng, length: int) -> Array:
    t = (np.arange(length) / length - rng.uniform(0.1, 0.9)) * rng.uniform(5, 25)
    return rng.choice([-2, 2]) / (1 + np.exp(-t))


def _walk(rng: Rng, length: int) -> Array:
    """Return a random walk with a drift from negligible to dominant."""
    drift = rng.normal() * 10.0 ** rng.uniform(-2, 0.3)
    steps = rng.normal(drift, 1, length) / np.sqrt(length)
    return 2 * np.cumsum(steps)


def _damped_walk(rng: Rng, length: int) -> Array:
    """Return a walk whose slope changes slowly, as in exponential smoothing with a trend."""
    rate = rng.uniform(0.8, 0.99)
    slope = lfilter([1], [1, -rate], rng.normal(size=length))
    return _standard(np.cumsum(slope))


TRENDS: dict[Callable[[Rng, int], Array], float] = {
    _no_trend: 2.0,
    _line: 2.0,
    _broken_line: 1.5,
    _growth: 0.7,
    _logistic: 0.7,
    _walk: 3.0,
    _damped_walk: 1.0,
}


def season(rng: Rng, length: int, period: int) -> Array:
    """Return a periodic signal whose shape and size may change slowly."""
    shape = _standard(_pick(rng, SHAPES)(rng, period)) if period > 2 else np.array([1.0, -1.0])
    phase = rng.integers(period)
    count = length // period + 2
    profile = np.tile(shape, (count, 1))
    if rng.random() < 0.3:  # the shape changes from season to season
        profile = profile + rng.uniform(0.02, 0.2) * np.cumsum(
            rng.normal(size=(count, period)), axis=0
        )
    if rng.random() < 0.3:
        profile = profile * _changing_size(rng, count)[:, None]
    if rng.random() < 0.1:  # every season has its own size
        profile = profile * rng.gamma(4, 0.25, size=(count, 1))
    found: Array = profile.ravel()[phase : phase + length]
    return found


def _waves(rng: Rng, period: int) -> Array:
    count = int(rng.integers(1, min(period // 2, 8) + 1))
    harmonic = np.arange(1, count + 1)[:, None]
    size = rng.normal(size=(count, 1)) / harmonic ** rng.uniform(0, 1.5)
    angle = 2 * np.pi * (harmonic * np.arange(period) / period + rng.random((count, 1)))
    found: Array = (size * np.sin(angle)).sum(0)
    return found


def _bumps(rng: Rng, period: int) -> Array:
    """Return a flat profile with a few peaks, such as rush hours."""
    found = np.zeros(period)
    for _ in range(int(rng.integers(1, 4))):
        apart = np.abs(np.arange(period) - rng.uniform(0, period))
        apart = np.minimum(apart, period - apart) / (period * rng.uniform(0.02, 0.2))
        found += rng.normal() * np.exp(-0.5 * apart**2)
    return found


def _blocks(rng: Rng, period: int) -> Array:
    """Return a profile with two or three levels, such as working days and weekends."""
    edges = np.sort(rng.integers(0, period, int(rng.integers(2, 4))))
    return np.asarray(rng.normal(size=4)[np.searchsorted(edges, np.arange(period))])


def _free(rng: Rng, period: int) -> Array:
    return rng.normal(size=period)


SHAPES: dict[Callable[[Rng, int], Array], float] = {
    _waves: 4.0,
    _bumps: 2.0,
    _blocks: 1.5,
    _free: 1.0,
}


def smooth(rng: Rng, length: int) -> Array:
    """Return a sample of a stationary Gaussian process with a random kernel.

    It is drawn in the frequency domain on a circle of twice the length.
    """
    count = length + 1
    frequency = np.arange(count) / (2 * length)  # cycles per step
    scale = np.exp(rng.uniform(np.log(3), np.log(length)))  # length scale in steps
    kind = rng.integers(3)
    if kind == 0:  # squared exponential
        power = np.exp(-2 * (np.pi * scale * frequency) ** 2)
    elif kind == 1:  # Matérn
        power = (1 + (2 * np.pi * scale * frequency) ** 2) ** -rng.choice([1.0, 2.0, 3.0])
    else:  # a power law
        power = np.maximum(frequency, 1 / (2 * length)) ** -rng.uniform(0.5, 3)
    power[0] = 0
    wave = np.sqrt(power) * (rng.normal(size=count) + 1j * rng.normal(size=count))
    return _standard(np.fft.irfft(wave)[:length])


def _white(rng: Rng, length: int) -> Array:
    return rng.normal(size=length)


def _heavy(rng: Rng, length: int) -> Array:
    return rng.standard_t(rng.uniform(2.5, 6), size=length)


def _skewed(rng: Rng, length: int) -> Array:
    shape = rng.uniform(0.5, 4)
    return (rng.gamma(shape, size=length) - shape) / np.sqrt(shape)


def _autoregressive(rng: Rng, length: int) -> Array:
    """Return ARMA noise with random stable roots."""
    roots = rng.uniform(-0.6, 0.98, int(rng.integers(1, 3)))
    averaging = rng.uniform(-0.9, 0.9, int(rng.integers(0, 2)))
    warmup = 100
    noise = lfilter(np.poly(averaging), np.poly(roots), rng.normal(size=length + warmup))
    return _standard(noise[warmup:])


NOISES: dict[Callable[[Rng, int], Array], float] = {
    _white: 3.0,
    _heavy: 1.0,
    _skewed: 0.7,
    _autoregressive: 3.0,
}


def _changing_size(rng: Rng, length: int) -> Array:
    """Return positive factors that change slowly around 1."""
    found: Array = np.exp(rng.uniform(0.1, 0.6) * smooth(rng, max(length, 4))[:length])
    return found


# ---- whole series ----


def _transform(rng: Rng, x: Array) -> Array:
    """Return counts, intermittent demand, a saturated or positive signal, or the series itself."""
    kind = rng.random()
    if kind < 0.08:  # counts
        rate = np.exp(np.clip(rng.uniform(0.2, 1) * _standard(x) + rng.uniform(-1, 4), -5, 8))
        return rng.poisson(rate).astype(np.float64)
    if kind < 0.14:  # intermittent demand
        often = 1 / (1 + np.exp(-(_standard(x) + rng.uniform(-3, 0.5))))
        size = 1 + rng.poisson(np.exp(rng.uniform(-1, 3)), len(x))
        return np.where(rng.random(len(x)) < often, size, 0).astype(np.float64)
    if kind < 0.2:  # saturated, such as solar power at night or a full tank
        low, high = np.quantile(x, [rng.uniform(0, 0.5), rng.uniform(0.8, 1)])
        return np.clip(x, low, high) - low
    if kind < 0.35:  # positive and skewed
        return np.exp(rng.uniform(0.1, 1) * _standard(x))
    if kind < 0.42:  # whole numbers
        return np.round(_standard(x) * rng.uniform(2, 50) + rng.uniform(0, 200))
    return x + rng.normal() * 10.0 ** rng.uniform(-1, 1.5) * (np.std(x) + 1e-9)


def _disturb(rng: Rng, x: Array) -> Array:
    """Add level shifts and outliers to some series."""
    spread = np.std(x) + 1e-9
    if rng.random() < 0.1:
        for at in rng.integers(0, len(x), int(rng.integers(1, 4))):
            x = x + np.where(np.arange(len(x)) >= at, rng.normal() * 2 * spread, 0)
    if rng.random() < 0.1:
        hit = rng.random(len(x)) < rng.uniform(0.002, 0.02)
        x = np.where(hit, x + rng.standard_t(2, len(x)) * 4 * spread, x)
    return x


def _with_gaps(rng: Rng, x: Array) -> Array:
    """Remove single values or blocks of values from some series; the first value stays."""
    if rng.random() >= 0.08:
        return x
    x = x.copy()
    x[1:][rng.random(len(x) - 1) < rng.uniform(0, 0.1)] = np.nan
    for at in rng.integers(1, len(x), int(rng.integers(0, 3))):
        x[at : at + int(rng.integers(2, 30))] = np.nan
    return x


def _pick(rng: Rng, choices: dict[Any, float]) -> Any:
    weights = np.array(list(choices.values()))
    return list(choices)[rng.choice(len(weights), p=weights / weights.sum())]


def _standard(x: Array) -> Array:
    spread = np.std(x)
    found: Array = (x - np.mean(x)) / (spread if spread > 1e-9 else 1.0)
    return found
