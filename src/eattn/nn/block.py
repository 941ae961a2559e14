"""A Transformer block in which the mixer is a name: everything else stays the same.

Post-LN as in the paper (Sec. 4.1): x = LN(x + mixer(x)), then x = LN(x + ffn(x)).
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

from torch import Tensor, nn

from eattn._checks import check_bool, check_number, check_size
from eattn.nn.base import check_input, check_tokens
from eattn.nn.registry import check_mixer, make_mixer

Config = TypeVar("Config", bound="TransformerConfig")


@dataclass(frozen=True)
class TransformerConfig:
    """What a block and an encoder are made of. `dataclasses.replace` makes a changed copy.

    >>> TransformerConfig(dim=64, mixer="sa").ffn_dim
    256
    """

    dim: int = 128  # channels of a token
    depth: int = 3  # blocks of an encoder
    mixer: str = "ea-6"  # any name that `make_mixer` knows
    heads: int = 8  # of the mixers that have heads; must divide dim there
    causal: bool = False  # a token sees those before it only, and so can be decoded
    ffn: int | None = None  # channels between the two maps of the FFN; None: 4 dim
    norm: str = "post"  # "post" as in the paper, or "pre"
    dropout: float = 0.0  # of what mixer and FFN add to the residual
    max_len: int | None = None  # of what knows positions (aft, learned ones) or keeps a cache (sa)
    eps: float = 1e-5  # of the layer norms
    short_conv: int | None = None  # width of a causal convolution before the mixer; None: no such

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
        check_number("eps", self.eps, above=0, below=1)

    @property
    def ffn_dim(self) -> int:
        """Channels between the two maps of the FFN."""
        return 4 * self.dim if self.ffn is None else self.ffn

    @classmethod
    def bert_base(cls, **changes: Any) -> Self:
        """BERT-base: 12 blocks of 768 channels in 12 heads, 85 M parameters."""
        base = cls(
            dim=768, depth=12, heads=12, ffn=3072, norm="post", dropout=0.1, max_len=512, eps=1e-12
        )
        return _changed(base, changes)


def configure(config: TransformerConfig | None, changes: dict[str, Any]) -> TransformerConfig:
    """`config`, or the default one, with `changes`."""
    if config is not None and not isinstance(config, TransformerConfig):
        raise TypeError(
            f"config must be a TransformerConfig, got {type(config).__name__};"
            " its fields go by keyword, as in dim=128"
        )
    return _changed(TransformerConfig() if config is None else config, changes)


class TransformerBlock(nn.Module):
    """x = LN(x + mixer(x)); x = LN(x + W2 gelu(W1 x)); with norm="pre", x = x + mixer(LN(x)).

    Made from a config, from its fields by keyword, or from both, where keywords win.

    >>> import torch
    >>> block = TransformerBlock(dim=64, mixer="ea-6", causal=True)
    >>> y, state = block(torch.randn(2, 10, 64), return_state=True)
    >>> y_t, state = block.step(torch.randn(2, 64), state)
    >>> y_t.shape
    torch.Size([2, 64])
    """

    fsdp_methods = ("step",)  # FSDP gathers a block's weights for these methods and its forward

    def __init__(self, config: TransformerConfig | None = None, **changes: Any) -> None:
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
        self.ffn = nn.Sequential(_linear(c.dim, c.ffn_dim), nn.GELU(), _linear(c.ffn_dim, c.dim))
        self.norm_mixer = nn.LayerNorm(c.dim, eps=c.eps)
        self.norm_ffn = nn.LayerNorm(c.dim, eps=c.eps)
        self.dropout = nn.Dropout(c.dropout)

    def extra_repr(self) -> str:
        return f"norm={self.config.norm!r}"

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """x [B, L, D] -> y [B, L, D], or (y, state) with `return_state`; all as the mixer has it.

        A masked token is never read, and what comes out in its place is finite.
        """
        x = check_input(x, key_mask, self.config.dim)  # a masked NaN would reach the residual
        y = self.mixer(
            self._before(x),
            key_mask=key_mask,
            cu_seqlens=cu_seqlens,
            state=state,
            return_state=return_state,
            _checked=True,
        )
        if not return_state:
            return self._after(x, y)
        y, state = y
        return self._after(x, y), state

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One token x_t [B, D] -> (y_t [B, D], the state after it); no state: the first token."""
        check_tokens("x_t", x_t, "[B, D]", self.config.dim)
        y, state = self.mixer.step(self._before(x_t), state)
        return self._after(x_t, y), state

    def _before(self, x: Tensor) -> Tensor:
        """What the mixer gets."""
        return self.norm_mixer(x) if self.config.norm == "pre" else x

    def _after(self, x: Tensor, y: Tensor) -> Tensor:
        """The block's output, given its input and what the mixer made of it."""
        x = x + self.dropout(y)
        if self.config.norm == "pre":
            return x + self.dropout(self.ffn(self.norm_ffn(x)))
        x = self.norm_mixer(x)
        return self.norm_ffn(x + self.dropout(self.ffn(x)))


def _changed(config: Config, changes: dict[str, Any]) -> Config:
    known = [field.name for field in fields(config)]
    for name in changes:
        if name not in known:
            raise TypeError(f"unknown option {name!r}; a TransformerConfig has {', '.join(known)}")
    return replace(config, **changes)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """As the mixers' projections: Xavier, with bias 0."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
