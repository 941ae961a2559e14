"""Element-wise attention as a layer: input and output projections around the operator."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn import distributed
from eattn._checks import check_bool
from eattn.distributed.context import check_not_sharded, current_shard
from eattn.nn.base import Mixer, check_tokens, projection
from eattn.nn.decay import KINDS, Decay, DecayKind
from eattn.nn.decoding_state import KVCache, extend_cache
from eattn.nn.padding import zero_masked
from eattn.nn.qk_range import SPREAD, Center, QKRange
from eattn.ops import Expansion, State, ea, ea_series, ea_series_step
from eattn.ops.checks import check_cu_seqlens, check_mask, check_state
from eattn.ops.expansion import DEFAULT_ORDER, resolve_expansion

EXACT_DECAY = "exact EA has no decay; a wide grid such as Quadrature(65) comes close to it"


def set_expansion(model: nn.Module, expansion: Expansion | None) -> int:
    """Set the expansion of every `ElementwiseAttention` in `model`, in place.

    Weights are unchanged, since all expansions share their parameters. A model with exact EA gives
    nearly the same outputs on a grid with a spacing of 0.5 that holds its q and k, except for
    queries far from all keys; `eattn.diagnose` recommends such a grid.

    Parameters
    ----------
    model : nn.Module
        Model to change.
    expansion : Taylor, Quadrature or None
        New expansion. None selects exact EA, which has no decay.

    Returns
    -------
    count : int
        Number of layers changed.

    Raises
    ------
    ValueError
        If `expansion` is None and a layer has decay. No layer is changed then.

    Examples
    --------
    >>> from eattn import Quadrature
    >>> layer = ElementwiseAttention(8, order=None)
    >>> set_expansion(layer, Quadrature(25)), layer.expansion
    (1, Quadrature(nodes=25, radius=6.0))
    """
    layers = [m for m in model.modules() if isinstance(m, ElementwiseAttention)]
    if expansion is not None:
        expansion = resolve_expansion(expansion=expansion)
    elif any(layer.decay is not None for layer in layers):
        raise ValueError(f"expansion must not be None: {EXACT_DECAY}")
    for layer in layers:
        layer.expansion = expansion
    return len(layers)


class ElementwiseAttention(Mixer):
    """y = out(EA-series(q, k, v)) with q, k, v projected from x, in O(NLD) (Eq. 5; causal: Eq. 6).

    All expansions have the same parameters, so a state dict loads into a layer with any expansion.
    Decoding with a series keeps an `eattn.State` of constant size (Eq. 12, Eq. 13); exact EA keeps
    a cache that grows with every token.

    Parameters
    ----------
    dim : int
        Number of channels D.
    order : int or None, default 6
        Highest power of the Taylor polynomial, even. None selects exact EA (Eq. 2). Cannot be
        combined with `expansion`.
    expansion : Taylor or Quadrature, optional
        Expansion of the kernel, such as `Quadrature(25)`.
    causal : bool, default False
        Attend only to earlier tokens and the token itself. Required for decoding.
    bias : bool, default True
        Add biases in the projections.
    qk_norm : bool, default False
        Normalise q and k to the range in which an expansion is accurate; see `QKRange`.
    bandwidth : bool, default False
        Learn a scale of q and k for each channel; see `QKRange`.
    center : {"mean", "learned"}, optional
        Subtract the center of the keys from q and k; see `QKRange`.
    decay : {"fixed", "gated"}, optional
        Let the weights of earlier keys decay before every token, by a learned factor per channel
        or by a gate that depends on the token; see `Decay`. Requires `causal` and an expansion.

    Examples
    --------
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
        order: int | None = DEFAULT_ORDER,
        expansion: Expansion | None = None,
        causal: bool = False,
        bias: bool = True,
        qk_norm: bool = False,
        bandwidth: bool = False,
        center: Center | None = None,
        decay: DecayKind | None = None,
    ) -> None:
        super().__init__(dim, causal=causal)
        exact = order is None and expansion is None
        self.expansion = None if exact else resolve_expansion(order, expansion)
        # A single matrix product for q, k and v is faster than three for short inputs.
        self.in_proj = projection(dim, 3 * dim, parts=3, bias=check_bool("bias", bias))
        self.out_proj = projection(dim, dim, bias=bias)
        with torch.no_grad():
            self.in_proj.weight[: 2 * dim] *= SPREAD
        self.placement = None  # saved models contain its parameters under this name
        if qk_norm or bandwidth or center is not None:
            options: Any = dict(qk_norm=qk_norm, bandwidth=bandwidth, center=center)
            self.placement = QKRange(dim, **options, causal=causal)
        self.decay = None
        if decay is not None:
            _check_decay(decay, causal, exact)
            self.decay = Decay(dim, gated=decay == "gated")

    def qkv(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of the operator.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Tokens to project to queries.
        key_mask : bool Tensor, shape (B, Lk), optional
            True for valid keys; only `center` uses it.
        context : Tensor, shape (B, Lk, D), optional
            Tokens to project to keys and values; x by default.
        cu_seqlens : int32 Tensor, shape (n + 1,), optional
            Offsets of packed sequences; only `center` uses them.

        Returns
        -------
        q : Tensor, shape (B, L, D)
        k, v : Tensor, shape (B, Lk, D)
        """
        q, k, v = self._project(x, context)
        if self.placement is not None:
            q, k = self.placement(q, k, key_mask, cu_seqlens)
        return q, k, v

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if context is None:
            q, k, v = self.in_proj(x).chunk(3, -1)
            return q, k, v
        weights, biases = self.in_proj.weight.split(self.dim), (None, None, None)
        if self.in_proj.bias is not None:
            biases = self.in_proj.bias.split(self.dim)
        sources = (x, context, context)
        q, k, v = (F.linear(*args) for args in zip(sources, weights, biases, strict=True))
        return q, k, v

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        return self._attend(x, key_mask, None, state, keep)

    def _packed(
        self, x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        return self._attend(x, key_mask, cu_seqlens, state, keep)

    def _cross(
        self,
        x: Tensor,
        context: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        state: Any,
        *,
        keep: bool,
    ) -> tuple[Tensor, Any]:
        check_tokens("context", context, "[B, Lk, D]", self.dim)
        if len(context) != len(x):
            raise ValueError(f"context must have B = {len(x)} rows like x, got {len(context)}")
        if self.causal:
            raise ValueError("context needs causal=False: its tokens have no order relative to x")
        if key_mask is not None:
            check_mask(key_mask, context)
            context = zero_masked(context, key_mask)
        return self._attend(x, key_mask, cu_seqlens, state, keep, context)

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.expansion is None:
            return super()._step(x_t, state)
        q, k, v = (x.squeeze(1) for x in self.qkv(x_t.unsqueeze(1)))
        if state is None:
            wide = torch.promote_types(q.dtype, torch.float32)
            like: Any = dict(device=q.device, dtype=wide)
            like |= dict(expansion=self.expansion, decay=self.decay is not None)
            state = State.zeros(q.shape[0], self.dim, **like)
        else:
            check_state(state, q.shape[0], q, self.expansion)
        log_decay = None if self.decay is None else self.decay(x_t)
        y, state = ea_series_step(q, k, v, state, log_decay=log_decay)
        return self.out_proj(y), state

    def _attend(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        state: Any,
        keep: bool,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        qkv = self.qkv(x, key_mask=key_mask, context=context, cu_seqlens=cu_seqlens)
        if self.expansion is None:
            y, state = self._exact(*qkv, key_mask, cu_seqlens, state, keep)
            return self.out_proj(y), state
        options: dict[str, Any] = dict(
            expansion=self.expansion,
            causal=self.causal,
            key_mask=key_mask,
            cu_seqlens=cu_seqlens,
            log_decay=None if self.decay is None else self.decay(x),
            state=state,
            return_state=keep,
        )
        attend: Any = ea_series
        if current_shard() is not None:
            # As a decorator, `disable` would import torch._dynamo whenever eattn is imported.
            attend = torch.compiler.disable(_attend_sharded)
        result = attend(*qkv, **options)
        y, state = result if keep else (result, None)
        return self.out_proj(y), state

    def _exact(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        state: KVCache | None,
        keep: bool,
    ) -> tuple[Tensor, KVCache | None]:
        """Compute exact EA, whose state is a cache of all keys and values."""
        if cu_seqlens is not None:
            if state is not None or keep:
                raise ValueError(
                    "cu_seqlens cannot be combined with state or return_state for exact EA"
                )
            check_cu_seqlens(cu_seqlens, q, k)
            parts = []
            for a, b in itertools.pairwise(cu_seqlens.tolist()):
                mask = None if key_mask is None else key_mask[:, a:b]
                qkv = (x[:, a:b] for x in (q, k, v))
                parts.append(ea(*qkv, causal=self.causal, key_mask=mask))
            return torch.cat(parts, 1), None
        if state is None and not keep:
            return ea(q, k, v, causal=self.causal, key_mask=key_mask), None
        cache = extend_cache(state, k.unsqueeze(1), v.unsqueeze(1), key_mask)  # one head
        kv = cache.k.squeeze(1), cache.v.squeeze(1)
        y = ea(q, *kv, causal=True, key_mask=cache.mask)
        return y, cache

    def _check_sharding(self) -> None:
        if self.expansion is None:
            check_not_sharded("exact EA")
        if self.placement is not None and self.placement.center is not None:
            check_not_sharded("EA with a center, which is a mean over the keys of all ranks,")

    def _check_keeps(self, what: str) -> None:
        if self.placement is not None and self.placement.center == "mean":
            raise ValueError(
                f"{what} cannot be combined with center='mean', as earlier keys have a different"
                " center: use center='learned'"
            )
        if self.expansion is None:
            self._check_decodes(what)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, expansion={self.expansion!r}, causal={self.causal}"


def _check_decay(decay: DecayKind, causal: bool, exact: bool) -> None:
    if decay not in KINDS:
        raise ValueError(f"decay must be None or one of {', '.join(KINDS)}, got {decay!r}")
    if not causal:
        raise ValueError(
            f"decay={decay!r} needs causal=True, got False: without an order of tokens nothing"
            " decays; use decay=None to attend to all tokens"
        )
    if exact:
        raise ValueError(f"decay={decay!r} needs an order or an expansion: {EXACT_DECAY}")


def _attend_sharded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Attend to the tokens of all ranks in the current `sequence_parallel` context."""
    shard = current_shard()
    assert shard is not None
    continues = shard.before > 0
    return distributed.ea_series(
        q, k, v, **options, continues=continues, group=shard.group, check=shard.check
    )
