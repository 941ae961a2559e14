"""A short causal convolution before a mixer, which lets it distinguish near tokens from far ones.

Element-wise attention treats the tokens as a set. The convolution mixes a few of the last inputs
into each token, with one weight per channel and distance, and works with every mixer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.distributed.context import current_shard
from eattn.distributed.exchange import halo
from eattn.nn.base import Mixer
from eattn.nn.decoding_state import ConvState, check_held
from eattn.nn.padding import front_positions, packed_positions
from eattn.ops.checks import check_cu_seqlens


class ShortConv(nn.Module):
    """u_t = x_t + b + sum_(i < width) w_i x_(t - i), per channel, in O(width LD).

    Masked tokens are skipped: the valid tokens on both sides are neighbours. Inputs before the
    first token are 0.

    Parameters
    ----------
    dim : int
        Number of channels D.
    width : int, default 4
        Number of inputs that each output depends on.

    Examples
    --------
    >>> u, last = ShortConv(8, width=4)(torch.randn(2, 5, 8))
    >>> u.shape, last.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 3, 8]))
    """

    def __init__(self, dim: int, *, width: int = 4) -> None:
        super().__init__()
        self.dim, self.width = check_size("dim", dim), check_size("width", width)
        self.weight = nn.Parameter(torch.empty(width, dim).uniform_(-1, 1) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(dim))

    def extra_repr(self) -> str:
        return f"{self.dim}, width={self.width}"

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, last: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Convolve a sequence.

        Inside `sequence_parallel`, the inputs before x come from earlier ranks.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Inputs.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid tokens.
        last : Tensor, shape (B, width - 1, D), optional
            Inputs before x; 0 by default.

        Returns
        -------
        u : Tensor, shape (B, L, D)
        last : Tensor, shape (B, width - 1, D)
            Last inputs, with which the next call continues.
        """
        if current_shard() is not None:
            if last is not None:
                raise ValueError(
                    "state cannot be used with a short convolution in sequence_parallel"
                )
            last, after = torch.compiler.disable(self._halo)(x, key_mask)
            return self._forward(x, key_mask, last)[0], after
        if last is None:
            last = x.new_zeros(x.shape[0], self.width - 1, self.dim)
        return self._forward(x, key_mask, last)

    def _forward(self, x: Tensor, key_mask: Tensor | None, last: Tensor) -> tuple[Tensor, Tensor]:
        if key_mask is None:
            window = torch.cat([last.to(x.dtype), x], 1)
            # The copy does not keep the memory of all inputs.
            return self._convolve(x, window), window[:, x.shape[1] :].clone()
        # Move valid tokens to the front, convolve, and move the results back.
        window, there, count = self._compact(x, key_mask, last)
        u = self._convolve(window[:, self.width - 1 :], window).gather(1, there)
        return u, self._last(window, count)

    def _compact(self, x: Tensor, key_mask: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `last` and x with valid tokens first, new positions, and valid tokens [B, 1]."""
        position, count = front_positions(key_mask)
        there = position.unsqueeze(-1).expand_as(x)
        window = torch.cat([last.to(x.dtype), torch.zeros_like(x).scatter(1, there, x)], 1)
        return window, there, count

    def _last(self, window: Tensor, count: Tensor) -> Tensor:
        """Return the last width - 1 valid tokens."""
        at = count + torch.arange(self.width - 1, device=window.device)  # [B, width - 1]
        return window.gather(1, at.unsqueeze(-1).expand(-1, -1, self.dim))

    def packed(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Convolve each of the sequences packed in x [1, L, D] separately.

        Parameters
        ----------
        x : Tensor, shape (1, L, D)
            Inputs.
        cu_seqlens : int32 Tensor, shape (n + 1,)
            Offsets of the sequences.

        Returns
        -------
        u : Tensor, shape (1, L, D)
        """
        last, before = x.new_zeros(len(x), self.width - 1, self.dim), 0
        if (shard := current_shard()) is not None:
            (last, _), before = torch.compiler.disable(self._halo)(x, None), shard.before
        position = packed_positions(x.shape[1], cu_seqlens, before).unsqueeze(1)
        return self._convolve(x, torch.cat([last.to(x.dtype), x], 1), position)

    def _halo(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the last width - 1 tokens before this shard, and those of the entire sequence."""
        shard = current_shard()
        assert shard is not None
        if self.width == 1:
            return x[:, :0], x[:, :0]
        return halo(*self._tail(x, key_mask), shard.group)

    def _tail(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the last width - 1 valid tokens of x, padded with 0 in front, and their number."""
        n = self.width - 1
        zeros = x.new_zeros(len(x), n, self.dim)
        if key_mask is None:
            tail = torch.cat([zeros, x], 1)[:, x.shape[1] :]
            return tail, torch.full((len(x),), min(x.shape[1], n), device=x.device)
        window, _, count = self._compact(x, key_mask, zeros)
        return self._last(window, count), count.squeeze(1).clamp(max=n)

    def _convolve(self, x: Tensor, window: Tensor, position: Tensor | None = None) -> Tensor:
        """Convolve `window`, which is x after the width - 1 tokens before it.

        With `position` [L, 1], tokens before the start of a token's own sequence count as 0.
        """
        L, u = x.shape[1], x + self.bias
        for i, w in enumerate(self.weight):
            shifted = window[:, self.width - 1 - i : self.width - 1 - i + L]
            if position is not None and i:
                shifted = torch.where(position >= i, shifted, 0.0)
            u = torch.addcmul(u, shifted, w)
        return u


class Convolved(Mixer):
    """y = mixer(conv(x)), a mixer after a `ShortConv`.

    The decoding state contains the last inputs of the convolution.

    Parameters
    ----------
    mixer : Mixer
        Mixer to apply to the output of the convolution.
    width : int, default 4
        Width of the convolution.

    Examples
    --------
    >>> from eattn.nn import make_mixer
    >>> mixer = make_mixer("ea-6", 8, causal=True, short_conv=4)
    >>> y, state = mixer(torch.randn(2, 5, 8), return_state=True)
    >>> y_t, state = mixer.step(torch.randn(2, 8), state)
    >>> state.conv.shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, mixer: Mixer, *, width: int = 4) -> None:
        super().__init__(mixer.dim, causal=mixer.causal)
        self.conv = ShortConv(mixer.dim, width=check_size("short_conv", width))
        self.mixer = mixer

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, ConvState]:
        last, after = self._split(x_t, state)
        u, last = self.conv(x_t.unsqueeze(1), None, last)
        y, after = self.mixer._step(u.squeeze(1), after)
        return y, ConvState(last, after)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        last, after = self._split(x, state)
        u, last = self.conv(x, key_mask, last)
        options: Any = dict(key_mask=key_mask, state=after, return_state=keep)
        y = self.mixer(u, **options, _checked=True)
        if not keep:
            return y, None
        y, after = y
        return y, ConvState(last, after)

    def _packed(
        self, x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        self._check_packed(key_mask, state, keep)
        check_cu_seqlens(cu_seqlens, x, x)
        u = self.conv.packed(x, cu_seqlens)
        return self.mixer(u, cu_seqlens=cu_seqlens, _checked=True), None

    def _check_sharding(self) -> None:
        self.mixer._check_sharding()

    def _split(self, x: Tensor, state: Any) -> tuple[Tensor | None, Any]:
        if state is None:
            return None, None
        want = (x.shape[0], self.conv.width - 1, self.dim)
        return check_held(state, ConvState, "conv", want, "[B, width - 1, D]"), state.after
