"""How far each layer of a model is from exact EA, on what really flows through it.

A series is cheap where q and k are small, and wrong where they are not; training decides which.
`diagnose` looks: it lets a batch through the model, takes q, k and v of every layer of element-wise
attention, and compares the layer's expansion, and others, with exact EA on them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eattn.nn import ElementwiseAttention
from eattn.ops import Expansion, Quadrature, Taylor, ea, ea_series

CANDIDATES: tuple[Expansion, ...] = (
    *map(Taylor, range(2, 17, 2)),
    *map(Quadrature, range(7, 34, 2)),
)
BELL = 4 / 3  # what a bell costs in time beside a power
TOKENS = 1024  # of each sequence: exact EA is quadratic
ROWS = 16  # sequences


@dataclass(frozen=True, eq=False)
class Layer:
    """What was seen at one layer; tensors are [D], one number for each channel."""

    name: str
    expansion: Expansion | None  # None: exact EA
    q_spread: Tensor  # standard deviation
    k_spread: Tensor
    q_largest: Tensor  # largest absolute value
    k_largest: Tensor
    error: Tensor  # of the expansion, relative to exact EA
    outside: Tensor  # share of the weights where the expansion is not to be trusted
    errors: Mapping[Expansion, float]  # of all candidates, over all channels

    @property
    def total(self) -> float:
        """The relative error of the layer's own expansion over all channels."""
        return 0.0 if self.expansion is None else self.errors[self.expansion]

    def cheapest(self, tolerance: float) -> Expansion | None:
        """The first candidate with an error of at most `tolerance`; None: only exact EA has."""
        good = (e for e, error in self.errors.items() if error <= tolerance)
        return min(good, key=_cost, default=None)


