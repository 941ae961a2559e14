"""A stack of Transformer blocks and its decoding state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack, overload

from torch import Tensor, nn

from eattn.nn.block import TransformerBlock, TransformerConfig, TransformerOptions, configure
from eattn.nn.decoding_state import DecodingState, StateBase


@dataclass(frozen=True, eq=False)
class EncoderState(StateBase):
    """Decoding state of a `TransformerEncoder`: the states of its blocks, in order."""

    layers: tuple[DecodingState, ...]


class TransformerEncoder(nn.Module):
    """A stack of `depth` Transformer blocks, followed by a layer norm if norm="pre".

    Parameters
    ----------
    config : TransformerConfig, optional
        Configuration; the default one if omitted.
    **changes
        Fields of `TransformerConfig`, which take precedence over `config`.

    Examples
    --------
    >>> import torch
    >>> encoder = TransformerEncoder(dim=64, depth=2, mixer="ea-6", causal=True)
    >>> x = torch.randn(2, 10, 64)
    >>> y, state = encoder(x[:, :9], return_state=True)
    >>> y_t, state = encoder.step(x[:, 9], state)
    >>> torch.allclose(y_t, encoder(x)[:, 9], atol=1e-5)
    True
    """

    def __init__(
        self, config: TransformerConfig | None = None, **changes: Unpack[TransformerOptions]
    ) -> None:
        super().__init__()
        self.config = c = configure(config, changes)
        self.blocks = nn.ModuleList(TransformerBlock(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.dim, eps=c.eps) if c.norm == "pre" else nn.Identity()

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        c = self.config
        return (
            f"mixer={c.mixer!r}, dim={c.dim}, depth={c.depth}, {self.num_parameters:,} parameters"
        )

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: EncoderState | None = ...,
        return_state: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: EncoderState | None = ...,
        return_state: Literal[True],
    ) -> tuple[Tensor, EncoderState]: ...
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: EncoderState | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, EncoderState]:
        """Encode a sequence.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Tokens.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid tokens. Masked tokens are never read; their outputs are finite.
        cu_seqlens : int32 Tensor, shape (n + 1,), optional
            Offsets of sequences packed along L, with B = 1.
        state : EncoderState, optional
            State after the tokens before x.
        return_state : bool, default False
            Also return the state after x.

        Returns
        -------
        y : Tensor, shape (B, L, D)
        state : EncoderState, only if `return_state`
        """
        after = []
        for block, before in zip(self.blocks, self._layers(state), strict=True):
            x = block(
                x,
                key_mask=key_mask,
                cu_seqlens=cu_seqlens,
                state=before,
                return_state=return_state,
            )
            if return_state:
                x, layer = x
                after.append(layer)
        y = self.norm(x)
        return (y, EncoderState(tuple(after))) if return_state else y

    if TYPE_CHECKING:
        __call__ = forward

    def step(self, x_t: Tensor, state: EncoderState | None = None) -> tuple[Tensor, EncoderState]:
        """Encode one token.

        Parameters
        ----------
        x_t : Tensor, shape (B, D)
            Next token of each row.
        state : EncoderState, optional
            State after the tokens before; None if x_t is the first token.

        Returns
        -------
        y_t : Tensor, shape (B, D)
        state : EncoderState
        """
        after = []
        for block, before in zip(self.blocks, self._layers(state), strict=True):
            x_t, layer = block.step(x_t, before)  # type: ignore[operator]
            after.append(layer)
        return self.norm(x_t), EncoderState(tuple(after))

    def _layers(self, state: EncoderState | None) -> tuple[DecodingState | None, ...]:
        if state is None:
            return (None,) * self.config.depth
        if not isinstance(state, EncoderState):
            raise TypeError(f"state must be an EncoderState, got {type(state).__name__}")
        if len(state.layers) != self.config.depth:
            raise ValueError(
                f"state must have a layer for each of {self.config.depth} blocks,"
                f" got {len(state.layers)}"
            )
        return state.layers
