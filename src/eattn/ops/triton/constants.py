"""What the kernels know of an expansion: numbers that their compiler sees."""

import functools
from dataclasses import dataclass
from typing import Any

import torch

from eattn.ops.expansion import Expansion
from eattn.ops.features import LOG2E, ROOT, Bells, Powers, far, features


@dataclass(frozen=True)
class Numbers:
    terms: int
    real: Any  # Triton's name of what sums are kept in
    far: float  # stands for the infinite shift of no keys, where inf - inf would be NaN
    lift: float  # a power of two that the backward's sums are kept times
    table: tuple[float, ...]  # Taylor: c_n; Quadrature: how neighbouring bells compare at x = 0
    cap: float = 0.0  # of a |q| whose powers are scaled
    bells: bool = False  # and what else there is of them
    reach: float = 0.0  # beyond which q and k count as there
    root: float = 1.0  # of what they are raised by
    lower: float = 1.0  # takes that back from keys
    step: float = 0.0  # 4h
    step2: float = 0.0  # 4h log2(e), and what rounding took from it
    step2_low: float = 0.0
    log2e: float = 0.0
    log2e_low: float = 0.0
    edge: float = 0.0  # see features.felt
    most: float = 0.0  # see features.bounded
    tiny: float = 0.0  # see features.least
    smallest: float = 0.0


@functools.cache
def numbers(expansion: Expansion, dtype: torch.dtype, real: Any) -> Numbers:
    """`dtype` is what sums are kept in, and `real` Triton's name for it."""
    known = features(expansion, dtype)
    if isinstance(known, Bells):
        return _bells(known, dtype, real)
    assert isinstance(known, Powers)
    return Numbers(
        terms=expansion.terms,
        real=real,
        far=far(dtype),
        # gy q^n / den is 1e-40 with small gradients and large keys, and 1e30 with large queries and
        # keys near 0: this puts both among the floats.
        lift=1.0 if dtype == torch.float64 else 2.0**14,
        table=tuple(known.c),
        cap=known.cap,
    )


def _bells(known: Bells, dtype: torch.dtype, real: Any) -> Numbers:
    def rounded(x: float) -> float:
        return float(torch.tensor(x, dtype=dtype, device="cpu"))

    lift = 1.0 if dtype == torch.float64 else 2.0**8
    step2 = known.step * LOG2E
    return Numbers(
        terms=len(known.c),
        real=real,
        far=far(dtype),
        lift=lift,
        table=tuple(known.ratio),
        bells=True,
        reach=known.reach,
        root=ROOT,
        lower=ROOT**-2,
        step=known.step,
        step2=rounded(step2),
        step2_low=step2 - rounded(step2),
        log2e=rounded(LOG2E),
        log2e_low=LOG2E - rounded(LOG2E),
        edge=known.edge,
        most=known.most,
        tiny=known.tiny,
        smallest=2 * lift / torch.finfo(dtype).max,
    )
