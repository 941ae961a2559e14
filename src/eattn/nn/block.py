"""A Transformer block whose mixer is chosen by name.

Post-LN as in the paper (Sec. 4.1): x = LN(x + mixer(x)), then x = LN(x + ffn(x)).
"""

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from torch import Tensor, nn

from eattn._checks import check_bool, check_number, check_size
from eattn.nn.base import check_input, check_tokens, projection
from eattn.nn.decoding_state import DecodingState
from eattn.nn.registry import check_mixer, make_mixer

Config = TypeVar("Config", bound="TransformerConfig")
RENAMED = {"ffn.0.": "ffn.up.", "ffn.2.": "ffn.down."}  # weights of a block saved by version 0.1


class TransformerOptions(TypedDict, total=False):
    """Fields of `TransformerConfig` as keyword arguments."""

    dim: int
    depth: int
    mixer: str
    heads: int
    causal: bool
    ffn: int | None
    norm: str
    dropout: float
    max_len: int | None
    eps: float
    short_conv: int | None


@dataclass(frozen=True)
class TransformerConfig:
    """Configuration of a Transformer block and encoder.

    It is immutable; `dataclasses.replace` makes a changed copy.

    Parameters
    ----------
    dim : int, default 128
        Number of channels D.
    depth : int, default 3
        Number of blocks of an encoder.
    mixer : str, default "ea-6"
        Any name that `make_mixer` accepts.
    heads : int, default 8
        Number of heads of sa, sa-math, la and taylor, where it must divide `dim`.
    causal : bool, default False
        Attend only to earlier tokens and the token itself. Required for decoding.
    ffn : int, optional
        Hidden channels of the feed-forward network; 4 * dim by default.
    norm : {"post", "pre"}, default "post"
        Layer norms after each residual addition as in the paper, or before each branch.
    dropout : float, default 0.0
        Dropout rate of the output of mixer and feed-forward network.
    max_len : int, optional
        Longest sequence of aft, of learned positions, and of the cache of sa and sa-math.
    eps : float, default 1e-5
        Epsilon of the layer norms.
    short_conv : int, optional
        Width of a causal convolution before the mixer; no convolution by default.

    Examples
    --------
    >>> TransformerConfig(dim=64, mixer="sa").ffn_dim
    256
    """

    dim: int = 128
    depth: int = 3
    mixer: str = "ea-6"
    heads: int = 8
    causal: bool = False
    ffn: int | None = None
    norm: str = "post"
    dropout: float = 0.0
    max_len: int | None = None
    eps: float = 1e-5
    short_conv: int | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "depth", "heads"):
            check_size(name, getattr(self, name))
        for name in ("ffn", "max_len", "short_conv"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        check_mixer(self.mixer)
        check_bool("causal", self.causal)
        if self.norm not in ("post", "pre"):
            raise ValueError(f"norm must be 'post' or 'pre', got {self.norm!r}")
        check_number("dropout", self.dropout, least=0, below=1)
        check_number("eps", self.eps, above=0)

    @property
    def ffn_dim(self) -> int:
        """Hidden channels of the feed-forward network."""
        return 4 * self.dim if self.ffn is None else self.ffn

    @classmethod
    def bert_base(cls, **changes: Unpack[TransformerOptions]) -> Self:
        """Return BERT-base (12 blocks, 768 channels, 12 heads; 85 M parameters) with `changes`."""
        base = cls(
            dim=768, depth=12, heads=12, ffn=3072, norm="post", dropout=0.1, max_len=512, eps=1e-12
        )
        return _changed(base, changes)


def configure(config: TransformerConfig | None, changes: TransformerOptions) -> TransformerConfig:
    """Return `config`, or the default configuration, with `changes`."""
    if config is not None and not isinstance(config, TransformerConfig):
        raise TypeError(
            f"config must be a TransformerConfig, got {type(config).__name__};"
            " pass its fields by keyword, as in dim=128"
        )
    return _changed(TransformerConfig() if config is None else config, changes)


class TransformerBlock(nn.Module):
    """x = LN(x + mixer(x)); x = LN(x + W2 gelu(W1 x)); with norm="pre", x = x + mixer(LN(x)).

    Parameters
    ----------
    config : TransformerConfig, optional
        Configuration; the default one if omitted.
    **changes
        Fields of `TransformerConfig`, which take precedence over `config`.

    Examples
    --------
    >>> import torch
    >>> block = TransformerBlock(dim=64, mixer="ea-6", causal=True)
    >>> y, state = block(torch.randn(2, 10, 64), return_state=True)
    >>> y_t, state = block.step(torch.randn(2, 64), state)
    >>> y_t.shape
    torch.Size([2, 64])
    """

    fsdp_methods = ("step",)  # FSDP gathers a block's weights for these methods and its forward

    def __init__(
        self, config: TransformerConfig | None = None, **changes: Unpack[TransformerOptions]
    ) -> None:
        super().__init__()
        self.config = c = configure(config, changes)
        self.mixer = make_mixer(
            c.mixer,
            c.dim,
            heads=c.heads,
            causal=c.causal,
            max_len=c.max_len,
            short_conv=c.short_conv,
        )
        up, down = projection(c.dim, c.ffn_dim), projection(c.ffn_dim, c.dim)
        self.ffn = nn.Sequential(OrderedDict(up=up, act=nn.GELU(), down=down))
        self.norm_mixer = nn.LayerNorm(c.dim, eps=c.eps)
        self.norm_ffn = nn.LayerNorm(c.dim, eps=c.eps)
        self.dropout = nn.Dropout(c.dropout)

    def extra_repr(self) -> str:
        return f"norm={self.config.norm!r}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for old, new in RENAMED.items():
            for name in [name for name in state_dict if name.startswith(prefix + old)]:
                state_dict[prefix + new + name.removeprefix(prefix + old)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: DecodingState | None = ...,
        return_state: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = ...,
        cu_seqlens: Tensor | None = ...,
        state: DecodingState | None = ...,
        return_state: Literal[True],
    ) -> tuple[Tensor, DecodingState]: ...
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: DecodingState | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, DecodingState]:
        """Apply the block to a sequence.

        Parameters
        ----------
        x : Tensor, shape (B, L, D)
            Tokens.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid tokens. Masked tokens are never read; their outputs are finite.
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
        # Masked tokens are zeroed here, as a NaN would otherwise enter the residual.
        x = check_input(x, key_mask, self.config.dim)
        options: Any = dict(state=state, return_state=return_state, _checked=True)
        inputs: Any = dict(key_mask=key_mask, cu_seqlens=cu_seqlens)
        y = self.mixer(self._mixer_input(x), **inputs, **options)
        if not return_state:
            return self._add(x, y)
        y, state = y
        return self._add(x, y), state

    if TYPE_CHECKING:
        __call__ = forward

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Apply the block to one token; see `Mixer.step`.

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
        """
        check_tokens("x_t", x_t, "[B, D]", self.config.dim)
        y, state = self.mixer.step(self._mixer_input(x_t), state)
        return self._add(x_t, y), state

    def _mixer_input(self, x: Tensor) -> Tensor:
        return self.norm_mixer(x) if self.config.norm == "pre" else x

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the mixer's output y to x and apply the feed-forward network."""
        x = x + self.dropout(y)
        if self.config.norm == "pre":
            return x + self.dropout(self.ffn(self.norm_ffn(x)))
        x = self.norm_mixer(x)
        return self.norm_ffn(x + self.dropout(self.ffn(x)))


def _changed(config: Config, changes: TransformerOptions) -> Config:
    known = [field.name for field in fields(config)]
    for name in changes:
        if name not in known:
            raise TypeError(f"unknown option {name!r}; TransformerConfig has {', '.join(known)}")
    return replace(config, **changes)
