"""Measure the error of each element-wise attention layer relative to exact EA.

An expansion is accurate for small q and k, and training determines how large they become.
`diagnose` runs a batch through the model, records q, k and v of every layer, and compares the
layer's expansion and other candidates with exact EA. Two of the candidates are grids that are as
wide as the layer's q and k.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eattn.nn import ElementwiseAttention
from eattn.ops import Expansion, Quadrature, Taylor, ea, ea_series
from eattn.ops.expansion import DEFAULT_SPACING, MAX_SPACING, NODE_COUNTS

CANDIDATES: list[Expansion] = [*map(Taylor, range(2, 17, 2)), *map(Quadrature, range(7, 34, 2))]
GAUSSIAN_COST = 4 / 3  # time of a Gaussian feature relative to a Taylor feature
TOKENS, ROWS = 1024, 16  # limits of the compared tokens and sequences, since EA is quadratic
HELD = 0.999  # fraction of q and k that a recommended grid holds
EDGE = 1.5  # distance from the edge of a grid at which weights are within 1e-5 of those inside
HEADER = [
    *("layer", "mixer", "std(q)", "std(k)", "max", "error"),
    *("outside(q)", "outside(k)", "cheapest", "grids"),
]


@dataclass(frozen=True, eq=False)
class Layer:
    """Measurements of one layer.

    Attributes
    ----------
    name : str
        Name of the module.
    expansion : Taylor, Quadrature or None
        Expansion of the layer; None for exact EA.
    q_spread, k_spread : Tensor, shape (D,)
        Standard deviation of q and k by channel.
    q_largest, k_largest : Tensor, shape (D,)
        Largest absolute value of q and k by channel.
    error : Tensor, shape (D,)
        Error of the layer's expansion relative to exact EA by channel.
    q_outside, k_outside : Tensor, shape (D,)
        Fraction of q and of k outside the accurate range of the expansion by channel: off the grid
        of a quadrature, or too large for a Taylor polynomial.
    grids : tuple of Quadrature
        Smallest grids with nodes 0.5 and 1 apart that hold 99.9 % of q and k with a margin. The
        first is exact EA to 1e-4; the second has half the state and a coarser kernel. A grid that
        would need more than 1,025 nodes is omitted.
    errors : mapping of expansion to float
        Error of each candidate over all channels.
    """

    name: str
    expansion: Expansion | None
    q_spread: Tensor
    k_spread: Tensor
    q_largest: Tensor
    k_largest: Tensor
    error: Tensor
    q_outside: Tensor
    k_outside: Tensor
    grids: tuple[Quadrature, ...]
    errors: Mapping[Expansion, float]

    @property
    def total(self) -> float:
        """Relative error of the layer's own expansion over all channels."""
        return 0.0 if self.expansion is None else self.errors[self.expansion]

    def cheapest(self, tolerance: float) -> Expansion | None:
        """Return the cheapest candidate within `tolerance`, or None if all exceed it."""
        good = (e for e, error in self.errors.items() if error <= tolerance)
        return min(good, key=lambda e: e.terms * (GAUSSIAN_COST if e.radius else 1), default=None)


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of all layers in the order of execution; `str` formats a table."""

    layers: tuple[Layer, ...]
    tolerance: float

    def __str__(self) -> str:
        rows = [HEADER, *(self._cells(layer) for layer in self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
        notes = [
            f"error: relative to exact EA; cheapest: mixer with an error within {self.tolerance:g}",
            "outside: off the grid, or too large for the Taylor series",
            f"grids: hold {HELD:.1%} of q and k; nodes are 0.5 apart (exact EA to 1e-4),"
            " or 1 apart (half the state)",
        ]
        return "\n".join([*(line.rstrip() for line in lines), *notes])

    def _cells(self, layer: Layer) -> list[str]:
        largest = max(float(layer.q_largest.max()), float(layer.k_largest.max()))
        return [
            layer.name,
            name_of(layer.expansion),
            f"{float(layer.q_spread.mean()):.2f}",
            f"{float(layer.k_spread.mean()):.2f}",
            f"{largest:.1f}",
            f"{layer.total:.1e}",
            f"{float(layer.q_outside.mean()):.1%}",
            f"{float(layer.k_outside.mean()):.1%}",
            name_of(layer.cheapest(self.tolerance)),
            ", ".join(map(name_of, layer.grids)),
        ]


def diagnose(
    model: nn.Module, batch: Any, *, tolerance: float = 1e-2, candidates: Sequence[Expansion] = ()
) -> Diagnosis:
    """Compare every element-wise attention layer of a model with exact EA on a batch.

    Parameters
    ----------
    model : nn.Module
        Model to examine; it is not changed.
    batch : Tensor, tuple or dict
        Arguments of the model. At most 16 sequences of 1,024 tokens are compared.
    tolerance : float, default 0.01
        Largest relative error of the cheapest expansion that is reported.
    candidates : sequence of Taylor and Quadrature, optional
        Expansions to compare; by default all orders, quadratures of up to 33 nodes, and the grids
        that are as wide as q and k.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from eattn.models import SequenceClassifier
    >>> model = SequenceClassifier(3, 2, dim=16, depth=2, mixer="ea-6")
    >>> found = diagnose(model, torch.randn(4, 50, 3))
    >>> [layer.name for layer in found.layers]
    ['encoder.blocks.0.mixer', 'encoder.blocks.1.mixer']
    >>> bool(found.layers[0].total < 0.1)
    True
    """
    check_tolerance(tolerance)
    training = model.training
    try:
        model.eval()
        with torch.no_grad(), watching(model, candidates) as found:
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(*(batch if isinstance(batch, tuple | list) else [batch]))
    finally:
        model.train(training)
    return Diagnosis(tuple(found), tolerance)


@contextmanager
def watching(model: nn.Module, candidates: Sequence[Expansion] = ()) -> Iterator[list[Layer]]:
    """Measure each layer when it first runs inside the block; raise if none runs."""
    waiting = {m: name for name, m in model.named_modules() if isinstance(m, ElementwiseAttention)}
    if not waiting:
        raise ValueError(f"{type(model).__name__} has no element-wise attention layer")
    found: list[Layer] = []

    def measure(layer: Any, args: Any, kwargs: Any, _: Any) -> None:
        if layer in waiting:
            found.append(_examine(waiting.pop(layer), layer, candidates, *args, **kwargs))

    hooks = [layer.register_forward_hook(measure, with_kwargs=True) for layer in waiting]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError("no element-wise attention layer was called")


def check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be above 0 and below 1, got {tolerance}")


def name_of(expansion: Expansion | None) -> str:
    """Return the name of the mixer with this expansion, such as ea-6, ea-q17 or ea."""
    return "ea" if expansion is None else f"ea-{expansion}"


def _examine(
    name: str,
    layer: ElementwiseAttention,
    candidates: Sequence[Expansion],
    x: Tensor,
    key_mask: Tensor | None = None,
    *,
    context: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> Layer:
    if cu_seqlens is not None:
        raise ValueError(
            "diagnose does not support packed batches; use key_mask instead of cu_seqlens"
        )
    q, k, v = layer.qkv(x, key_mask=key_mask, context=context)
    q, k, v = (part[:ROWS, :TOKENS].double() for part in (q, k, v))
    mask = None if key_mask is None else key_mask[:ROWS, :TOKENS]
    query_mask = mask if context is None else None
    options: Any = dict(causal=layer.causal, key_mask=mask)

    # Use float64, so that rounding does not hide the error of an expansion.
    if layer.decay is None:
        exact = ea(q, k, v, **options)
    else:
        log_decay = layer.decay(x).double().expand_as(x)[:ROWS, :TOKENS]
        exact = _decayed_ea(q, k, v, log_decay, mask)
        options["log_decay"] = log_decay
    exact = _valid(exact, query_mask)
    queries, keys = _valid(q, query_mask), _valid(k, mask)
    grids = _grids(torch.cat([queries, keys]))
    tried = candidates or [*CANDIDATES, *grids]
    errors, own = {}, torch.zeros_like(exact[0])
    for expansion in dict.fromkeys([*tried, layer.expansion or tried[0]]):
        y = _valid(ea_series(q, k, v, expansion=expansion, **options), query_mask)
        errors[expansion] = float((y - exact).norm() / exact.norm())
        if expansion == layer.expansion:
            own = (y - exact).norm(dim=0) / exact.norm(dim=0)
    return Layer(
        name,
        layer.expansion,
        q_spread=queries.std(0),
        k_spread=keys.std(0),
        q_largest=queries.abs().amax(0),
        k_largest=keys.abs().amax(0),
        error=own,
        q_outside=_outside(queries, layer.expansion),
        k_outside=_outside(keys, layer.expansion),
        grids=grids,
        errors=errors,
    )


def _decayed_ea(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, mask: Tensor | None) -> Tensor:
    """Compute causal exact EA with decay: y_i = sum_j softmax_j(G_i - G_j - (q_i - k_j)^2) v_j.

    G is the sum of the log decays up to a token. Takes one query at a time.
    """
    if mask is not None:
        k, v, log_decay = (x.masked_fill(~mask.unsqueeze(-1), 0) for x in (k, v, log_decay))
    total, y = log_decay.cumsum(1), torch.zeros_like(q)
    for i in range(q.shape[1]):
        seen = slice(0, i + 1)
        score = total[:, i : i + 1] - total[:, seen] - (q[:, i : i + 1] - k[:, seen]).square()
        if mask is not None:
            score = score.masked_fill(~mask[:, seen].unsqueeze(-1), -torch.inf)
        y[:, i] = (score.softmax(1).nan_to_num(0) * v[:, seen]).sum(1)  # NaN: no valid key yet
    return y


def _valid(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the valid tokens of all sequences, [tokens, D]."""
    return x.flatten(0, 1) if mask is None else x[mask]


