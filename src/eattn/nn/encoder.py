"""A stack of Transformer blocks, and what it remembers while decoding."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from eattn.nn.block import TransformerBlock, TransformerConfig, configure
from eattn.nn.decoding_state import DecodingState, Rows, register_state


@dataclass(frozen=True, eq=False)
class EncoderState(Rows):
    """States of the blocks of an encoder, the first block first."""

    layers: tuple[DecodingState, ...]


register_state(EncoderState)


class TransformerEncoder(nn.Module):
    """`depth` blocks, one after the other; with norm="pre", a last layer norm.

    Made from a config, from its fields by keyword, or from both, where keywords win.

    >>> import torch
    >>> encoder = TransformerEncoder(dim=64, depth=2, mixer="ea-6", causal=True)
    >>> x = torch.randn(2, 10, 64)
    >>> y, state = encoder(x[:, :9], return_state=True)
    >>> y_t, state = encoder.step(x[:, 9], state)
    >>> torch.allclose(y_t, encoder(x)[:, 9], atol=1e-5)
    True
    """

    def __init__(self, config: TransformerConfig | None = None, **changes: Any) -> None:
        super().__init__()
        self.config = c = configure(config, changes)
        self.blocks = nn.ModuleList(TransformerBlock(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.dim, eps=c.eps) if c.norm == "pre" else nn.Identity()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        c = self.config
        return (
            f"mixer={c.mixer!r}, dim={c.dim}, depth={c.depth}, {self.num_parameters:,} parameters"
        )

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        state: EncoderState | None = None,
        return_state: bool = False,
    ) -> Any:
        """x [B, L, D] -> y [B, L, D], or (y, state) with `return_state`.

        `key_mask` [B, L] is True for valid tokens; the others are never read. `cu_seqlens` [n + 1]
        are the offsets of sequences packed along L, with B = 1. `state` holds the tokens before x.
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

    def step(self, x_t: Tensor, state: EncoderState | None = None) -> tuple[Tensor, EncoderState]:
        """One token x_t [B, D] -> (y_t [B, D], the state after it); no state: the first token."""
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
