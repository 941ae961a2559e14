"""Numbers of an expansion, which are compile-time constants of the kernels."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from eattn.ops.expansion import Expansion, Quadrature
from eattn.ops.features import (
    GAUSSIAN_ROOT,
    LOG2E,
    GaussianFeatures,
    TaylorFeatures,
    empty_shift,
    features,
    smallest_den,
)


@dataclass(frozen=True)
class Numbers:
    terms: int
    real: Any  # Triton's dtype of the sums
    empty_shift: float  # finite stand-in for the infinite shift of an empty state
    decays: bool  # whether the call has a log decay
    lift: float  # power of two that multiplies the sums of the backward
    table: tuple[float, ...]  # Taylor: c_n; small grid: ratio of neighbouring features at x = 0
    cap: float = 0.0  # largest |q| whose powers are scaled
    gaussian: bool = False  # the fields below are for Gaussian features only
    spacing: float = 0.0  # h, the distance between nodes
    smallest: float = 0.0  # see ops.features.smallest_den
    max_product: float = 0.0  # see features.bounded
    den_per_gradient: float = 0.0  # see features.min_den
    reach: float = 0.0  # q and k are clamped to it
    wide: bool = False  # features are computed node by node
    nodes: int = 0  # wide grid: N, padded to a power of two
    cutoff: float = 0.0  # wide grid: distance at which a feature becomes 0; 0 for no cutoff
    root: float = 1.0  # features of a small grid are multiplied by its square
    lower: float = 1.0  # root^-2, which removes that factor from keys
    step: float = 0.0  # 4h
    step2: float = 0.0  # 4h log2(e), and its rounding error
    step2_low: float = 0.0
    log2e: float = 0.0
    log2e_low: float = 0.0


@functools.cache
def numbers(expansion: Expansion, dtype: torch.dtype, real: Any, decays: bool) -> Numbers:
    """Return the numbers of an expansion for sums in `dtype`; `real` is Triton's name for it."""
    known, common = features(expansion, dtype), (expansion.terms, real, empty_shift(dtype), decays)
    if isinstance(known, TaylorFeatures):
        # gy q^n / den may be 1e-40 (small gradients, large keys) or 1e30 (large queries, keys near
        # 0). With this factor both are normal float32 numbers.
        lift = 1.0 if dtype == torch.float64 else 2.0**14
        return Numbers(*common, lift=lift, table=tuple(known.c), cap=known.cap)
    assert isinstance(known, GaussianFeatures) and isinstance(expansion, Quadrature)

    def rounded(x: float) -> float:
        return float(torch.tensor(x, dtype=dtype, device="cpu"))

    lift = 1.0 if dtype == torch.float64 or expansion.wide else 2.0**8
    grid: dict[str, Any] = dict(
        gaussian=True,
        lift=lift,
        spacing=expansion.spacing,
        smallest=smallest_den(dtype),
        max_product=known.max_product,
        den_per_gradient=2 * lift / torch.finfo(dtype).max,
        reach=known.reach,
    )
    if expansion.wide:
        cutoff = expansion.cutoff if math.isfinite(expansion.cutoff) else 0.0
        nodes = 1 << (expansion.terms - 1).bit_length()
        return Numbers(*common, table=(), wide=True, nodes=nodes, cutoff=cutoff, **grid)
    step2 = known.step * LOG2E
    return Numbers(
        *common,
        table=tuple(known.ratio),
        root=GAUSSIAN_ROOT,
        lower=GAUSSIAN_ROOT**-2,
        step=known.step,
        step2=rounded(step2),
        step2_low=step2 - rounded(step2),
        log2e=rounded(LOG2E),
        log2e_low=LOG2E - rounded(LOG2E),
        **grid,
    )
