"""What all mixers share: a `Mixer` takes tokens [B, L, D] and lets them see each other."""

from typing import Any

import torch
from torch import Tensor, nn

from eattn.distributed.context import check_not_sharded, current_shard
from eattn.ops.checks import FLOATS, check_cu_seqlens, check_mask


class Mixer(nn.Module):
    """x [B, L, D] -> y [B, L, D]: in parallel, continued from a state, or token by token.

    A subclass writes `_mix`, the parallel form. Causal mixers decode: `state` holds the tokens
    before x, and `step` takes one more.
    """

    def __init__(self, dim: int, *, causal: bool) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.causal = check_bool("causal", causal)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """y, or (y, state) with `return_state`.

        `key_mask` [B, L] is True for real tokens; nothing is read behind it. `cu_seqlens` [n + 1]
        are the offsets of sequences packed along L, with B = 1.
        """
        x = self._check(x, key_mask)
        if cu_seqlens is not None:
            if state is not None or return_state or key_mask is not None:
                raise ValueError("cu_seqlens goes without key_mask, state and return_state here")
            check_cu_seqlens(cu_seqlens, x, x)
            return self._packed(x, cu_seqlens)
        if state is not None or return_state:
            self._check_decodes("state" if state is not None else "return_state")
        y, state = self._mix(x, key_mask, state, keep=return_state)
        return (y, state) if return_state else y

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token x_t [B, D] -> (y_t [B, D], the state after it); no state: the first token."""
        self._check_step(x_t)
        y, state = self._mix(x_t.unsqueeze(1), None, state, keep=True)
        return y.squeeze(1), state

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        """y and, where it is to be kept, the state after x."""
        raise NotImplementedError

    def _packed(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Packed sequences as a padded batch: no mechanism need know of packing."""
        lengths = cu_seqlens.diff().tolist()
        rows = nn.utils.rnn.pad_sequence(list(x[0].split(lengths)), batch_first=True)
        ends = torch.tensor(lengths, device=x.device).unsqueeze(1)
        mask = torch.arange(rows.shape[1], device=x.device) < ends
        return self._mix(rows, mask, None, keep=False)[0][mask].unsqueeze(0)

    def _check_sharding(self) -> None:
        """Raise inside `sequence_parallel`; overridden by mixers that can work on a shard."""
        check_not_sharded(type(self).__name__)

    def _check(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return x with 0 for masked tokens; inside `sequence_parallel`, ranks must agree on it."""
        shard = current_shard()
        if shard is None:
            return self._check_tokens(x, key_mask)
        return shard.agree(lambda: (self._check_tokens(x, key_mask), self._shared_facts(x)))

    def _check_tokens(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        check_tokens("x", x, "[B, L, D]", self.dim)
        if key_mask is None:
            return x
        check_mask(key_mask, x)
        return real(x, key_mask)

    def _shared_facts(self, x: Tensor) -> dict[str, int]:
        """Return the properties of x that must be the same on all ranks."""
        self._check_sharding()
        return {
            "B": x.shape[0],
            "D": x.shape[2],
            "dtype": FLOATS.index(x.dtype),
            "gradient": torch.is_grad_enabled() and x.requires_grad,
        }

    def _check_step(self, x_t: Tensor) -> None:
        check_not_sharded(f"{type(self).__name__}.step")
        self._check_decodes("step")
        check_tokens("x_t", x_t, "[B, D]", self.dim)

    def _check_decodes(self, what: str) -> None:
        if not self.causal:
            raise ValueError(f"{what} needs causal=True: a token must not see those after it")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, causal={self.causal}"


def real(x: Tensor, key_mask: Tensor) -> Tensor:
    """x with 0 for masked tokens: 0 times NaN would still reach the gradient of a weight."""
    return x.masked_fill(~key_mask.unsqueeze(-1), 0.0)


def places(key_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Where each token goes if real ones move to the front [B, L], and how many are real [B, 1]."""
    real, masked = key_mask.cumsum(1), (~key_mask).cumsum(1)
    count = key_mask.sum(1, keepdim=True)
    return torch.where(key_mask, real, count + masked) - 1, count


def tokens_before(L: int, cu_seqlens: Tensor, begun: int = 0) -> Tensor:
    """How many tokens of its own sequence come before each token, [L]; `begun` of the first."""
    position = torch.arange(L, device=cu_seqlens.device)
    number = torch.searchsorted(cu_seqlens, position, right=True) - 1
    return position - (cu_seqlens[number] - begun * (number == 0))


def check_tokens(name: str, x: Tensor, shape: str, dim: int) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {kind}")
    if x.dim() != shape.count(",") + 1 or x.shape[-1] != dim:
        raise ValueError(f"{name} must be {shape} with D = dim = {dim}, got {tuple(x.shape)}")


def check_size(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_bool(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_heads(dim: int, heads: int) -> int:
    if dim % check_size("heads", heads):
        raise ValueError(f"heads must divide dim = {dim}, got {heads}")
    return heads


def projection(dim: int, parts: int, *, bias: bool = True) -> nn.Linear:
    """A linear map dim -> parts * dim whose every part keeps the variance, with bias 0."""
    linear = nn.Linear(dim, parts * dim, bias=bias)
    with torch.no_grad():
        for part in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(part)
        if bias:
            linear.bias.zero_()
    return linear
