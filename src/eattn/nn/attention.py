"""Element-wise attention as a layer: projections around the operator."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn import distributed
from eattn.distributed.context import check_not_sharded, current_shard
from eattn.nn.base import Mixer, check_bool, check_tokens, projection, real
from eattn.nn.decoding_state import KVCache, check_cache
from eattn.nn.qk_range import SPREAD, Center, Placement
from eattn.ops import Expansion, State, ea, ea_series, ea_series_step
from eattn.ops.checks import check_cu_seqlens, check_mask, check_state
from eattn.ops.exact import ea_after
from eattn.ops.expansion import chosen


def set_expansion(model: nn.Module, expansion: Expansion | None) -> int:
    """Have every layer of element-wise attention in `model` use another expansion, with the weights
    as they are; None is exact EA. Returns how many layers there are.

    >>> from eattn import Quadrature
    >>> layer = ElementwiseAttention(8, order=None)
    >>> set_expansion(layer, Quadrature(25)), layer.expansion
    (1, Quadrature(nodes=25, radius=6.0))
    """
    layers = [m for m in model.modules() if isinstance(m, ElementwiseAttention)]
    for layer in layers:
        layer.expansion = None if expansion is None else chosen(6, expansion)
    return len(layers)


class ElementwiseAttention(Mixer):
    """y = out(EA-series(q, k, v)) with q, k, v projected from x, in O(NLD) (Eq. 5; causal: Eq. 6).

    `order` is the highest power of the series, even; None is exact EA (Eq. 2). `expansion`, if
    there is one, takes its place: `Quadrature(25)` is exact EA to 1e-4 at the cost of a series.
    All share their parameters: a state dict of one loads into another. Decoding with a series keeps
    an `eattn.State` of constant size (Eq. 12, Eq. 13), exact EA a cache that grows.

    `qk_norm`, `bandwidth` and `center` keep q and k where an expansion is good: see `Placement`.

    >>> layer = ElementwiseAttention(64, causal=True)
    >>> x = torch.randn(2, 100, 64)
    >>> y, state = layer(x[:, :99], return_state=True)
    >>> y_t, state = layer.step(x[:, 99], state)
    >>> torch.allclose(y_t, layer(x)[:, 99], atol=1e-5)
    True
    """

    def __init__(
        self,
        dim: int,
        *,
        order: int | None = 6,
        expansion: Expansion | None = None,
        causal: bool = False,
        bias: bool = True,
        qk_norm: bool = False,
        bandwidth: bool = False,
        center: Center | None = None,
    ) -> None:
        super().__init__(dim, causal=causal)
        exact = order is None and expansion is None
        self.expansion = None if exact else chosen(6 if order is None else order, expansion)
        # One product for q, k and v: as fast as three for long inputs, faster for short ones.
        self.in_proj = projection(dim, 3, bias=check_bool("bias", bias))
        self.out_proj = projection(dim, 1, bias=bias)
        with torch.no_grad():
            self.in_proj.weight[: 2 * dim] *= SPREAD
        self.placement = None
        if qk_norm or bandwidth or center is not None:
            options: Any = dict(qk_norm=qk_norm, bandwidth=bandwidth, center=center)
            self.placement = Placement(dim, **options, causal=causal)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        context: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """y [B, L, D], or (y, state) with `return_state`.

        Keys and values come from `context` [B, Lk, D] if there is one (cross-attention, never
        causal), else from x. `key_mask` [B, Lk] is True for real ones; nothing is read behind it.
        `cu_seqlens` [n + 1] are offsets of sequences packed along L, with B = 1. `state` holds keys
        and values seen before.
        """
        x, context = self._check_inputs(x, context, key_mask)
        if state is not None or return_state:
            self._check_keeps("state" if state is not None else "return_state")
        q, k, v = self.qkv(x, key_mask, context=context, cu_seqlens=cu_seqlens)
        if current_shard() is not None:
            y, state = self._sharded((q, k, v), key_mask, cu_seqlens, state, return_state)
        elif self.expansion is None:
            y, state = self._exact(q, k, v, key_mask, cu_seqlens, state, return_state)
        else:
            y, state = ea_series(
                q,
                k,
                v,
                expansion=self.expansion,
                causal=self.causal,
                key_mask=key_mask,
                cu_seqlens=cu_seqlens,
                state=state,
                return_state=True,
            )
        y = self.out_proj(y)
        return (y, state) if return_state else y

    def _check_inputs(
        self, x: Tensor, context: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if context is None:
            return self._check(x, key_mask), None
        return self._check(x, None), self._check_context(context, key_mask, x.shape[0])

    def _check_sharding(self) -> None:
        if self.expansion is None:
            check_not_sharded("exact EA")
        if self.placement is not None and self.placement.center is not None:
            check_not_sharded("EA with a centre (no rank knows the mean of all keys)")

    @torch.compiler.disable
    def _sharded(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        state: Any,
        return_state: bool,
    ) -> tuple[Tensor, Any]:
        """Attend to the tokens of all ranks of the current `sequence_parallel`."""
        shard = current_shard()
        assert shard is not None
        found = distributed.ea_series(
            *qkv,
            expansion=self.expansion,
            causal=self.causal,
            key_mask=key_mask,
            cu_seqlens=cu_seqlens,
            continues=shard.before > 0,
            state=state,
            return_state=return_state,
            group=shard.group,
            check=shard.check,
        )
        return found if return_state else (found, None)

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token x_t [B, D] -> (y_t [B, D], the state after it); no state: the first token."""
        self._check_step(x_t)
        if self.expansion is None:
            y, state = self.forward(x_t.unsqueeze(1), state=state, return_state=True)
            return y.squeeze(1), state
        q, k, v = (x.squeeze(1) for x in self.qkv(x_t.unsqueeze(1)))
        if state is not None:
            check_state(state, q.shape[0], q, self.expansion)
        else:
            wide = torch.promote_types(q.dtype, torch.float32)
            like: Any = dict(device=q.device, dtype=wide)
            state = State.zeros(q.shape[0], self.dim, expansion=self.expansion, **like)
        y, state = ea_series_step(q, k, v, state, expansion=self.expansion)
        return self.out_proj(y), state

    def qkv(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        context: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the operator is given for x."""
        q, k, v = self._project(x, context)
        if self.placement is not None:
            q, k = self.placement(q, k, key_mask, cu_seqlens)
        return q, k, v

    def _check_keeps(self, what: str) -> None:
        if self.placement is not None and self.placement.center == "mean":
            raise ValueError(
                f"{what} goes without center='mean': the keys of a state have another centre"
            )

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if context is None:
            q, k, v = self.in_proj(x).chunk(3, -1)
            return q, k, v
        weights, biases = self.in_proj.weight.split(self.dim), (None, None, None)
        if self.in_proj.bias is not None:
            biases = self.in_proj.bias.split(self.dim)
        sources = (x, context, context)
        q, k, v = (F.linear(*of) for of in zip(sources, weights, biases, strict=True))
        return q, k, v

    def _exact(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        state: KVCache | None,
        return_state: bool,
    ) -> tuple[Tensor, KVCache | None]:
        """Exact EA has no sums to carry: a state is all keys and values so far."""
        if cu_seqlens is not None:
            if state is not None or return_state:
                raise ValueError("cu_seqlens goes without state and return_state of exact EA")
            return self._exact_packed(q, k, v, key_mask, cu_seqlens), None
        if state is None and not return_state:
            return ea(q, k, v, causal=self.causal, key_mask=key_mask), None
        self._check_decodes("state" if state is not None else "return_state")
        k, v = k.unsqueeze(1), v.unsqueeze(1)  # one head
        cache = KVCache.empty(k, v, max_len=None) if state is None else check_cache(state, k)
        cache = cache.append(k, v, key_mask)
        y = ea_after(q, cache.k.squeeze(1), cache.v.squeeze(1), key_mask=cache.mask)
        return y, cache

    def _exact_packed(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor
    ) -> Tensor:
        check_cu_seqlens(cu_seqlens, q, k)
        parts = []
        for a, b in itertools.pairwise(cu_seqlens.tolist()):
            mask = None if key_mask is None else key_mask[:, a:b]
            qkv = (x[:, a:b] for x in (q, k, v))
            parts.append(ea(*qkv, causal=self.causal, key_mask=mask))
        return torch.cat(parts, 1)

    def _check_context(self, context: Tensor, key_mask: Tensor | None, rows: int) -> Tensor:
        check_tokens("context", context, "[B, Lk, D]", self.dim)
        if len(context) != rows:
            raise ValueError(f"context must have the B = {rows} rows of x, got {len(context)}")
        if self.causal:
            raise ValueError(
                "context needs causal=False: its tokens have no place among those of x"
            )
        if key_mask is None:
            return context
        check_mask(key_mask, context)
        return real(context, key_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, expansion={self.expansion!r}, causal={self.causal}"