def _grids(x: Tensor) -> tuple[Quadrature, ...]:
    """Return the smallest grids with nodes 0.5 and 1 apart that hold x [tokens, D]."""
    size = x.abs().flatten()
    radius = float(size.kthvalue(math.ceil(HELD * len(size))).values) + EDGE
    if not math.isfinite(radius):
        return ()
    halves = ((math.ceil(radius / spacing), spacing) for spacing in (DEFAULT_SPACING, MAX_SPACING))
    return tuple(
        Quadrature(2 * half + 1, half * spacing)
        for half, spacing in halves
        if 2 * half + 1 in NODE_COUNTS
    )


def _outside(x: Tensor, expansion: Expansion | None) -> Tensor:
    """Return the fraction of x [tokens, D] outside the accurate range of an expansion, [D].

    The range of a quadrature is its grid. The range of a Taylor series of e^(2qk) ends at the x
    where its relative error for q = k = x reaches 10 %.
    """
    if expansion is None:
        return x.new_zeros(x.shape[-1])
    limit = expansion.radius or _taylor_range(expansion.terms - 1)
    return x.abs().gt(limit).double().mean(0)


def _taylor_range(order: int) -> float:
    x = torch.linspace(0, 4, 4001, dtype=torch.float64)
    p = torch.ones_like(x)
    for n in range(order, 0, -1):
        p = 1 + p * 2 * x * x / n
    good = (p / torch.exp(2 * x * x) - 1).abs() <= 0.1
    return float(x[good.cumprod(0).bool()][-1])


def rows(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """Yield one row per layer and one per candidate of each layer, for files and plots."""
    for layer in diagnosis.layers:
        yield {
            "what": "layer",
            "layer": layer.name,
            "expansion": name_of(layer.expansion),
            "error": layer.total,
            "spreads": {"q": layer.q_spread.tolist(), "k": layer.k_spread.tolist()},
            "outside": {"q": layer.q_outside.tolist(), "k": layer.k_outside.tolist()},
            "enough": name_of(layer.cheapest(diagnosis.tolerance)),
            "grids": [name_of(grid) for grid in layer.grids],
        }
        for expansion, error in layer.errors.items():
            yield {
                "what": "candidate",
                "layer": layer.name,
                "expansion": name_of(expansion),
                "terms": expansion.terms,
                "radius": expansion.radius,
                "error": error,
            }
