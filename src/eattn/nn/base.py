"""`Mixer`, the base class of every layer that mixes tokens along the sequence."""

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from eattn._checks import check_bool, check_size
from eattn.distributed.context import check_not_sharded, current_shard
from eattn.nn.decoding_state import DecodingState
from eattn.nn.padding import zero_masked
from eattn.ops.checks import FLOATS, check_cu_seqlens, check_dense, check_mask


class Mixer(nn.Module):
    """Base class of token mixers, x [B, L, D] -> y [B, L, D].

    A mixer runs in parallel over a sequence, continues from a state, or takes one token at a time,
    with the same results. `forward` and `step` check their inputs once and call hooks, which trust
    them. A subclass implements `_mix`, the parallel form, and may override the other hooks:
    `_packed`, `_cross`, `_step`, and the checks `_check_sharding` and `_check_keeps`.

    Parameters
    ----------
    dim : int
        Number of channels D.
    causal : bool
        Attend only to earlier tokens and the token itself.
    """

    def __init__(self, dim: int, *, causal: bool) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.causal = check_bool("causal", causal)

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        context: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: DecodingState | None = ...,
        return_state: Literal[False] = ...,
        _checked: bool = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        context: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: DecodingState | None = ...,
        return_state: Literal[True],
        _checked: bool = ...,
    ) -> tuple[Tensor, DecodingState]: ...
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: DecodingState | None = None,
        return_state: bool = False,
        _checked: bool = False,
    ) -> Tensor | tuple[Tensor, DecodingState]:
        """Mix the tokens of x.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Tokens.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid tokens. Masked tokens are never read.
        context : Tensor, shape (B, Lk, D), optional
            Tokens to attend to instead of x (cross-attention); `key_mask` then has shape (B, Lk).
            Only non-causal `ElementwiseAttention` supports it.
        cu_seqlens : int32 Tensor, shape (n + 1,), optional
            Offsets of sequences packed along L, with B = 1.
        state : DecodingState, optional
            State after the tokens before x.
        return_state : bool, default False
            Also return the state after x.

        Returns
        -------
        y : Tensor, shape (B, L, D)
        state : DecodingState, only if `return_state`
        """
        self._check_sharding()
        if not _checked:  # blocks check and mask their input before they call the mixer
            x = check_input(x, key_mask if context is None else None, self.dim)
        if state is not None or return_state:
            self._check_keeps("state" if state is not None else "return_state")
        keep: Any = dict(keep=return_state)
        if context is not None:
            y, state = self._cross(x, context, key_mask, cu_seqlens, state, **keep)
        elif cu_seqlens is not None:
            y, state = self._packed(x, key_mask, cu_seqlens, state, **keep)
        else:
            y, state = self._mix(x, key_mask, state, **keep)
        return (y, state) if return_state else y

    if TYPE_CHECKING:
        __call__ = forward

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Mix one token into the sequence so far.

        Parameters
        ----------
        x_t : Tensor, shape (B, D)
            Next token of each row.
        state : DecodingState, optional
            State after the tokens before; None if x_t is the first token.

        Returns
        -------
        y_t : Tensor, shape (B, D)
        state : DecodingState
            State after x_t.
        """
        check_not_sharded(f"{type(self).__name__}.step")
        self._check_decodes("step")
        check_tokens("x_t", x_t, "[B, D]", self.dim)
        return self._step(x_t, state)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        """Return y and, if `keep` is set, the state after x."""
        raise NotImplementedError

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self._mix(x_t.unsqueeze(1), None, state, keep=True)
        return y.squeeze(1), state

    def _packed(
        self, x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        """Mix packed sequences by padding them to a batch."""
        self._check_packed(key_mask, state, keep)
        check_cu_seqlens(cu_seqlens, x, x)
        lengths = cu_seqlens.diff().tolist()
        rows = nn.utils.rnn.pad_sequence(list(x[0].split(lengths)), batch_first=True)
        ends = torch.tensor(lengths, device=x.device).unsqueeze(1)
        mask = torch.arange(rows.shape[1], device=x.device) < ends
        return self._mix(rows, mask, None, keep=False)[0][mask].unsqueeze(0), None

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
        """Attend from x to `context`, which has not been checked."""
        raise ValueError(
            f"{type(self).__name__} has no cross-attention: context must be None, or use"
            " ElementwiseAttention"
        )

    def _check_sharding(self) -> None:
        """Raise inside `sequence_parallel` unless the mixer can run on a shard."""
        check_not_sharded(type(self).__name__)

    def _check_packed(self, key_mask: Tensor | None, state: Any, keep: bool) -> None:
        if key_mask is not None or state is not None or keep:
            raise ValueError(
                "cu_seqlens cannot be combined with key_mask, state or return_state for"
                f" {type(self).__name__}"
            )

    def _check_keeps(self, what: str) -> None:
        """Raise if the mixer cannot take `what`, which is state or return_state."""
        self._check_decodes(what)

    def _check_decodes(self, what: str) -> None:
        if not self.causal:
            raise ValueError(f"{what} needs causal=True: a token must not depend on later tokens")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, causal={self.causal}"


def check_input(x: Tensor, key_mask: Tensor | None, dim: int) -> Tensor:
    """Check tokens [B, L, D] and their mask; return the tokens with masked ones set to 0.

    Inside `sequence_parallel`, also check that the inputs of all ranks match.
    """

    def check() -> Tensor:
        check_tokens("x", x, "[B, L, D]", dim)
        if key_mask is None:
            return x
        check_mask(key_mask, x)
        return zero_masked(x, key_mask)

    def check_and_compare() -> tuple[Tensor, dict[str, int]]:
        return check(), {
            "B": x.shape[0],
            "D": x.shape[2],
            "dtype": FLOATS.index(x.dtype),
            "gradient": torch.is_grad_enabled() and x.requires_grad,
        }

    shard = current_shard()
    return check() if shard is None else shard.agree(check_and_compare)


def check_tokens(name: str, x: Tensor, shape: str, dim: int) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {kind}")
    check_dense(name, x)
    if x.dim() != shape.count(",") + 1 or x.shape[-1] != dim:
        raise ValueError(f"{name} must be {shape} with D = dim = {dim}, got {tuple(x.shape)}")


def check_heads(dim: int, heads: int) -> int:
    if dim % check_size("heads", heads):
        raise ValueError(f"heads must divide dim = {dim}, got {heads}")
    return heads


def check_causal_only(name: str, causal: bool, *, instead: str) -> None:
    """Raise for a non-causal mixer `name` that exists only as a causal one."""
    if not causal:
        raise ValueError(
            f"mixer {name!r} needs causal=True, got False; a model that attends to all tokens can"
            f" use {instead!r}"
        )


def projection(inputs: int, outputs: int, *, parts: int = 1, bias: bool = True) -> nn.Linear:
    """Make a linear map with bias 0 and Xavier weights, drawn separately for each of its parts."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for part in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(part)
        if bias:
            linear.bias.zero_()
    return linear