@dataclass(frozen=True)
class Diagnosis:
    """The layers in the order in which they came."""

    layers: tuple[Layer, ...]
    tolerance: float

    def __str__(self) -> str:
        head = (
            "layer",
            "expansion",
            "spread of q",
            "of k",
            "largest",
            "error",
            "outside",
            "enough",
        )
        rows = [head, *(self._cells(layer) for layer in self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
        told = f"error relative to exact EA; enough: the cheapest within {self.tolerance:g}"
        return "\n".join([*(line.rstrip() for line in lines), told])

    def _cells(self, layer: Layer) -> tuple[str, ...]:
        enough = layer.cheapest(self.tolerance)
        largest = max(float(layer.q_largest.max()), float(layer.k_largest.max()))
        return (
            layer.name,
            name_of(layer.expansion),
            f"{float(layer.q_spread.mean()):.2f}",
            f"{float(layer.k_spread.mean()):.2f}",
            f"{largest:.1f}",
            f"{layer.total:.1e}",
            f"{float(layer.outside.mean()):.1%}",
            name_of(enough),
        )


def diagnose(
    model: nn.Module, batch: Any, *, tolerance: float = 1e-2, candidates: Sequence[Expansion] = ()
) -> Diagnosis:
    """What the layers of element-wise attention in `model` make of `batch`.

    `batch` is what the model is called with: a tensor, a tuple of arguments, or a dict of them.
    Nothing is trained, and the model is left as it was. Of a long or large batch the first tokens
    and sequences are looked at.

    >>> from eattn.models import SequenceClassifier
    >>> model = SequenceClassifier(3, 2, dim=16, depth=2, mixer="ea-6")
    >>> found = diagnose(model, torch.randn(4, 50, 3))
    >>> [layer.name for layer in found.layers]
    ['encoder.blocks.0.mixer', 'encoder.blocks.1.mixer']
    >>> bool(found.layers[0].total < 0.1)
    True
    """
    check_tolerance(tolerance)
    trained = model.training
    try:
        model.eval()
        with torch.no_grad(), watching(model, candidates) as found:
            _call(model, batch)
    finally:
        model.train(trained)
    return Diagnosis(tuple(found), tolerance)


@contextmanager
def watching(model: nn.Module, candidates: Sequence[Expansion] = ()) -> Iterator[list[Layer]]:
    """What passes through the layers meanwhile, the first time it does; an error if nothing."""
    tried = tuple(candidates) or CANDIDATES
    layers = {m: name for name, m in model.named_modules() if isinstance(m, ElementwiseAttention)}
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer of element-wise attention")
    found: dict[str, Layer] = {}
    listed: list[Layer] = []

    def look(layer: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        assert isinstance(layer, ElementwiseAttention)
        name = layers[layer]
        if name not in found:
            found[name] = _examine(name, layer, tried, *args, **kwargs)
            listed.append(found[name])

    hooks = [layer.register_forward_hook(look, with_kwargs=True) for layer in layers]
    try:
        yield listed
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError("no layer of element-wise attention was called meanwhile")


def check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be above 0 and below 1, got {tolerance}")


def name_of(expansion: Expansion | None) -> str:
    """As mixers are called: ea-6, ea-q17, ea."""
    return "ea" if expansion is None else f"ea-{expansion}"


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple | list):
        model(*batch)
    else:
        model(batch)


def _examine(
    name: str,
    layer: ElementwiseAttention,
    candidates: Sequence[Expansion],
    x: Tensor,
    key_mask: Tensor | None = None,
    *,
    context: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **state: Any,
) -> Layer:
    if cu_seqlens is not None:
        raise ValueError("diagnose takes padded batches, with key_mask, and none with cu_seqlens")
    q, k, v = layer.qkv(x, key_mask, context=context)
    q, k, v = (part[:ROWS, :TOKENS].double() for part in (q, k, v))
    mask = None if key_mask is None else key_mask[:ROWS, :TOKENS]
    asked = mask if context is None else None  # which queries are real

    def attend(expansion: Expansion | None) -> Tensor:
        """[tokens, D], in float64: the expansion's error is wanted, not that of rounding."""
        seen: Any = dict(causal=layer.causal, key_mask=mask)
        if expansion is None:
            return _real(ea(q, k, v, **seen), asked)
        return _real(ea_series(q, k, v, expansion=expansion, **seen), asked)

    exact = attend(None)
    tried = dict.fromkeys([*candidates, *([] if layer.expansion is None else [layer.expansion])])
    errors, own = {}, torch.zeros_like(exact[0])
    for expansion in tried:
        off = attend(expansion) - exact
        errors[expansion] = float(off.norm() / exact.norm())
        if expansion == layer.expansion:
            own = off.norm(dim=0) / exact.norm(dim=0)
    queries, keys = _real(q, asked), _real(k, mask)
    return Layer(
        name,
        layer.expansion,
        q_spread=queries.std(0),
        k_spread=keys.std(0),
        q_largest=queries.abs().amax(0),
        k_largest=keys.abs().amax(0),
        error=own,
        outside=_outside(queries, keys, layer.expansion),
        errors=errors,
    )


def _real(x: Tensor, mask: Tensor | None) -> Tensor:
    """The real tokens of all sequences, [tokens, D]."""
    return x.flatten(0, 1) if mask is None else x[mask]


def _outside(q: Tensor, k: Tensor, expansion: Expansion | None) -> Tensor:
    """The share of q and k that an expansion is not good for, [D].

    For a quadrature, those off its grid; for a series, those so large that with one of their own
    size, q = k, the polynomial of e^(2qk) is off by more than a tenth.
    """
    if expansion is None:
        return q.new_zeros(q.shape[-1])
    limit = expansion.radius or _reach(expansion.terms - 1)
    return torch.cat([q, k]).abs().gt(limit).double().mean(0)


def _reach(order: int) -> float:
    """The x up to which the polynomial of e^(2 x^2) is within a tenth."""
    x = torch.linspace(0, 4, 4001, dtype=torch.float64)
    p = torch.ones_like(x)
    for n in range(order, 0, -1):
        p = 1 + p * 2 * x * x / n
    good = (p / torch.exp(2 * x * x) - 1).abs() <= 0.1
    return float(x[good.cumprod(0).bool()][-1])


def _cost(expansion: Expansion) -> float:
    return expansion.terms * (BELL if expansion.radius else 1.0)


def rows(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """In plain numbers, for files and plots: one for each layer, one for each of its candidates."""
    for layer in diagnosis.layers:
        spreads = {"q": layer.q_spread.tolist(), "k": layer.k_spread.tolist()}
        own = name_of(layer.expansion)
        told = {"what": "layer", "layer": layer.name, "expansion": own, "error": layer.total}
        enough = name_of(layer.cheapest(diagnosis.tolerance))
        yield told | {"spreads": spreads, "outside": layer.outside.tolist(), "enough": enough}
        for expansion, error in layer.errors.items():
            yield {
                "what": "candidate",
                "layer": layer.name,
                "expansion": name_of(expansion),
                "terms": expansion.terms,
                "radius": expansion.radius,
                "error": error,
            }
